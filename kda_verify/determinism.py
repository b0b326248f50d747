"""Whether a kernel gives the same bits every time."""

from __future__ import annotations

import torch

from .cases.build import build
from .cases.case import Case
from .judging.verdict import Outcome, Verdict
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
    first: list[tuple[str, torch.Tensor]] = []
    for attempt in range(times):
        built.frame.restore()
        with _load(device):
            returned = subject.call(built)
        tensors = {k: v for k, v in built.arguments.items() if isinstance(v, torch.Tensor)}
        seen = [(name, _bits(tensor)) for name, tensor in {**tensors, **returned}.items()]
        if not first:
            first = seen
            continue
        for (name, before), (_, after) in zip(first, seen, strict=True):
            if not torch.equal(before, after):
                place = int((before != after).flatten().nonzero()[0])
                return Verdict(
                    Outcome.INCORRECT,
                    subject.name,
                    case,
                    where=name,
                    detail=f"call {attempt + 1} of {times} gave other bits, element {place}",
                )
    return Verdict(Outcome.PASS, subject.name, case)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor as integers of its width: NaN equals itself, and zero differs from -zero."""
    return tensor.detach().view(_INTEGERS[tensor.itemsize]).cpu().clone()


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
