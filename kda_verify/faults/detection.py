"""What published acceptance rules find of the planted faults, on our cases and on nominal ones.

    python -m kda_verify.faults.detection --write docs/detection.md

Every fault runs once per case, in a copy of the kernels; our judge and every published rule look
at the same answers. The unplanted kernel runs on the same cases: what a rule rejects there is a
false alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from .. import summary
from ..cases import strategies
from ..cases.build import build
from ..cases.case import Case
from ..judging.expect import expect
from ..judging.judge import examine
from ..judging.verdict import Outcome
from ..markers import replace_between
from ..plan import drawn
from ..run import start_worker
from ..subjects import Subject, ours
from ..subjects.base import effective_precision, poisoned_allocations
from .planted import PACKAGE, Plant, planted
from .plants import PLANTS
from .published import CRITERIA

OURS = "kda-verify"
JUDGES = (OURS, *(criterion.name for criterion in CRITERIA))
KINDS = ("generated", "nominal")
BEGIN = (
    "<!-- detection: begin (python -m kda_verify.faults.detection --write docs/detection.md) -->"
)
END = "<!-- detection: end -->"


@dataclass(frozen=True)
class Row:
    """What every judge said of one kernel on one kind of cases.

    Attributes:
        fault: name of the plant; empty for the kernel as it is.
        operation: whose kernel.
        kind: "generated" or "nominal".
        cases: how many were judged.
        rejected: numbers of the cases rejected, by judge.
    """

    fault: str
    operation: str
    kind: str
    cases: int
    rejected: Mapping[str, Sequence[int]]


def nominal(case: Case) -> Case:
    """Give a case the values of common test recipes: unit normal, mild, full and dense."""
    changed = replace(
        case,
        lengths=(case.capacity,) * case.requests,
        padding=(),
        rows="separate",
        pool="dense",
        conv_pool="dense",
        index_stride=1,
        keys="random",
        gates="mild",
        taps="random",
        betas="random",
        values="unit",
        states="unit",
        poison="huge",
        spoil="none",
        slack_rows=0,
    )
    return changed


def cases_of(operation: str, kind: str, count: int) -> list[Case]:
    """Draw the cases of an operation, the same ones each time."""
    make = getattr(strategies, f"{operation}_cases")
    found = drawn(make(), count, 0)
    if kind == "nominal":
        found = [nominal(case) for case in found]
    # A planted non-finite value has no reference that a published rule could be asked about.
    return list(dict.fromkeys(replace(case, spoil="none") for case in found))


def judge_all(subject: Subject, cases: Iterable[Case], plant: str, kind: str) -> Row:
    """Run a kernel on cases and ask every judge."""
    rejected: dict[str, list[int]] = {name: [] for name in JUDGES}
    count = 0
    for number, case in enumerate(cases):
        if subject.claims.refusal(case):
            continue
        answer = expect(build(case), effective_precision(subject.claims))
        if not answer.in_range:
            continue
        count += 1
        built = build(case)
        built.frame.snapshot()
        try:
            with poisoned_allocations():
                returned = subject.call(built)
        except Exception:  # whatever a kernel raises, every suite sees it
            for numbers in rejected.values():
                numbers.append(number)
            continue
        tensors = {k: v for k, v in built.arguments.items() if isinstance(v, Tensor)}
        left = {**tensors, **returned}
        accepted = {c.name: c.accepts(left, answer) for c in CRITERIA}
        accepted[OURS] = examine(built, returned, answer, subject).outcome == Outcome.PASS
        for name in JUDGES:
            if not accepted[name]:
                rejected[name].append(number)
    return Row(plant, subject.operation, kind, count, rejected)


def run_fault(plant: Plant | None, operation: str, count: int) -> list[Row]:
    """Judge one fault, or none, on both kinds of cases; meant for a process of its own."""
    torch.set_num_threads(1)
    name = ours.GENERAL[operation]
    with planted(plant) if plant else nullcontext(PACKAGE) as package:
        subject = ours.subject(name, package)
        fault = plant.name if plant else ""
        return [judge_all(subject, cases_of(operation, k, count), fault, k) for k in KINDS]


def measure(faults: Sequence[Plant], count: int, workers: int) -> list[Row]:
    """Judge faults and controls in worker processes, with progress."""
    work: list[tuple[Plant | None, str]] = [(None, operation) for operation in ours.GENERAL]
    work += [(plant, plant.operation) for plant in faults]
    rows: list[Row] = []
    context = get_context("spawn")
    with (
        Progress(console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(workers, context, start_worker) as pool,
    ):
        task = bar.add_task("faults", total=len(work))
        pending = [pool.submit(run_fault, plant, op, count) for plant, op in work]
        for future in as_completed(pending):
            rows += future.result()
            bar.advance(task)
    return sorted(rows, key=lambda row: (row.kind, row.operation, row.fault))


def found(row: Row, rows: Sequence[Row], judge: str) -> bool:
    """Whether a judge rejects a fault on a case on which it accepts the kernel as it is."""
    control = next(
        r for r in rows if not r.fault and (r.operation, r.kind) == (row.operation, row.kind)
    )
    return bool(set(row.rejected[judge]) - set(control.rejected[judge]))


def table(rows: Sequence[Row]) -> str:
    """Render, per judge, faults found and false alarms as a Markdown table."""
    says = {OURS: "error budget, exact frame", **{c.name: c.says for c in CRITERIA}}
    heads = " | ".join(f"found, {k} cases | false alarms, {k} cases" for k in KINDS)
    lines = [f"| rule | what it asks | {heads} |", "|---|---|" + "---|" * 2 * len(KINDS)]
    faults = [row for row in rows if row.fault]
    controls = [row for row in rows if not row.fault]
    for judge in JUDGES:
        cells = []
        for kind in KINDS:
            mine = [row for row in faults if row.kind == kind]
            cells.append(f"{sum(found(row, rows, judge) for row in mine)} of {len(mine)}")
            alarms = sum(len(row.rejected[judge]) for row in controls if row.kind == kind)
            cells.append(f"{alarms} of {sum(row.cases for row in controls if row.kind == kind)}")
        lines.append(f"| {judge} | {says[judge]} | {' | '.join(cells)} |")
    for kind in KINDS:
        missed = [r.fault for r in faults if r.kind == kind and not found(r, rows, OURS)]
        if missed:
            names = ", ".join(f"`{name}`" for name in missed)
            lines += ["", f"Not found by our comparison alone on the {kind} cases: {names}."]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, optionally write; 1 where our judge rejects the kernels as they are."""
    parser = argparse.ArgumentParser("python -m kda_verify.faults.detection", description=__doc__)
    parser.add_argument("--cases", type=int, default=60, help="per operation and kind [60]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all counts")
    options = parser.parse_args(arguments)
    # Before the workers import Triton: the interpreter runs the faults one case like another.
    os.environ["TRITON_INTERPRET"] = "1"
    rows = measure(PLANTS, options.cases, options.workers)
    text = table(rows)
    print(text)
    if options.write:
        replace_between(options.write, BEGIN, END, text)
    if options.json:
        counts = [vars(row) for row in rows]
        data = {"environment": summary.environment("cpu"), "rows": counts}
        summary.write_json(data, options.json)
    alarms = [row for row in rows if not row.fault and row.rejected[OURS]]
    return int(bool(alarms))


if __name__ == "__main__":
    sys.exit(main())
