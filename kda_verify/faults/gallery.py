"""Every planted fault against every check meant for it: `python -m kda_verify.faults.gallery`.

Each fault is planted in a copy of the kernels. The cases that `make verify` draws come first, then
the laws; a fault of the contract meets the invalid and the boundary calls. The first rejection
ends it, and the kernel as it is must pass that very check.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kda_kernels.contract import CONTRACTS, Contract

from .. import plan
from ..cases import strategies
from ..cases.case import Case
from ..invalid.boundaries import boundaries
from ..invalid.catalogue import Mutation, mutations
from ..invalid.example_calls import example
from ..judging.judge import judge
from ..laws.catalogue import LAWS, Law, OutOfRange, check
from ..run import start_worker
from ..subjects import Subject, ours
from . import commit_faults, contract_faults, verify_faults
from .planted import PACKAGE, Plant, planted
from .plants import PLANTS

STAGES: dict[str, Sequence[Plant]] = {
    "first kinds": PLANTS,
    "prepare": verify_faults.PREPARE,
    "stream and scan": verify_faults.STREAM_AND_SCAN,
    "launch and wrapper": verify_faults.LAUNCH,
    "replay commit": commit_faults.REPLAY,
    "conv commit": commit_faults.CONV,
    "contract": contract_faults.CONTRACT,
}
"""Every fault by the stage it stands in; the first kinds stand in several."""

SUBJECT_OF = {
    "verify": "kda_mtp_verify",
    "commit": "kda_replay_commit",
    "conv_commit": "kda_conv_commit",
}
LAW_CASES = 4
"""Cases that every law is asked of, where no drawn case has found the fault."""

TIME_LIMIT_SECONDS = 240.0


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
        stage: where it stands.
        description: what the kernel then does wrong.
        digest: of the patched source, so that a stored entry is known to be of this fault.
        found_by: kind of check that rejects it, or "" where none does.
        first: the case, law or call that shows it.
        says: first line of what the check said.
        control: whether the kernel as it is passes the same check.
        seconds: taken.
    """

    fault: str
    stage: str
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


def source_digest(plant: Plant) -> str:
    """Return a digest of the whole package with the fault in it.

    Raises:
        ValueError: the fault does not apply to the present source.
    """
    root = Path(str(importlib.import_module(PACKAGE).__file__)).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path == root / f"{plant.module}.py":
            text = plant.apply(text)
        digest.update(f"{path.relative_to(root)}\0{text}\0".encode())
    return digest.hexdigest()[:16]


def checks(operation: str) -> Iterator[Check]:
    """List the checks meant for an operation, cheapest first."""
    if operation == "contract":
        yield from _contract_checks()
        return
    for draws in plan.OURS:
        if draws.subject == SUBJECT_OF[operation]:
            kind = "exact family" if draws.strategy.startswith("exact") else "cases"
            for batch in plan.batches([draws], size=25):
                for case in batch.cases():
                    yield Check(kind, case.to_json(), partial(_judged, operation, case))
    small = getattr(strategies, f"{operation}_cases")(sizes=(16, 20, 17, 32), most=3)
    for law in LAWS:
        if law.operation == operation:
            for case in plan.drawn(small, LAW_CASES, 1):
                yield Check("laws", f"{law.name}: {case.to_json()}", partial(_lawful, law, case))


def _subject(operation: str, package: str) -> Subject:
    return next(s for s in ours.subjects(package) if s.name == SUBJECT_OF[operation])


def _judged(operation: str, case: Case, package: str) -> str:
    verdict = judge(case, _subject(operation, package))
    return str(verdict).splitlines()[0] if verdict.failed else ""


def _lawful(law: Law, case: Case, package: str) -> str:
    try:
        breach = check(law, case, {o: _subject(o, package) for o in SUBJECT_OF})
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


def run_fault(plant: Plant, stage: str, time_limit: float) -> Entry:
    """Put the checks to one fault; meant for a worker process."""
    warnings.filterwarnings("ignore")
    start = time.perf_counter()
    found: Check | None = None
    said = ""
    with planted(plant) as package:
        for question in checks(plant.operation):
            said = question.ask(package)
            if said:
                found = question
                break
            if time.perf_counter() - start > time_limit:
                break
    return Entry(
        plant.name,
        stage,
        plant.description,
        source_digest(plant),
        found.kind if found else "",
        found.of if found else "",
        said.partition("\n")[0],
        found is not None and not found.ask(PACKAGE),
        round(time.perf_counter() - start, 1),
    )


def _alone(plant: Plant, stage: str, time_limit: float) -> Entry:
    """Run a fault in a process of its own: one that reads past its memory may end it."""
    start = time.perf_counter()
    with ProcessPoolExecutor(1, get_context("spawn"), start_worker) as pool:
        try:
            return pool.submit(run_fault, plant, stage, time_limit).result()
        except BrokenProcessPool:
            seconds = round(time.perf_counter() - start, 1)
            # The same checks run on the kernel as it is in the suite, which would have ended too.
            return Entry(
                plant.name, stage, plant.description, source_digest(plant), "crash", "",
                "the process died", True, seconds,
            )  # fmt: skip


def run(
    work: Sequence[tuple[str, Plant]],
    workers: int,
    time_limit: float,
    store: Path | None,
) -> list[Entry]:
    """Run faults in worker processes with progress; stored entries of the same source are kept."""
    entries = {entry.fault: entry for entry in load(store)}
    digests = {plant.name: source_digest(plant) for _, plant in work}
    kept = [entries[n] for n, d in digests.items() if n in entries and entries[n].digest == d]
    done = {entry.fault: entry for entry in kept}
    left = [(stage, plant) for stage, plant in work if plant.name not in done]
    with (
        Progress(console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(workers) as threads,
    ):
        task = bar.add_task("faults", total=len(work), completed=len(done))
        pending = [threads.submit(_alone, plant, stage, time_limit) for stage, plant in left]
        for future in as_completed(pending):
            entry = future.result()
            done[entry.fault] = entry
            if store is not None:
                add(entry, store)
            bar.advance(task)
    return [done[plant.name] for _, plant in work]


def add(entry: Entry, store: Path) -> None:
    """Add an entry on a line of its own, also after a line that an interruption cut short."""
    store.parent.mkdir(parents=True, exist_ok=True)
    old = store.read_text(encoding="utf-8") if store.exists() else ""
    with store.open("a", encoding="utf-8") as file:
        file.write("\n" * (old != "" and not old.endswith("\n")) + json.dumps(asdict(entry)) + "\n")


def load(store: Path | None) -> list[Entry]:
    """Read stored entries; the last of a fault counts, and a line cut short is left out."""
    if store is None or not store.exists():
        return []
    found = []
    for line in store.read_text(encoding="utf-8").splitlines():
        try:
            found.append(Entry(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def tables(entries: Sequence[Entry]) -> tuple[Table, Table]:
    """Render a row per fault, and what was found by stage and kind of check."""
    rows = Table(title="Planted faults", title_justify="left")
    for column in ("fault", "stage", "found by", "first", "s"):
        rows.add_column(column, overflow="ellipsis", no_wrap=True, max_width=72)
    for e in entries:
        by = f"[green]{e.found_by}[/]" if e.found else "[red]NOT FOUND[/]"
        if e.found_by and not e.control:
            by = "[red]CONTROL FAILS[/]"
        rows.add_row(e.fault, e.stage, by, e.says or e.description, f"{e.seconds:.0f}")
    kinds = sorted({e.found_by for e in entries if e.found})
    kills = Table(title="Found by stage and check", title_justify="left")
    for column in ("stage", "faults", "found", *kinds):
        kills.add_column(column, justify="left" if column == "stage" else "right")
    for stage in dict.fromkeys(e.stage for e in entries):
        mine = [e for e in entries if e.stage == stage]
        by_kind = [str(sum(e.found and e.found_by == kind for e in mine)) for kind in kinds]
        kills.add_row(stage, str(len(mine)), str(sum(e.found for e in mine)), *by_kind)
    return rows, kills


def main(arguments: list[str] | None = None) -> int:
    """Run the gallery; 1 where a fault is not found or the kernel as it is fails its check."""
    parser = argparse.ArgumentParser("python -m kda_verify.faults.gallery", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="names; all if none")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_SECONDS, metavar="S",
                        help=f"seconds for one fault [{TIME_LIMIT_SECONDS:.0f}]")  # fmt: skip
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="JSON lines; stored entries are not run again")  # fmt: skip
    options = parser.parse_args(arguments)
    # Before the workers import Triton: faults are judged in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
    everything = [(stage, plant) for stage, faults in STAGES.items() for plant in faults]
    names = [plant.name for _, plant in everything]
    if unknown := [name for name in options.faults if name not in names]:
        print(f"gallery: no fault is named {', '.join(unknown)}", file=sys.stderr)
        return 2
    work = [(s, p) for s, p in everything if not options.faults or p.name in options.faults]
    entries = run(work, options.workers, options.time_limit, options.store)
    console = Console(width=None if sys.stdout.isatty() else 160)
    for table in tables(entries):
        console.print(table)
    missed = [entry for entry in entries if not entry.found]
    console.print(f"{len(entries) - len(missed)} of {len(entries)} faults found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
