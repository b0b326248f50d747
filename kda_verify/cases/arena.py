"""Arenas: operands carved out of larger poisoned storages, and the frame that watches them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64
MIN_GUARD, MAX_GUARD = 4096, 4 << 20
POISON_INDEX = 2**31 - 1
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Placement:
    """Say where one operand lies in its arena.

    Attributes:
        name: the argument it is passed as.
        shape, strides: of the view; strides in elements of `dtype`.
        dtype: of the view.
        start: bytes from the end of the leading guard zone to the first element.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    start: int = 0

    def end(self) -> int:
        """Return the bytes from the end of the leading guard zone to past the last element."""
        if 0 in self.shape:
            return self.start
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.start + (last + 1) * self.dtype.itemsize


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a shape."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Arena:
    """Hold operands in one storage, with a guard zone before the first and after the last.

    A guard zone spans at least two leading strides, so an index that is off by one or two slots,
    rows or requests still lands in it.

    Args:
        placements: the operands; they must share no element.
        poison: "nan", "huge" or "zeros" (none); fills the whole storage. Index vectors get
            2**31 - 1 for one of the first two.
    """

    def __init__(self, placements: Sequence[Placement], poison: str) -> None:
        self.placements = tuple(placements)
        widest = max(
            p.dtype.itemsize * max(p.strides, default=0) for p in placements if 0 not in p.shape
        ) if any(0 not in p.shape for p in placements) else 0  # fmt: skip
        self.guard = _round_up(min(max(MIN_GUARD, 2 * widest), MAX_GUARD))
        size = _round_up(2 * self.guard + max(p.end() for p in placements))
        self.storage = torch.empty(size, dtype=torch.uint8)
        narrowest = min((p.dtype for p in placements), key=lambda dtype: dtype.itemsize)
        if poison == "zeros":
            self.storage.zero_()
        elif not narrowest.is_floating_point:
            self.storage.view(torch.int32).fill_(POISON_INDEX)
        elif poison == "nan":
            # All bits set is a NaN in every floating-point format, so dtypes can share the bytes.
            self.storage.fill_(0xFF)
        else:
            # The largest bf16 or fp16 twice over is a large finite fp32 number too.
            largest = 3e38 if narrowest == torch.float32 else torch.finfo(narrowest).max
            self.storage.view(narrowest).fill_(largest)

    def to(self, device: torch.device | str) -> Arena:
        """Return the same arena on a device, bit for bit."""
        moved = object.__new__(Arena)
        moved.placements, moved.guard = self.placements, self.guard
        moved.storage = self.storage.to(device)
        return moved

    def view(self, name: str) -> Tensor:
        """Return the named operand, a view of the storage."""
        placement = next(p for p in self.placements if p.name == name)
        return self._over(self.storage, placement, placement.dtype)

    def views(self) -> list[Tensor]:
        """Return every operand, in the order of the placements."""
        return [self._over(self.storage, p, p.dtype) for p in self.placements]

    def trespasses(
        self, before: Tensor, owned: Mapping[str, Tensor], limit: int
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Return the elements changed since `before` outside the owned ones; see `Frame`."""
        changed = (self.storage != before).view(torch.uint8)
        if not bool(changed.any()):
            return []
        for p in self.placements:
            if p.name in owned:
                mask = owned[p.name].to(changed.device).expand(p.shape)
                self._elements(changed, p).masked_fill_(mask, 0)
        found: list[tuple[str, tuple[int, ...]]] = []
        for p in self.placements:
            elements = self._elements(changed, p)
            hits = (elements != 0).nonzero()[: limit - len(found)]
            found += [(p.name, tuple(index)) for index in hits.tolist()]
            elements.zero_()
        stray = changed.nonzero()[: 8 * limit, 0] - self.guard
        guards = (self._nearest(offset) for offset in stray.tolist())
        return [*found, *dict.fromkeys(guards)][:limit]

    def _over(self, storage: Tensor, placement: Placement, dtype: torch.dtype) -> Tensor:
        first = (self.guard + placement.start) // dtype.itemsize
        return storage.view(dtype).as_strided(placement.shape, placement.strides, first)

    def _elements(self, changed: Tensor, placement: Placement) -> Tensor:
        return self._over(changed, placement, _SAME_WIDTH[placement.dtype.itemsize])

    def _nearest(self, offset: int) -> tuple[str, tuple[int, ...]]:
        """Name the guard a stray byte lies in, and its element offset from that operand."""

        def distance(p: Placement) -> int:
            return max(p.start - offset, offset - p.end() + 1, 0)

        nearest = min(self.placements, key=distance)
        index = (offset - nearest.start) // nearest.dtype.itemsize
        return f"guard of {nearest.name}", (index,)


class Frame:
    """Know every operand's arena, and find the bytes that a call had no right to change.

    Args:
        arenas: of one call; no operand name occurs twice.
    """

    def __init__(self, arenas: Iterable[Arena]) -> None:
        self.arenas = tuple(arenas)
        names = [p.name for arena in self.arenas for p in arena.placements]
        if len(set(names)) != len(names):
            raise ValueError(f"`arenas` must hold distinct operands, got {sorted(names)}")
        self._before: list[Tensor] | None = None

    def views(self) -> dict[str, Tensor]:
        """Return every operand by argument name."""
        return {p.name: arena.view(p.name) for arena in self.arenas for p in arena.placements}

    def snapshot(self) -> None:
        """Remember every byte of every arena."""
        self._before = [arena.storage.clone() for arena in self.arenas]

    def restore(self) -> None:
        """Put every byte back as it was at the snapshot."""
        for arena, before in zip(self.arenas, self._remembered(), strict=True):
            arena.storage.copy_(before)

    def adopt(self, other: Frame) -> None:
        """Take over every byte of another frame whose operands lie the same.

        Raises:
            ValueError: they do not.
        """
        mine, theirs = ([a.placements for a in f.arenas] for f in (self, other))
        if mine != theirs:
            raise ValueError("`other` must place the same operands alike, got another layout")
        for arena, source in zip(self.arenas, other.arenas, strict=True):
            arena.storage.copy_(source.storage)

    def trespasses(
        self, owned: Mapping[str, Tensor], limit: int = 64
    ) -> list[tuple[str, tuple[int, ...]]]:
        """Find what changed since the snapshot outside the owned elements.

        Args:
            owned: by operand name, a bool tensor (broadcastable to the operand's shape) that is
                true where the call may write; operands left out may not change at all.
            limit: report at most this many elements per arena.

        Returns:
            (operand, index) for a changed element of an operand, and ("guard of X", (offset,))
            for one that belongs to none, with the element offset from the first element of X.

        Raises:
            ValueError: no snapshot yet, or an owned name that is no operand.

        Numerics: compares bytes, so NaN and the sign of zero count.
        """
        names = {p.name for arena in self.arenas for p in arena.placements}
        if unknown := sorted(set(owned) - names):
            raise ValueError(f"`owned` must name operands of the frame, got {unknown}")
        pairs = zip(self.arenas, self._remembered(), strict=True)
        return [
            found for arena, before in pairs for found in arena.trespasses(before, owned, limit)
        ]

    def _remembered(self) -> list[Tensor]:
        if self._before is None:
            raise ValueError("`snapshot` must come before a comparison, got no snapshot")
        return self._before


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
