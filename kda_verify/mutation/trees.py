"""Copies of the tree, in which the tests of a group meet a mutant."""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

from ..processes import Died, Late, alone
from .mutants import ROOT
from .suite import failed_test

CONTROL_LIMIT_SECONDS = 1800.0
TEST_LIMIT = (60.0, 4.0)
"""Processor seconds a test module has with a mutant: so many, and so many times its own."""

COPIED = ("kda_ref", "kda_kernels", "kda_verify", "property_tests", "fixtures", "docs")
TESTS = {
    "kernels": ("test_kernels.py", "test_offsets.py"),
    "contract": ("test_contract_parts.py", "test_contract.py"),
    "budget": ("test_bounded.py", "test_budget.py", "test_oracle_exact.py",
               "test_oracle_closed_form.py", "test_calibration.py", "meta/test_judge.py"),
    "comparison": ("test_compare.py", "test_sensitivity.py", "test_published.py",
                   "meta/test_judge.py", "test_fixtures.py", "meta/test_planted.py"),
}  # fmt: skip
"""Test modules that hold a group, quickest first."""


class Copies:
    """Copies of the tree in which one test run at a time goes on.

    Args:
        folder: that holds them; it goes with its owner.
        count: how many.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.free: SimpleQueue[Path] = SimpleQueue()
        self._controls: dict[str, str] = {}
        self._limits: dict[str, float] = {}
        for number in range(count):
            copy = folder / f"tree-{number}"
            for name in COPIED:
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            # A module whose text is changed no longer fits what is compiled here.
            compileall.compile_dir(
                copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
            )
            for file in ROOT.glob("*.*"):
                if file.is_file():
                    shutil.copy(file, copy)
            self.free.put(copy)

    def control(self, group: str) -> None:
        """Run the tests of a group as they are, once, and see how long each module takes.

        Raises:
            RuntimeError: one fails.
        """
        if group not in self._controls:
            self._controls[group] = self.tests(group)
        if failed := self._controls[group]:
            raise RuntimeError(f"the tests of {group} fail as they are: {failed}")

    def tests(self, group: str, path: str = "", text: str = "") -> str:
        """Run the tests of a group with the text of one file replaced; return what failed."""
        copy = self.free.get()
        file = copy / path
        whole = file.read_text(encoding="utf-8") if path else ""
        try:
            if path:
                file.write_text(text, encoding="utf-8")
            for module in TESTS[group]:
                limit = self._limits.get(module, CONTROL_LIMIT_SECONDS)
                failed, seconds = _failed_test(copy, module, limit)
                if failed:
                    return failed
                if not path:
                    least, times = TEST_LIMIT
                    self._limits[module] = least + times * seconds
            return ""
        finally:
            if path:
                file.write_text(whole, encoding="utf-8")
            self.free.put(copy)


def _failed_test(tree: Path, module: str, limit: float) -> tuple[str, float]:
    """Return what failed and the processor seconds it took."""
    try:
        return alone(failed_test, tree, module, limit=limit)
    except (Died, Late) as problem:
        return f"{module}: {problem}", limit
