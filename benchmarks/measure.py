"""Measure rows: judge on a row's own operands, then time what passed, then write it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .contenders import Contender
from .inputs import Inputs, allocated_bytes, draw, set_count
from .limits import Limits
from .record import NOT_SUPPORTED, NOT_TIMED, TIMED, Entry, Record, Result
from .rows import Row, bytes_moved, traffic
from .timing import Timer
from .verdict import Judge, RowVerdict

Clock = Callable[[], float]


def measure_row(
    row: Row,
    contenders: Sequence[Contender],
    *,
    run: dict[str, Any],
    limits: Limits,
    timer: Timer,
    device: str,
    free_bytes: Callable[[], int] | None = None,
) -> Result:
    """Judge every contender on one set of operands, and time those that pass on many.

    Where ours does not pass, nobody is timed: the row then says so and compares nothing.

    Args:
        row: the shape.
        contenders: ours first.
        run: of the record the row goes to; its seed decides the operands.
        limits: measured in this run.
        timer: of bound calls.
        device: where the operands live.
        free_bytes: memory that operands may take; no limit where None.
    """
    start, seed = time.perf_counter(), int(run["seed"])
    count = set_count(row)
    needed = (count + 1) * allocated_bytes(row)
    if free_bytes is not None and needed > free_bytes():
        reason = f"needs {needed / 2**30:.0f} GiB, has {free_bytes() / 2**30:.0f}"
        entries = [_entry(c, NOT_TIMED, reason) for c in contenders]
    else:
        first = draw(row, device, seed)
        verdicts = _judge(first, contenders)
        ours = verdicts[contenders[0].name]
        fit = ours is not None and ours.passed
        sets = [first]
        if fit:
            sets += [draw(row, device, seed + 1 + k) for k in range(count - 1)]
        entries = [_time(c, verdicts[c.name], sets, fit, timer) for c in contenders]
    return Result(
        row=row,
        run=run["id"],
        device=run["device"],
        traffic=traffic(row),
        limit=limits.microseconds(bytes_moved(row)),
        seed=seed,
        seconds=time.perf_counter() - start,
        entries=tuple(entries),
    )


def _judge(first: Inputs, contenders: Iterable[Contender]) -> dict[str, RowVerdict | None]:
    judge = Judge(first)
    return {c.name: None if c.refusal(first.row) else judge.judge(c) for c in contenders}


def _time(
    contender: Contender,
    verdict: RowVerdict | None,
    sets: Sequence[Inputs],
    ours_passed: bool,
    timer: Timer,
) -> Entry:
    row = sets[0].row
    if verdict is None:
        return _entry(contender, NOT_SUPPORTED, contender.refusal(row))
    if not verdict.passed:
        return _entry(contender, NOT_TIMED, verdict.reason, verdict)
    if not ours_passed:
        return _entry(contender, NOT_TIMED, "ours did not pass on this row", verdict)
    reset = restore(sets)
    try:
        calls = [contender.bind(inputs) for inputs in sets]
        timing = timer(calls, bytes_moved(row), reset)
    except Exception as problem:  # what cannot be captured is not timed, and the others are
        text = f"{type(problem).__name__}: {problem}".splitlines()[0]
        return _entry(contender, NOT_TIMED, text, verdict)
    finally:
        reset()
    return Entry(
        contender.name, contender.peer, contender.partial, contender.note,
        TIMED, "", verdict, timing,
    )  # fmt: skip


def restore(sets: Sequence[Inputs]) -> Callable[[], None]:
    """Return a function that puts the states of commits back as they are now.

    A verify changes nothing that it reads, so there is nothing to put back.
    """
    kept: list[tuple[Tensor, Tensor]] = []
    for inputs in sets:
        if not inputs.row.is_verify:
            state = inputs.built.arguments["checkpoint_state"]
            kept.append((state, state.clone()))

    def reset() -> None:
        for state, before in kept:
            state.copy_(before)

    return reset


def _entry(
    contender: Contender, status: str, reason: str, verdict: RowVerdict | None = None
) -> Entry:
    return Entry(
        contender.name, contender.peer, contender.partial, contender.note, status, reason, verdict
    )


def measure_rows(
    rows: Sequence[Row],
    measure: Callable[[Row], Result],
    record: Record,
    *,
    path: Path | None = None,
    seconds: float | None = None,
    clock: Clock = time.monotonic,
    started: float | None = None,
    shown: Callable[[Result, int], None] = lambda result, done: None,
) -> None:
    """Measure rows into a record, and keep what there is after every row.

    Args:
        rows: in order.
        measure: measures one.
        record: what they are added to; `not_reached` and `complete` say how it ended.
        path: where the record is written after every row, whole or not at all.
        seconds: stop before a row that, if as long as the longest so far, would end later.
        clock: of the budget.
        started: when the budget began; now where None.
        shown: called with every result and the number of rows done.
    """
    began = clock() if started is None else started
    longest = 0.0
    record.not_reached = [row.name for row in rows]
    for done, row in enumerate(rows):
        if seconds is not None and clock() - began + longest > seconds:
            break
        before = clock()
        result = measure(row)
        longest = max(longest, clock() - before)
        record.add(result)
        # A run that is killed leaves behind what it had not reached.
        record.not_reached = [late.name for late in rows[done + 1 :]]
        if path is not None:
            record.save(path)
        shown(result, done + 1)
    record.complete = not record.not_reached
    if path is not None:
        record.save(path)
