"""What acceptance rules find of the planted faults, on drawn cases and on poorer ones.

    python -m kda_verify.faults.detection --store build/detection.jsonl --write docs/detection.md

Every fault runs once per case, in a copy of the kernels; our judge, what is left of it without one
of its parts, and every published rule look at the same answers. The unplanted kernel runs on the
same cases: what a rule rejects there is a false alarm.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from kda_ref import Precision

from .. import summary
from ..cases.build import Built, build
from ..cases.case import Case
from ..judging.answer import Answer
from ..judging.compare import compare
from ..judging.expect import expect
from ..judging.judge import examine
from ..judging.verdict import Outcome
from ..markers import replace_between
from ..processes import worker_pool
from ..subjects import Subject, ours
from ..subjects.base import effective_precision, poisoned_allocations
from . import store
from .case_sets import CASE_SETS, GENERATED, NOMINAL, cases_of
from .catalogue import FAULTS
from .gallery import source_digest
from .planted import PACKAGE, Plant, planted
from .published import CRITERIA

OURS, NO_FRAME, OUTPUT_ONLY = "kda-verify", "no frame", "output only"
JUDGES = (OURS, NO_FRAME, OUTPUT_ONLY, *(criterion.name for criterion in CRITERIA))
PUBLISHED = (OURS, *(criterion.name for criterion in CRITERIA))
BEGIN = "<!-- {0}: begin (python -m kda_verify.faults.detection --write docs/detection.md) -->"
END = "<!-- {0}: end -->"
SHOWN = tuple(plant for plant in FAULTS if plant.operation in ours.GENERAL)
"""Faults of a general operation: no case shows one of the contract, and drop-ins have their own."""


@dataclass(frozen=True)
class Row:
    """What every judge said of one kernel on one set of cases.

    Attributes:
        fault: name of the plant; empty for the kernel as it is.
        operation: whose kernel.
        kind: name of the case set.
        cases: how many were judged; a fault is done with when every judge has found it.
        rejected: numbers of the cases rejected, by judge; -1 stands for a process that died.
        digest: of all source that decides the row.
    """

    fault: str
    operation: str
    kind: str
    cases: int
    rejected: Mapping[str, Sequence[int]]
    digest: str = ""


@cache
def _answer(case: Case, precision: Precision) -> Answer:
    """Ask the oracle once for all faults that a process judges."""
    return expect(build(case), precision)


def opinions(
    built: Built, returned: Mapping[str, Tensor], answer: Answer, subject: Subject
) -> dict[str, bool]:
    """Say who accepts what a call left behind."""
    tensors = {k: v for k, v in built.arguments.items() if isinstance(v, Tensor)}
    left = {**tensors, **returned}
    accepted = {c.name: c.accepts(left, answer) for c in CRITERIA}
    outcome = examine(built, returned, answer, subject).outcome

    def passes(part: Answer) -> bool:
        return compare(left, part, subject.claims.grain).outcome == Outcome.PASS

    output = tuple(e for e in answer.expectations if e.operand == "out") or answer.expectations
    numbers_only = outcome in (Outcome.INCORRECT, Outcome.NON_FINITE)
    accepted[OURS] = outcome == Outcome.PASS
    accepted[NO_FRAME] = accepted[OURS] or (outcome == Outcome.WROTE_OUTSIDE and passes(answer))
    accepted[OUTPUT_ONLY] = accepted[OURS] or (
        numbers_only and passes(replace(answer, expectations=output))
    )
    return accepted


def judge_all(
    subject: Subject, cases: Iterable[Case], fault: str, kind: str, control: Row | None = None
) -> Row:
    """Run a kernel on cases and ask every judge.

    Args:
        subject: whose kernel.
        cases: what to run.
        fault: name of the plant.
        kind: name of the case set.
        control: of the kernel as it is; with it, a fault is done with when all have found it.
    """
    rejected: dict[str, list[int]] = {name: [] for name in JUDGES}
    count, precision = 0, effective_precision(subject.claims)
    for number, case in enumerate(cases):
        if control is not None and all(_finds(rejected, control, name) for name in JUDGES):
            break
        if subject.claims.refusal(case):
            continue
        answer = _answer(case, precision)
        if not answer.in_range:
            continue
        count += 1
        built = build(case)
        built.frame.snapshot()
        poison = nullcontext() if case.poison == "zeros" else poisoned_allocations()
        try:
            with poison:
                returned = subject.call(built)
        except Exception:  # whatever a kernel raises, every suite sees it
            accepted = dict.fromkeys(JUDGES, False)
        else:
            accepted = opinions(built, returned, answer, subject)
        for name in JUDGES:
            if not accepted[name]:
                rejected[name].append(number)
    return Row(fault, subject.operation, kind, count, rejected)


def _finds(rejected: Mapping[str, Sequence[int]], control: Row, judge: str) -> bool:
    return bool(set(rejected[judge]) - set(control.rejected[judge]))


def run_fault(
    plant: Plant | None, operation: str, count: int, controls: Sequence[Row]
) -> list[Row]:
    """Judge one fault, or none, on every case set; meant for a process of its own."""
    subject_name = ours.GENERAL[operation]
    with planted(plant) if plant else nullcontext(PACKAGE) as package:
        subject, rows = ours.subject(subject_name, package), []
        for kind in (s.name for s in CASE_SETS):
            mine = (r for r in controls if (r.operation, r.kind) == (operation, kind))
            control = next(mine, None)
            cases = cases_of(operation, kind, count)
            rows.append(judge_all(subject, cases, plant.name if plant else "", kind, control))
    return rows


def measure(
    faults: Sequence[Plant], count: int, workers: int, keep: Path | None = None
) -> list[Row]:
    """Judge the kernels as they are, then faults, in worker processes, with progress.

    Stored rows of the same source are kept. A fault that ends its process is found by everyone.
    """
    digests = {plant.name: _digest(plant, count) for plant in faults} | {"": _digest(None, count)}
    known = [r for r in store.load(keep, Row) if digests.get(r.fault) == r.digest]
    pools: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(workers):
        pools.put(worker_pool(1))

    def run(plant: Plant | None, operation: str, controls: Sequence[Row]) -> list[Row]:
        fault, pool = plant.name if plant else "", pools.get()
        try:
            rows = pool.submit(run_fault, plant, operation, count, controls).result()
        except BrokenProcessPool:
            pool = worker_pool(1)
            died = {name: [-1] for name in JUDGES}
            rows = [Row(fault, operation, s.name, 0, died) for s in CASE_SETS]
        finally:
            pools.put(pool)
        rows = [replace(row, digest=digests[fault]) for row in rows]
        for row in rows:
            if keep is not None:
                store.add(asdict(row), keep)
        return rows

    def finish(work: Sequence[tuple[Plant | None, str]], controls: Sequence[Row]) -> list[Row]:
        rows: list[Row] = []
        done = {(r.fault, r.operation) for r in known}
        for plant, operation in work:
            fault = plant.name if plant else ""
            rows += [r for r in known if (r.fault, r.operation) == (fault, operation)]
        left = [w for w in work if (w[0].name if w[0] else "", w[1]) not in done]
        bar.advance(task, len(work) - len(left))
        for future in as_completed([threads.submit(run, *w, controls) for w in left]):
            rows += future.result()
            bar.advance(task)
        return rows

    try:
        with (
            Progress(console=Console(stderr=True)) as bar,
            ThreadPoolExecutor(workers) as threads,
        ):
            task = bar.add_task("faults", total=len(ours.GENERAL) + len(faults))
            controls = finish([(None, operation) for operation in ours.GENERAL], ())
            rows = finish([(plant, plant.operation) for plant in faults], controls)
    finally:
        while not pools.empty():
            pools.get().shutdown()
    return sorted([*controls, *rows], key=lambda row: (row.kind, row.operation, row.fault))


def _digest(plant: Plant | None, count: int) -> str:
    """Digest what decides a row: the kernel's source, the checks, the rules, the case sets."""
    here = Path(__file__).parent
    rules = [(here / f"{m}.py").read_text() for m in ("detection", "case_sets", "published")]
    unplanted = Plant("", "mtp", "return out", "return out", "")
    parts = ("cases/", "judging/", "operations/", "subjects/", "plan.py")
    text = "\0".join([source_digest(plant or unplanted, parts), str(count), *rules])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def found(row: Row, rows: Sequence[Row], judge: str) -> bool:
    """Whether a judge rejects a fault on a case on which it accepts the kernel as it is."""
    control = next(
        r for r in rows if not r.fault and (r.operation, r.kind) == (row.operation, row.kind)
    )
    return _finds(row.rejected, control, judge)


def counted(rows: Sequence[Row], kind: str, judge: str) -> str:
    """Render faults found and false alarms of a judge on a case set as two cells."""
    mine = [row for row in rows if row.fault and row.kind == kind]
    controls = [row for row in rows if not row.fault and row.kind == kind]
    alarms = sum(len(row.rejected[judge]) for row in controls)
    finds = sum(found(row, rows, judge) for row in mine)
    return f"{finds} of {len(mine)} | {alarms} of {sum(row.cases for row in controls)}"


def published_table(rows: Sequence[Row]) -> str:
    """Render, per rule, faults found and false alarms as a Markdown table."""
    says = {OURS: "error budget, exact frame", **{c.name: c.says for c in CRITERIA}}
    kinds = (GENERATED, NOMINAL)
    heads = " | ".join(f"found, {k} cases | false alarms, {k} cases" for k in kinds)
    lines = [f"| rule | what it asks | {heads} |", "|---|---|" + "---|" * 2 * len(kinds)]
    for judge in PUBLISHED:
        cells = " | ".join(counted(rows, kind, judge) for kind in kinds)
        lines.append(f"| {judge} | {says[judge]} | {cells} |")
    for kind in kinds:
        if missed := missed_by(rows, kind, OURS):
            names = ", ".join(f"`{name}`" for name in missed)
            lines += ["", f"Not found by our comparison alone on the {kind} cases: {names}."]
    return "\n".join(lines)


def missed_by(rows: Sequence[Row], kind: str, judge: str) -> list[str]:
    """Name the faults that a judge does not find on a case set."""
    mine = [row for row in rows if row.fault and row.kind == kind]
    return [row.fault for row in mine if not found(row, rows, judge)]


def ablation_table(rows: Sequence[Row]) -> str:
    """Render what our comparison finds as cases or checks are given up, as a Markdown table."""
    lines = ["| given up | found | false alarms | lost |", "|---|---|---|---|"]
    whole = set(missed_by(rows, GENERATED, OURS))
    ablations = [(s.says, s.name, OURS) for s in CASE_SETS] + [
        ("the frame: what the call does not own is not looked at", GENERATED, NO_FRAME),
        ("all comparisons but the output's", GENERATED, OUTPUT_ONLY),
    ]
    for says, kind, judge in ablations:
        lost = [name for name in missed_by(rows, kind, judge) if name not in whole]
        few = ", ".join(f"`{name}`" for name in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        lines.append(f"| {says} | {counted(rows, kind, judge)} | {few}{more} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, optionally write; 1 where our judge rejects the kernels as they are."""
    parser = argparse.ArgumentParser("python -m kda_verify.faults.detection", description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="per operation and set [40]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="JSON lines; stored rows are not run again")  # fmt: skip
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all counts")
    options = parser.parse_args(arguments)
    # Before the workers import Triton: the interpreter runs the faults one case like another.
    os.environ["TRITON_INTERPRET"] = "1"
    rows = measure(SHOWN, options.cases, options.workers, options.store)
    for name, render in (("published", published_table), ("ablation", ablation_table)):
        text = render(rows)
        print(text, end="\n\n")
        if options.write:
            replace_between(options.write, BEGIN.format(name), END.format(name), text)
    if options.json:
        data = {"environment": summary.environment("cpu"), "rows": [vars(row) for row in rows]}
        summary.write_json(data, options.json)
    alarms = [row for row in rows if not row.fault and row.rejected[OURS]]
    return int(bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
