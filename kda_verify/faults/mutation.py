"""Mutation: how many small changes of kernels, contract, budget and comparison are noticed.

    python -m kda_verify.faults.mutation --sample 600 --store build/mutation.jsonl

A mutant of the kernels or the contract meets the checks of the toolkit, as a planted fault does,
and where they find nothing the tests of its group; one of the budget or the comparison, which are
the checks, meets the tests that hold them. Every mutant has a time limit. The sample is drawn in
an order whose every beginning is a sample too, so a run that was cut short says as much as a
shorter one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import store
from .gallery import Entry, run_alone, source_digest
from .mutants import GROUPS, ROOT, Mutant, sample, sites

TIME_LIMIT_SECONDS = 90.0
CONTROL_LIMIT_SECONDS = 1800.0
TEST_LIMIT = (60.0, 4.0)
"""Seconds a test module has with a mutant: so many, and so many times what it took without."""

SCORE = 0.97
"""Share of the mutants, equivalent ones aside, that must be noticed."""

EQUIVALENTS = Path(__file__).with_name("equivalents.json")
COPIED = ("kda_ref", "kda_kernels", "kda_verify", "property_tests", "fixtures", "docs")
CHECKED = ("kernels", "contract")
"""Groups whose mutants meet the checks first."""
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
                start = time.perf_counter()
                limit = self._limits.get(module, CONTROL_LIMIT_SECONDS)
                if failed := _failed_test(copy, module, limit):
                    return failed
                if not path:
                    least, times = TEST_LIMIT
                    self._limits[module] = least + times * (time.perf_counter() - start)
            return ""
        finally:
            if path:
                file.write_text(whole, encoding="utf-8")
            self.free.put(copy)


def _failed_test(tree: Path, module: str, limit: float) -> str:
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=line", "--kda-profile",
               "mutate", "-p", "no:cacheprovider", "-p", "no:xdist"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree), "TRITON_INTERPRET": "1"}
    try:
        done = subprocess.run(
            [*command, f"property_tests/{module}"], cwd=tree, env=environment,
            capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{module}: no answer in {limit:.0f} s"
    if not done.returncode:
        return ""
    lines = [x for x in done.stdout.splitlines() if x.startswith(("FAILED", "ERROR"))]
    return lines[0] if lines else f"{module}: exit {done.returncode}"


def digest(mutant: Mutant) -> str:
    """Return a digest of all source that decides what the tests of its group say of a mutant."""
    whole = hashlib.sha256(mutant.name.encode())
    if mutant.group in CHECKED:
        whole.update(source_digest(mutant).encode())
    folders = [ROOT / "kda_ref", ROOT / "kda_kernels", ROOT / "kda_verify" / "judging"]
    files = [ROOT / "property_tests" / name for name in TESTS[mutant.group]]
    for file in sorted([*files, *(f for folder in folders for f in folder.rglob("*.py"))]):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def current(entry: Entry, mutant: Mutant) -> bool:
    """Whether a stored entry is of the present source: of the tests only if it came to them."""
    by_checks = mutant.group in CHECKED and entry.found_by not in ("", "tests")
    return entry.digest == (source_digest(mutant) if by_checks else digest(mutant))


def run(mutants: Sequence[Mutant], workers: int, keep: Path | None) -> dict[str, Entry]:
    """Put every mutant to its checks, with progress; stored entries of the same source are kept.

    Raises:
        RuntimeError: the tests of a group fail without any mutant.
    """
    named = {mutant.name: mutant for mutant in mutants}
    stored = [e for e in store.load(keep, Entry) if e.fault in named]
    done = {e.fault: e for e in stored if current(e, named[e.fault])}
    left = [mutant for mutant in mutants if mutant.name not in done]
    with (
        tempfile.TemporaryDirectory(prefix="kda-mutation-") as folder,
        Progress(console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(workers) as threads,
    ):
        task = bar.add_task("mutants", total=len(mutants), completed=len(done))
        copies = Copies(Path(folder), workers if left else 0)
        for group in sorted({mutant.group for mutant in left}.difference(CHECKED)):
            copies.control(group)

        def one(mutant: Mutant) -> Entry:
            start = time.perf_counter()
            if mutant.group in CHECKED:
                entry = _checked(mutant)
                if entry.found:
                    return entry
                copies.control(mutant.group)
            text = mutant.apply((ROOT / mutant.path).read_text(encoding="utf-8"))
            failed = copies.tests(mutant.group, mutant.path, text)
            return Entry(
                mutant.name, mutant.module, mutant.description, digest(mutant),
                "tests" if failed else "", failed.partition(" - ")[0], failed, bool(failed),
                round(time.perf_counter() - start, 1),
            )  # fmt: skip

        for future in as_completed([threads.submit(one, mutant) for mutant in left]):
            entry = future.result()
            done[entry.fault] = entry
            if keep is not None:
                store.add(asdict(entry), keep)
            bar.advance(task)
    return done


def _checked(mutant: Mutant) -> Entry:
    try:
        return run_alone(mutant, TIME_LIMIT_SECONDS)
    except Exception as problem:  # it cannot be imported, or fails where no check expects it
        return Entry(
            mutant.name, mutant.module, mutant.description, source_digest(mutant), "raised", "",
            f"{type(problem).__name__}: {problem}".splitlines()[0], True, 0.0,
        )  # fmt: skip


def equivalents(mutants: Sequence[Mutant], path: Path = EQUIVALENTS) -> dict[str, str]:
    """Read which mutants change nothing that can be observed, and why.

    Args:
        mutants: those of the sample.
        path: a list of objects with `path`, `before`, `after` and `reason`.

    Returns:
        The reason by name of a mutant of the sample.

    Raises:
        ValueError: an entry without a reason, or one whose line is not in its file any more.
    """
    reasons = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        if not entry["reason"]:
            raise ValueError(f"`reason` must say why {entry['before']!r} is equivalent, got none")
        source = (ROOT / entry["path"]).read_text(encoding="utf-8")
        lines = " ".join(line.strip() for line in source.splitlines())
        if entry["before"] not in lines:
            raise ValueError(f"`before` must be text of {entry['path']}, got {entry['before']!r}")
        for mutant in mutants:
            same = (mutant.path, mutant.before, mutant.after)
            if same == (entry["path"], entry["before"], entry["after"]):
                reasons[mutant.name] = entry["reason"]
    return reasons


def summary(
    mutants: Sequence[Mutant], entries: Mapping[str, Entry], reasons: Mapping[str, str]
) -> tuple[Table, float]:
    """Render what became of every group, and return the share noticed of all that could be."""
    table = Table(title="Mutants", title_justify="left")
    for column in (
        "group",
        "sampled",
        "noticed",
        "of them late",
        "equivalent",
        "survived",
        "score",
    ):
        table.add_column(column, justify="left" if column == "group" else "right")
    totals = [0] * 5
    for group in GROUPS:
        mine = [entries[m.name] for m in mutants if m.group == group and m.name in entries]
        noticed = [e for e in mine if e.found]
        late = [e for e in noticed if "no answer in" in e.says]
        same = [e for e in mine if not e.found and e.fault in reasons]
        counts = [
            len(mine),
            len(noticed),
            len(late),
            len(same),
            len(mine) - len(noticed) - len(same),
        ]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        table.add_row(group, *map(str, counts), _percent(counts))
    table.add_row("all", *map(str, totals), _percent(totals))
    able = totals[0] - totals[3]
    return table, totals[1] / able if able else 0.0


def _percent(counts: Sequence[int]) -> str:
    able = counts[0] - counts[3]
    return f"{100 * counts[1] / able:.1f} %" if able else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the sample; 1 where too few mutants are noticed, 2 for a call that makes no sense."""
    parser = argparse.ArgumentParser(
        "python -m kda_verify.faults.mutation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--sample", type=int, default=600, help="how many mutants [600]")
    parser.add_argument("--seed", type=int, default=0, help="which ones [0]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="JSON lines; stored entries are not run again")  # fmt: skip
    options = parser.parse_args(arguments)
    if find_spec("cosmic_ray") is None:
        print("mutation: cosmic-ray is not installed: pip install 'kda-verify[dev]'",
              file=sys.stderr)  # fmt: skip
        return 2
    # Before the workers import Triton: mutants are judged in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        mutants = sample(sites(), options.sample, options.seed)
        reasons = equivalents(mutants)
        entries = run(mutants, options.workers, options.store)
    except (ValueError, RuntimeError) as problem:
        print(f"mutation: {problem}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 160)
    table, score = summary(mutants, entries, reasons)
    console.print(table)
    for mutant in mutants:
        entry = entries[mutant.name]
        if not entry.found and mutant.name not in reasons:
            console.print(f"{mutant.group}: {mutant}", markup=False)
            console.print(f"    {mutant.operator}, {entry.says or 'no test fails'}", markup=False)
    return int(score < SCORE)


if __name__ == "__main__":
    sys.exit(main())
