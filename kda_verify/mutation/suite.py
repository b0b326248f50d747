"""Run a module of tests of another tree than the one this code was loaded from."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

PACKAGES = ("kda_ref", "kda_kernels", "kda_verify", "property_tests", "benchmarks")
FLAGS = ("-x", "-q", "--tb=line", "--kda-profile", "mutate", "-p", "no:cacheprovider",
         "-p", "no:xdist")  # fmt: skip


def failed_test(tree: Path, module: str) -> tuple[str, float]:
    """Run a module of `property_tests` in this process, which then belongs to the tree.

    Args:
        tree: root of a copy of the project; its modules replace those that are loaded.
        module: path of the tests within `property_tests`.

    Returns:
        The line that names the first failure, "" where all passed; processor seconds taken.
    """
    import pytest

    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if not _is_ours(path))]
    sys.dont_write_bytecode = True
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = pytest.main([*FLAGS, f"property_tests/{module}"])
    if not status:
        return "", time.process_time()
    lines = said.getvalue().splitlines()
    named = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return named[0] if named else f"{module}: exit {int(status)}", time.process_time()


def _is_ours(path: str) -> bool:
    return (Path(path or ".") / "kda_verify").is_dir()
