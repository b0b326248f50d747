"""Layouts: the placements of rows, pools, scratch and index vectors that a case asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .arena import Placement, dense
from .case import Case

ACTIVATION = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

SEED_PERIOD = 6
"""Seeds that differ by this lay operands out alike; packed rows take odd steps and starts of it."""


@dataclass(frozen=True)
class Item:
    """Describe what one slot (or scratch row) of a pool holds.

    Attributes:
        name: the pool's argument name.
        shape: of one slot.
        dtype: of its elements.
        order: axes of `shape` from the slowest to the fastest in memory; row-major when None.
        multiple: the slot pitch and the offset are multiples of this many elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None = None
    multiple: int = 1

    def strides(self) -> tuple[int, ...]:
        """Return the strides inside one slot."""
        order = self.order or tuple(range(len(self.shape)))
        by_rank = dense([self.shape[axis] for axis in order])
        return tuple(by_rank[order.index(axis)] for axis in range(len(self.shape)))

    def numel(self) -> int:
        """Return the elements of one slot."""
        return math.prod(self.shape)


def row_axes(case: Case) -> tuple[int, int]:
    """Return the two leading axes of a row operand: (1, T), or (N, L) when batched."""
    if case.operation == "recurrent" and case.batched:
        return case.requests, case.lengths[0]
    return 1, case.tokens


def activations(case: Case, names: Sequence[str]) -> list[list[Placement]]:
    """Place q, k and v: views of one packed matrix, or three dense tensors."""
    lead, dtype = row_axes(case), ACTIVATION[case.dtype]
    heads = (case.heads, case.heads, case.heads_v)
    sizes = (case.size_k, case.size_k, case.size_v)
    inner = list(zip(heads, sizes, strict=True))
    if case.rows == "separate":
        shapes = [(*lead, *shape) for shape in inner]
        return [
            [Placement(name, shape, dense(shape), dtype)]
            for name, shape in zip(names, shapes, strict=True)
        ]
    # Odd padding and an odd start: neither the pitch nor the pointer is aligned beyond one element.
    pitch = sum(h * d for h, d in inner) + 3 + case.seed % 2
    first = 1 + case.seed % 3
    together = []
    for name, (h, d) in zip(names, inner, strict=True):
        strides = (lead[1] * pitch, pitch, d, 1)
        together.append(Placement(name, (*lead, h, d), strides, dtype, first * dtype.itemsize))
        first += h * d
    return [together]


def rows(case: Case, name: str, inner: tuple[int, ...], dtype: torch.dtype) -> Placement:
    """Place an operand with one entry per row; packed cases give it a free row pitch too."""
    lead, size = row_axes(case), math.prod(inner)
    pitch = size if case.rows == "separate" else size + 3
    strides = (lead[1] * pitch, pitch, *dense(inner))
    return Placement(name, (*lead, *inner), strides, dtype)


def plain(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Placement:
    """Place a dense operand."""
    return Placement(name, shape, dense(shape), dtype)


def index(case: Case, name: str, size: int) -> Placement:
    """Place an index vector: one column of a wider matrix when the stride is over one."""
    return Placement(name, (size,), (case.index_stride,), torch.int32)


def weights(case: Case, name: str, shape: tuple[int, ...]) -> Placement:
    """Place an fp32 weight, [n] or [channels, taps], with the gaps of an index vector."""
    strides = dense(shape)
    gap = case.index_stride - 1
    return Placement(name, shape, (strides[0] + gap, *strides[1:]), torch.float32)


def pools(case: Case, items: Sequence[Item], slots: int) -> list[list[Placement]]:
    """Place per-slot pools: each dense or pitched in its own arena, or all in one envelope."""
    if case.pool == "envelope":
        return [_envelope(case, items, slots)]
    return [[_pool(case, item, slots)] for item in items]


def scratch(case: Case, item: Item, count: int, depth: int) -> Placement:
    """Place scratch rows [count, depth, *item]; pitched cases leave gaps after token and row."""
    loose = case.pool != "dense"
    token = _pitch(item, loose)
    row = depth * token + (item.multiple if loose else 0)
    shape, strides = (count, depth, *item.shape), (row, token, *item.strides())
    if not case.layers:
        return Placement(item.name, shape, strides, item.dtype)
    layer = count * row + item.multiple
    return Placement(item.name, (case.layers, *shape), (layer, *strides), item.dtype)


def state_item(case: Case, name: str) -> Item:
    """Describe a slot of the state pool in the case's layout; its block is dense."""
    inner = (case.size_v, case.size_k)
    if case.operation == "recurrent" and case.state_layout == "kv":
        inner = (case.size_k, case.size_v)
    return Item(name, (case.heads_v, *inner), torch.float32, multiple=4)


def ring_items(case: Case, names: Sequence[str], depth: int) -> list[Item]:
    """Describe a slot of the rings of v, k, log decay and beta; token-major in pitched pools."""
    dtype = ACTIVATION[case.dtype]
    order = (1, 0, 2) if case.pool == "pitched" else None
    v, k, decay, beta = names
    return [
        Item(v, (case.heads_v, depth, case.size_v), dtype, order),
        Item(k, (case.heads, depth, case.size_k), dtype, order),
        Item(decay, (case.heads_v, depth, case.size_k), torch.float32, order),
        Item(beta, (case.heads_v, depth), torch.float32),
    ]


def history_items(case: Case, prefix: str) -> list[Item]:
    """Describe a slot of the conv histories of q, k and v: [C, 3], or its transposed view."""
    dtype = ACTIVATION[case.dtype]
    order = (1, 0) if case.conv_pool == "transposed" else None
    channels = (case.heads * case.size_k, case.heads * case.size_k, case.heads_v * case.size_v)
    return [
        Item(f"{prefix}_{x}", (size, 3), dtype, order)
        for x, size in zip("qkv", channels, strict=True)
    ]


def _pitch(item: Item, loose: bool) -> int:
    """Return a slot pitch: the least allowed, or the next larger that is no multiple of 16."""
    pitch = -(-(item.numel() + loose) // item.multiple) * item.multiple
    if not loose:
        return pitch
    return pitch if pitch % 16 else pitch + item.multiple


def _pool(case: Case, item: Item, slots: int) -> Placement:
    loose = case.pool == "pitched"
    pitch = _pitch(item, loose)
    start = item.multiple * item.dtype.itemsize if loose else 0
    shape, strides = (slots, *item.shape), (pitch, *item.strides())
    if case.layers:
        layer = slots * pitch + item.multiple
        shape, strides = (case.layers, *shape), (layer, *strides)
    return Placement(item.name, shape, strides, item.dtype, start)


def _envelope(case: Case, items: Sequence[Item], slots: int) -> list[Placement]:
    """Interleave all pools, slot by slot, as views of one byte storage.

    Rows are multiples of 16 bytes (four fp32 elements) but not of 64, and a gap that belongs to
    no pool follows every member.
    """
    starts, used = [], 16
    for item in items:
        unit = max(item.multiple * item.dtype.itemsize, 4)
        used = -(-used // unit) * unit
        starts.append(used)
        used += item.numel() * item.dtype.itemsize + 4
    row = -(-used // 16) * 16
    row += 16 if row % 64 == 0 else 0
    layer = slots * row + 48
    placements = []
    for item, start in zip(items, starts, strict=True):
        width = item.dtype.itemsize
        shape, strides = (slots, *item.shape), (row // width, *item.strides())
        if case.layers:
            shape, strides = (case.layers, *shape), (layer // width, *strides)
        placements.append(Placement(item.name, shape, strides, item.dtype, start))
    return placements
