"""Layouts: the placements of rows, pools, scratch and index vectors that a case asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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

_ALIKE = (
    ("x_q", "x_k", "x_v"), ("q", "k", "v"), ("g", "beta", "onorm_gate", "out"),
    ("w_q", "w_k", "w_v"), ("A_log", "dt_bias", "onorm_weight"), ("cs_q", "cs_k", "cs_v"),
    ("intermediate_conv_q", "intermediate_conv_k", "intermediate_conv_v"),
    ("rawv", "rawk", "gk"),
    ("replayssm_rawv", "replayssm_rawk", "replayssm_g", "replayssm_beta"),
    ("cu_seqlens", "ssm_state_indices", "intermediate_state_indices", "accept_lens",
     "mamba_track_indices", "mamba_steps_to_track"),
)  # fmt: skip
_GAPS = {name: place for alike in _ALIKE for place, name in enumerate(alike)}
"""Operands that are easily taken for one another have gaps of different widths."""


def gap(name: str) -> int:
    """Return the width of an operand's gaps, from 1 element, where its layout has gaps."""
    return 1 + _GAPS.get(name, 0)


def loose(shape: Sequence[int], order: Sequence[int], width: int) -> tuple[tuple[int, ...], int]:
    """Return strides that leave a gap after every axis, and the elements that all of it spans."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis] + width
    return tuple(strides), step


@dataclass(frozen=True)
class Item:
    """Describe what one slot (or scratch row) of a pool holds.

    Attributes:
        name: the pool's argument name.
        shape: of one slot.
        dtype: of its elements.
        order: axes of `shape` from the slowest to the fastest in memory; row-major when None.
        multiple: the slot pitch and the offset are multiples of this many elements.
        gaps: width of the gaps inside a slot; its block is dense when 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...] | None = None
    multiple: int = 1
    gaps: int = 0

    def strides(self) -> tuple[int, ...]:
        """Return the strides inside one slot."""
        return self._layout()[0]

    def extent(self) -> int:
        """Return the elements that one slot spans, gaps included."""
        return self._layout()[1]

    def _layout(self) -> tuple[tuple[int, ...], int]:
        return loose(self.shape, self.order or range(len(self.shape)), self.gaps)


def row_axes(case: Case) -> tuple[int, int]:
    """Return the two leading axes of a row operand: (1, T), or (N, L) when batched."""
    if case.batched:
        return case.requests, case.lengths[0]
    return 1, case.tokens


def activations(case: Case, names: Sequence[str]) -> list[list[Placement]]:
    """Place q, k and v: views of one packed matrix, or three tensors, dense or with gaps."""
    lead, dtype = row_axes(case), ACTIVATION[case.dtype]
    heads = (case.heads, case.heads, case.heads_v)
    sizes = (case.size_k, case.size_k, case.size_v)
    inner = list(zip(heads, sizes, strict=True))
    if case.rows != "packed":
        return [[rows(case, n, shape, dtype)] for n, shape in zip(names, inner, strict=True)]
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
    """Place an operand with one entry per row; packed cases give it a free row pitch too.

    Pitched ones leave a gap after every axis, and start one element past an aligned address.
    """
    lead, shape = row_axes(case), (*row_axes(case), *inner)
    if case.rows == "pitched":
        strides, _ = loose(shape, range(len(shape)), gap(name))
        return Placement(name, shape, strides, dtype, dtype.itemsize)
    pitch = math.prod(inner) + (2 + gap(name) if case.rows == "packed" else 0)
    return Placement(name, shape, (lead[1] * pitch, pitch, *dense(inner)), dtype)


def plain(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Placement:
    """Place a dense operand."""
    return Placement(name, shape, dense(shape), dtype)


def index(case: Case, name: str, size: int) -> Placement:
    """Place an index vector: one column of a wider matrix when the stride is over one."""
    return Placement(name, (size,), (_stride(case, name),), torch.int32)


def _stride(case: Case, name: str) -> int:
    """Return the stride of a vector of indices or weights: 1, or one of its own."""
    return case.index_stride - 1 + gap(name) if case.index_stride > 1 else 1


def weights(case: Case, name: str, shape: tuple[int, ...]) -> Placement:
    """Place an fp32 weight, [n] or [channels, taps], with the gaps of an index vector."""
    strides = dense(shape)
    first = strides[0] + _stride(case, name) - 1
    return Placement(name, shape, (first, *strides[1:]), torch.float32)


def pools(case: Case, items: Sequence[Item], slots: int) -> list[list[Placement]]:
    """Place per-slot pools: each dense or pitched in its own arena, or all in one envelope."""
    if case.pool == "envelope":
        return [_envelope(case, items, slots)]
    return [[_pool(case, item, slots)] for item in items]


def scratch(case: Case, item: Item, count: int, depth: int) -> Placement:
    """Place scratch rows [count, depth, *item]; pitched cases leave gaps after token and row."""
    has_gaps = case.pool != "dense"
    token = _pitch(item, has_gaps)
    row = depth * token + (item.multiple * gap(item.name) if has_gaps else 0)
    shape, strides = (count, depth, *item.shape), (row, token, *item.strides())
    if not case.layers:
        return Placement(item.name, shape, strides, item.dtype)
    layer = count * row + item.multiple
    return Placement(item.name, (case.layers, *shape), (layer, *strides), item.dtype)


def state_item(case: Case, name: str) -> Item:
    """Describe a slot of the state pool in the case's layout; its block is dense."""
    inner = (case.size_v, case.size_k)
    if case.state_layout == "kv":
        inner = (case.size_k, case.size_v)
    return Item(name, (case.heads_v, *inner), ACTIVATION[case.state_dtype], multiple=4)


def ring_items(case: Case, names: Sequence[str], depth: int) -> list[Item]:
    """Describe a slot of the rings of v, k, log decay and beta; token-major in pitched pools."""
    dtype = ACTIVATION[case.dtype]
    order = (1, 0, 2) if case.pool == "pitched" else None
    v, k, decay, beta = names
    items = [
        Item(v, (case.heads_v, depth, case.size_v), dtype, order),
        Item(k, (case.heads, depth, case.size_k), dtype, order),
        Item(decay, (case.heads_v, depth, case.size_k), torch.float32, order),
        Item(beta, (case.heads_v, depth), torch.float32),
    ]
    return [_with_gaps(case, item) for item in items]


def history_items(case: Case, prefix: str) -> list[Item]:
    """Describe a slot of the conv histories of q, k and v: [C, 3], or its transposed view."""
    dtype = ACTIVATION[case.dtype]
    order = (1, 0) if case.conv_pool == "transposed" else None
    channels = (case.heads * case.size_k, case.heads * case.size_k, case.heads_v * case.size_v)
    return [
        _with_gaps(case, Item(f"{prefix}_{x}", (size, 3), dtype, order))
        for x, size in zip("qkv", channels, strict=True)
    ]


def _with_gaps(case: Case, item: Item) -> Item:
    """Leave gaps inside the slots of a pitched pool."""
    return replace(item, gaps=gap(item.name)) if case.pool == "pitched" else item


def _pitch(item: Item, has_gaps: bool) -> int:
    """Return a slot pitch: the least allowed, or the next larger that is no multiple of 16."""
    pitch = -(-(item.extent() + has_gaps) // item.multiple) * item.multiple
    if not has_gaps:
        return pitch
    return pitch if pitch % 16 else pitch + item.multiple


def _pool(case: Case, item: Item, slots: int) -> Placement:
    has_gaps = case.pool == "pitched"
    pitch = _pitch(item, has_gaps)
    start = item.multiple * item.dtype.itemsize if has_gaps else 0
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
        used += item.extent() * item.dtype.itemsize + 4
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
