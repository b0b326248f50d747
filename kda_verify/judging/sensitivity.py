"""The smallest fault that a passing case would show: the judge is asked about spoiled copies.

A right answer is spoiled by a known amount, rounded to the dtype it is stored in, and compared
again; the smallest amount that fails says what the case could have found. No kernel is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases.draw import Draw
from .answer import Answer, Expectation
from .compare import within

SIZES = (*(float(f"{digit}e{power}") for power in range(-7, 0) for digit in (1, 2, 3, 5)), 1.0)
"""Relative sizes tried, from 1e-7 to 1."""

FAULTS = ("gain", "offset", "element", "row", "head", "token")
"""What is multiplied by 1 + size: everything, one element, one row (all but the last axis fixed),
one head, one token. An offset adds size times the root mean square to everything."""


@dataclass(frozen=True)
class Part:
    """Say what one operand left in the elements of one expectation.

    Attributes:
        expectation: of the oracle.
        got: float64 values as stored.
        dtype: of the store.
    """

    expectation: Expectation
    got: Tensor
    dtype: torch.dtype

    def shows(self, spoiled: Tensor, grain: str) -> bool:
        """Whether spoiled values, once stored, fail."""
        stored = spoiled.to(self.dtype).double()
        return not within(stored, self.expectation, grain)

    def changes(self, spoiled: Tensor) -> bool:
        """Whether spoiled values are others once stored."""
        return not torch.equal(spoiled.to(self.dtype).double(), self.got)


Spoil = Callable[[float], Sequence[tuple[Part, Tensor]]]


def smallest(
    operands: Mapping[str, Tensor], answer: Answer, grain: str, seed: int
) -> dict[str, dict[str, float]]:
    """Find the smallest fault of every kind in every operand that would have failed.

    Args:
        operands: what a passing call left behind, by operand name.
        answer: the oracle's expectations.
        grain: see `compare`.
        seed: chooses the element, row, head and token.

    Returns:
        Relative size per "operand dtype" and kind, one of `SIZES` or infinity; kinds that cannot
        change the operand (all of it is zero or not finite, or it has no tokens) are left out.
    """
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(e.operand for e in answer.expectations):
        parts = []
        for expectation in answer.expectations:
            if expectation.operand == name and expectation.want.value.numel():
                tensor = operands[name]
                got = tensor[expectation.index].to(expectation.want.value.device, torch.float64)
                parts.append(Part(expectation, got, tensor.dtype))
        for kind, spoil in _spoilers(parts, Draw(seed, f"sensitivity {name}")):
            if any(part.changes(spoiled) for part, spoiled in spoil(SIZES[-1])):
                label = f"{name} {str(parts[0].dtype).removeprefix('torch.')}"
                found.setdefault(label, {})[kind] = _first(spoil, grain)
    return found


def _first(spoil: Spoil, grain: str) -> float:
    """Bisect for the smallest size that fails; larger ones fail too."""
    low, high = 0, len(SIZES)
    while low < high:
        middle = (low + high) // 2
        if any(part.shows(spoiled, grain) for part, spoiled in spoil(SIZES[middle])):
            high = middle
        else:
            low = middle + 1
    return SIZES[low] if low < len(SIZES) else float("inf")


def _spoilers(parts: Sequence[Part], draw: Draw) -> list[tuple[str, Spoil]]:
    counts = [int((part.got.isfinite() & (part.got != 0)).sum()) for part in parts]
    if not sum(counts):
        return []
    scale = torch.cat([p.got[p.got.isfinite()] for p in parts]).square().mean().sqrt()
    nth = draw.integer("element", 0, sum(counts))
    place = 0
    while nth >= counts[place]:
        nth -= counts[place]
        place += 1
    chosen = parts[place]
    at = (chosen.got.isfinite() & (chosen.got != 0)).nonzero()[nth].tolist()
    token, head = chosen.expectation.token_axis, chosen.expectation.head_axis
    axes = {"element": range(len(at)), "row": range(len(at) - 1), "head": [head]}
    if token is not None:
        axes["token"] = [token]

    def local(kept: Sequence[int]) -> Spoil:
        index = tuple(at[axis] if axis in kept else slice(None) for axis in range(len(at)))

        def spoil(size: float) -> Sequence[tuple[Part, Tensor]]:
            spoiled = chosen.got.clone()
            spoiled[index] *= 1 + size
            return [(chosen, spoiled)]

        return spoil

    return [
        ("gain", lambda size: [(p, p.got * (1 + size)) for p in parts]),
        ("offset", lambda size: [(p, p.got + size * scale) for p in parts]),
        *[(kind, local(list(kept))) for kind, kept in axes.items()],
    ]
