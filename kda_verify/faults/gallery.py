"""Every planted fault against every check meant for it: `python -m kda_verify.faults.gallery`.

Each fault is planted in a copy of the kernels. The cases that `make verify` draws come first, then
calls among others, then the laws; a fault of the contract meets the invalid and the boundary calls.
The first rejection ends it, and the kernel as it is must pass that very check.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kda_kernels.contract import CONTRACTS, Contract

from .. import plan
from ..cases.case import Case
from ..determinism import in_any_order
from ..invalid.boundaries import boundaries
from ..invalid.catalogue import Mutation, mutations
from ..invalid.example_calls import example
from ..judging.judge import judge
from ..laws.catalogue import LAWS, Law, OutOfRange, check
from ..operations import registry
from ..processes import Died, Late, alone
from ..subjects import Subject, ours
from . import store
from .catalogue import FAULTS
from .planted import PACKAGE, Plant, planted

LAW_CASES = 4
"""Cases that every law is asked of, where no drawn case has found the fault."""

TIME_LIMIT_SECONDS = 240.0
CHECK_LIMIT_SECONDS = 60.0
"""For one check beyond the time limit: a kernel that takes longer never ends. Processor time."""


@dataclass(frozen=True)
class Check:
    """One question that a kernel package is asked.

    Attributes:
        kind: of check.
        of: the case, the law and its case, or the call.
        ask: put it to the package of that name; returns what was wrong, "" where nothing was.
    """

    kind: str
    of: str
    ask: Callable[[str], str]


@dataclass(frozen=True)
class Entry:
    """What the checks said of one fault.

    Attributes:
        fault: its name.
        module: of the kernel package in which it stands.
        description: what the kernel then does wrong.
        digest: of the patched source and of the checks, so that a stored entry is of both.
        found_by: kind of check that rejects it, or "" where none does.
        first: the case, law or call that shows it.
        says: first line of what the check said, or why none is named.
        control: whether the kernel as it is passes the same check.
        seconds: taken.
    """

    fault: str
    module: str
    description: str
    digest: str
    found_by: str
    first: str
    says: str
    control: bool
    seconds: float

    @property
    def found(self) -> bool:
        """Whether a check rejects the fault and accepts the kernel as it is."""
        return bool(self.found_by) and self.control


CHECKING = (
    "cases/", "determinism.py", "faults/gallery.py", "invalid/", "judging/", "laws/", "operations/",
    "plan.py", "subjects/",
)  # fmt: skip
"""Paths of what asks the checks, within `kda_verify`."""


def source_digest(plant: Plant, parts: tuple[str, ...] = CHECKING) -> str:
    """Return a digest of all source that decides an entry: the fault, the oracle, the checks.

    Args:
        plant: the fault.
        parts: paths of the checks that count, by how they begin.

    Raises:
        ValueError: the fault does not apply to the present source.
    """
    digest = hashlib.sha256()
    for path, text in _sources().items():
        if path.startswith("kda_verify/") and not path.startswith(
            tuple(f"kda_verify/{part}" for part in parts)
        ):
            continue
        if path == f"{PACKAGE}/{plant.module}.py":
            text = plant.apply(text)
        digest.update(f"{path}\0{text}\0".encode())
    return digest.hexdigest()[:16]


@cache
def _sources() -> dict[str, str]:
    """Read every module of the kernels, the oracle and the checks, but for the lists of faults."""
    root = Path(__file__).resolve().parents[2]
    folders = (root / "kda_ref", root / PACKAGE, root / "kda_verify")
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path.parent.name != "faults" or path.name == "gallery.py"
    }


def checks(operations: str) -> Iterator[Check]:
    """List the checks meant for an operation, cheapest first; for several, one after the other."""
    for operation in operations.split():
        if operation == "contract":
            yield from _contract_checks()
        elif operation == "drop-in":
            for name in (s.name for s in ours.subjects() if s.name not in ours.GENERAL.values()):
                yield from _cases(name)
        else:
            yield from _cases(ours.GENERAL[operation])
            yield from _further_checks(operation)


def _cases(subject: str) -> Iterator[Check]:
    for draws in plan.OURS:
        if draws.subject == subject:
            kind = "exact family" if draws.strategy.startswith("exact") else "cases"
            for batch in plan.batches([draws], size=25):
                for case in batch.cases():
                    yield Check(kind, case.to_json(), partial(_judged, subject, case))


def _further_checks(operation: str) -> Iterator[Check]:
    for index, draws in enumerate(plan.DETERMINISM):
        if draws.subject == ours.GENERAL[operation]:
            for case in plan.Batch(draws, seed=index).cases():
                ask = partial(_in_any_order, operation, case)
                yield Check("other calls", case.to_json(), ask)
    small = registry.operation(operation).cases(sizes=(16, 20, 17, 32), most=3)
    for law in LAWS:
        if law.operation == operation:
            for case in plan.drawn(small, LAW_CASES, 1):
                yield Check("laws", f"{law.name}: {case.to_json()}", partial(_lawful, law, case))


def _subject(operation: str, package: str) -> Subject:
    return ours.subject(ours.GENERAL[operation], package)


def _judged(subject: str, case: Case, package: str) -> str:
    verdict = judge(case, ours.subject(subject, package))
    return str(verdict).splitlines()[0] if verdict.failed else ""


def _in_any_order(operation: str, case: Case, package: str) -> str:
    verdict = in_any_order(case, _subject(operation, package))
    return str(verdict).partition("\n  replay")[0].replace("\n", ";") if verdict.failed else ""


def _lawful(law: Law, case: Case, package: str) -> str:
    try:
        breach = check(law, case, {o: _subject(o, package) for o in ours.GENERAL})
    except OutOfRange:
        return ""
    except Exception as problem:  # a wrong kernel may raise
        return f"{law} raised {type(problem).__name__}: {problem}".splitlines()[0]
    return str(breach or "").partition("\n")[0]


def _contract_checks() -> Iterator[Check]:
    """Invalid calls must be refused by the clause meant, calls at the boundary must not."""
    for contract in CONTRACTS:
        for mutation in mutations(contract):
            ask = partial(_refused, contract, mutation)
            yield Check("contract", f"{contract.operation}: {mutation.id}", ask)
        for boundary in boundaries(contract):
            ask = partial(_accepted, contract, boundary)
            yield Check("contract", f"{contract.operation}: {boundary.id}", ask)


def _refused(contract: Contract, mutation: Mutation, package: str) -> str:
    function = getattr(importlib.import_module(package), contract.operation)
    clause = next(c for c in contract.clauses if c.id == mutation.clause_id)
    with mutation.context():
        arguments = mutation(example(contract))
        call = contract.call(arguments)
        meant = clause.message(call, "", call.names(contract.anchor)).partition(", got ")[0]
        try:
            function(**arguments)
        except ValueError as refusal:
            # A later clause that refuses the call too must not hide that this one is gone.
            return "" if str(refusal).startswith(f"{meant}, got ") else f"refused as: {refusal}"
        except Exception as problem:
            return f"raised {type(problem).__name__}: {problem}"
    return "not refused"


def _accepted(contract: Contract, boundary: Mutation, package: str) -> str:
    patched = importlib.import_module(f"{package}.contract").CONTRACTS
    mine = next(c for c in patched if c.name == contract.name)
    with boundary.context():
        try:
            mine.validate(boundary(example(contract)))
        except ValueError as refusal:
            return f"refused: {refusal}"
    return ""


def run_fault(plant: Plant, time_limit: float, trail: Path | None = None) -> Entry:
    """Put the checks to one fault; meant for a process of its own.

    Args:
        plant: the fault.
        time_limit: processor seconds after which no further check is begun.
        trail: a file that always holds the number of the check under way, should the process die.
    """
    warnings.filterwarnings("ignore")
    start, begun = time.perf_counter(), time.process_time()
    with planted(plant) as package:
        for number, question in enumerate(checks(plant.operation)):
            if trail is not None:
                trail.write_text(str(number))
            if said := question.ask(package):
                control = not question.ask(PACKAGE)
                return _entry(plant, question, said, control, start)
            if time.process_time() - begun > time_limit:
                return _entry(
                    plant, None, f"no check in {time_limit:.0f} s rejects it", False, start
                )
    return _entry(plant, None, "no check rejects it", False, start)


def _entry(plant: Plant, by: Check | None, said: str, control: bool, start: float) -> Entry:
    return Entry(
        plant.name, plant.module, plant.description, source_digest(plant), by.kind if by else "",
        by.of if by else "", said.partition("\n")[0], control,
        round(time.perf_counter() - start, 1),
    )  # fmt: skip


def _control(operation: str, number: int) -> bool:
    """Whether the kernel as it is passes the check of that number."""
    question = next(islice(checks(operation), number, None))
    return not question.ask(PACKAGE)


def run_alone(plant: Plant, time_limit: float) -> Entry:
    """Run a fault in a process of its own: one that reads past its memory may end it."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trail = Path(folder) / "number"
        try:
            hard = time_limit + CHECK_LIMIT_SECONDS
            return alone(run_fault, plant, time_limit, trail, limit=hard)
        except (Died, Late) as problem:
            if not trail.exists():
                raise
            said, number = str(problem), int(trail.read_text())
        question = next(islice(checks(plant.operation), number, None))
        try:
            control = alone(_control, plant.operation, number, limit=CHECK_LIMIT_SECONDS)
        except (Died, Late):
            control = False
        return _entry(plant, question, said, control, start)


def run(faults: Sequence[Plant], workers: int, time_limit: float, keep: Path | None) -> list[Entry]:
    """Run faults in worker processes with progress; stored entries of the same source are kept."""
    entries = {entry.fault: entry for entry in store.load(keep, Entry)}
    done = {
        plant.name: entries[plant.name]
        for plant in faults
        if plant.name in entries and entries[plant.name].digest == source_digest(plant)
    }
    with (
        Progress(console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(workers) as threads,
    ):
        task = bar.add_task("faults", total=len(faults), completed=len(done))
        left = [plant for plant in faults if plant.name not in done]
        for future in as_completed(
            [threads.submit(run_alone, plant, time_limit) for plant in left]
        ):
            entry = future.result()
            done[entry.fault] = entry
            if keep is not None:
                store.add(asdict(entry), keep)
            bar.advance(task)
    return [done[plant.name] for plant in faults]


def tables(entries: Sequence[Entry]) -> tuple[Table, Table]:
    """Render a row per fault, and what was found by module and kind of check."""
    rows = Table(title="Planted faults", title_justify="left")
    for column in ("fault", "module", "found by", "said", "s"):
        rows.add_column(column, overflow="ellipsis", no_wrap=True, max_width=72)
    for e in entries:
        by = f"[green]{e.found_by}[/]" if e.found else "[red]NOT FOUND[/]"
        if e.found_by and not e.control:
            by = "[red]CONTROL FAILS[/]"
        rows.add_row(e.fault, e.module, by, e.says, f"{e.seconds:.0f}")
    kinds = sorted({e.found_by for e in entries if e.found})
    kills = Table(title="Found by module and check", title_justify="left")
    for column in ("module", "faults", "found", *kinds):
        kills.add_column(column, justify="left" if column == "module" else "right")
    for module in sorted({e.module for e in entries}):
        mine = [e for e in entries if e.module == module]
        by_kind = [str(sum(e.found and e.found_by == kind for e in mine)) for kind in kinds]
        kills.add_row(module, str(len(mine)), str(sum(e.found for e in mine)), *by_kind)
    return rows, kills


def main(arguments: list[str] | None = None) -> int:
    """Run the gallery; 1 where a fault is not found or the kernel as it is fails its check."""
    parser = argparse.ArgumentParser("python -m kda_verify.faults.gallery", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names; all if none")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_SECONDS, metavar="S",
                        help=f"processor seconds a fault [{TIME_LIMIT_SECONDS:.0f}]")  # fmt: skip
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="JSON lines; stored entries are not run again")  # fmt: skip
    options = parser.parse_args(arguments)
    # Before the workers import Triton: faults are judged in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
    if unknown := sorted(set(options.faults) - {plant.name for plant in FAULTS}):
        print(f"gallery: no fault is named {', '.join(unknown)}", file=sys.stderr)
        return 2
    chosen = [p for p in FAULTS if not options.faults or p.name in options.faults]
    entries = run(chosen, options.workers, options.time_limit, options.store)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables(entries):
        console.print(table)
    missed = [entry for entry in entries if not entry.found]
    console.print(f"{len(entries) - len(missed)} of {len(entries)} faults found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
