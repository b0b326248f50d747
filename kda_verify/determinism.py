"""Whether a kernel gives the same bits every time, whatever was called before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .cases.build import Built, build
from .cases.case import Case
from .cases.layout import SEED_PERIOD
from .judging.judge import judge
from .judging.verdict import Outcome, Verdict
from .operations import facts
from .subjects.base import Subject

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def repeat(case: Case, subject: Subject, device: str = "cpu", times: int = 3) -> Verdict:
    """Call a subject on the same operands several times and compare every byte.

    The operands are restored between calls, at the same addresses; on a GPU unrelated work runs
    on another stream meanwhile, since races show under load.

    Args:
        case: what to run; it must be supported.
        subject: whose kernel.
        device: where.
        times: calls in all.
    """
    built = build(case, device)
    built.frame.snapshot()
    first = _bits(built, subject, device)
    for attempt in range(1, times):
        built.frame.restore()
        if problem := _other(first, _bits(built, subject, device)):
            return _failed(subject, case, f"call {attempt + 1} of {times}", *problem)
    return Verdict(Outcome.PASS, subject.name, case)


def in_any_order(case: Case, subject: Subject, device: str = "cpu") -> Verdict:
    """Call a subject on other operands in between; they too are judged, against the oracle.

    The others differ from the case where a launcher might remember too little: contents at the
    same addresses (offsets and indices among them) or other numbers with them, dtype, layout,
    number of requests, capacity.

    Args:
        case: what to run; it must be supported.
        subject: whose kernel.
        device: where.

    Returns:
        The first failure: of the case after the others, of other contents at its addresses, or of
        one of the others by itself.
    """
    built = build(case, device)
    built.frame.snapshot()
    first = _bits(built, subject, device)
    for other in others(case):
        if subject.claims.refusal(other):
            continue
        verdict = judge(other, subject, device)
        if verdict.failed:
            return verdict
    for what, other in (("contents", other_contents(case)), ("numbers", other_numbers(case))):
        if subject.claims.refusal(other):
            continue
        elsewhere = build(other, device)
        left = _bits(elsewhere, subject, device)
        elsewhere = build(other, device)
        # What is remembered may be the last call alone: let that be one at the same addresses.
        built.frame.restore()
        subject.call(built)
        built.frame.adopt(elsewhere.frame)
        here = replace(elsewhere, arguments=_moved(elsewhere, built), frame=built.frame)
        if problem := _other(left, _bits(here, subject, device)):
            return _failed(subject, other, f"new {what} at old addresses", *problem)
        verdict = judge(other, subject, device)
        if verdict.failed:
            return verdict
    built.frame.restore()
    if problem := _other(first, _bits(built, subject, device)):
        return _failed(subject, case, "the call after others", *problem)
    return Verdict(Outcome.PASS, subject.name, case)


def others(case: Case) -> Iterator[Case]:
    """List cases that share much with a case, each different in one respect."""
    yield replace(case, dtype="float32" if case.dtype == "bfloat16" else "bfloat16")
    yield replace(case, rows="separate" if case.rows == "packed" else "packed")
    yield replace(case, pool="dense" if case.pool != "dense" else "pitched")
    if case.requests > 1:
        padding = tuple(n for n in case.padding if n < case.requests - 1)
        yield replace(case, lengths=case.lengths[:-1], padding=padding)
    if facts(case.operation).bounded:
        yield replace(case, capacity=case.capacity + 1 if case.capacity < 16 else 8,
                      lengths=tuple(min(n, 8) for n in case.lengths))  # fmt: skip


def other_contents(case: Case) -> Case:
    """Return a case whose operands lie the same and hold other numbers, lengths and slots."""
    last = case.requests - 1
    padding = tuple(last - n for n in reversed(case.padding))
    return replace(case, lengths=case.lengths[::-1], padding=padding, seed=case.seed + SEED_PERIOD)


def other_numbers(case: Case) -> Case:
    """Return a case that gives the same operands with another scale and another gate floor."""
    scale = 0.75 if case.scale is None else None
    return replace(case, scale=scale, lower_bound=1.5 * case.lower_bound)


def _moved(call: Built, home: Built) -> dict[str, object]:
    """Return the arguments of a call with its tensors at the addresses of another."""
    return {
        name: home.arguments[name] if isinstance(value, Tensor) else value
        for name, value in call.arguments.items()
    }


def _bits(built: Built, subject: Subject, device: str) -> dict[str, Tensor]:
    """Call, and copy all operands as integers: NaN equals itself, zero differs from -zero."""
    with _load(device):
        returned = subject.call(built)
    tensors = {k: v for k, v in built.arguments.items() if isinstance(v, Tensor)}
    return {
        name: x.detach().view(_INTEGERS[x.itemsize]).cpu().clone()
        for name, x in {**tensors, **returned}.items()
    }


def _other(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> tuple[str, int] | None:
    """Find the first operand and element whose bits differ."""
    for name, before in one.items():
        if not torch.equal(before, two[name]):
            return name, int((before != two[name]).flatten().nonzero()[0])
    return None


def _failed(subject: Subject, case: Case, which: str, name: str, place: int) -> Verdict:
    detail = f"{which} gave other bits, element {place}"
    return Verdict(Outcome.INCORRECT, subject.name, case, where=name, detail=detail)


class _load:
    """Keep a GPU busy on another stream while a kernel runs."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> None:
        if self.device == "cpu":
            return
        self.stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self.stream):
            a = torch.ones(1024, 1024, device=self.device)
            for _ in range(8):
                a = a @ a * 1e-3

    def __exit__(self, *_: object) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()
