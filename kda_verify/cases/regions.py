"""Regions of the space of cases that a run must reach, each with a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..operations import NAMES, having
from .case import (
    BETA_FORMS,
    BETAS,
    GATE_FORMS,
    GATES,
    KEYS,
    STATES,
    TAPS,
    VALUES,
    Case,
)


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def _is(field: str, value: str) -> Callable[[Case], bool]:
    return lambda case: getattr(case, field) == value


EVERY = NAMES
POOLED = having(lambda f: f.pooled)
STATEFUL = having(lambda f: f.stateful)
SEQUENCES = having(lambda f: f.sequences)


def _taking(field: str) -> tuple[str, ...]:
    """Name the operations for which a field of a case means something."""
    return having(lambda f: f.takes(field))


class Region(NamedTuple):
    """A part of the space of cases.

    Attributes:
        operations: those whose cases must reach it.
        holds: whether a case lies in it.
    """

    operations: tuple[str, ...]
    holds: Callable[[Case], bool]


REGIONS: dict[str, Region] = {
    "empty request beside others": Region(EVERY, lambda c: 0 in c.lengths and max(c.lengths) > 0),
    "only empty requests": Region(EVERY, lambda c: max(c.lengths) == 0),
    "single token": Region(EVERY, lambda c: 1 in c.lengths),
    "ragged": Region(EVERY, lambda c: len(set(c.lengths)) > 1),
    "full capacity": Region(POOLED, lambda c: max(c.lengths) == c.capacity > 1),
    "padding among live requests": Region(POOLED, lambda c: 0 < len(c.padding) < c.requests),
    "all padding": Region(("verify",), lambda c: len(c.padding) == c.requests),
    "rows nobody owns": Region(("verify",), lambda c: c.slack_rows > 0),
    "more than a block of rows nobody owns": Region(("verify",), lambda c: c.slack_rows > 16),
    "scale of zero": Region(SEQUENCES, lambda c: c.scale == 0.0),
    "K not a power of two": Region(EVERY, lambda c: not _is_power_of_two(c.size_k)),
    "V not a power of two": Region(EVERY, lambda c: not _is_power_of_two(c.size_v)),
    "K below V": Region(EVERY, lambda c: c.size_k < c.size_v),
    "K above V": Region(EVERY, lambda c: c.size_k > c.size_v),
    "grouped value heads": Region(EVERY, lambda c: c.group > 1 and c.heads > 1),
    "packed rows": Region(("verify",), lambda c: c.rows == "packed"),
    "rows with gaps": Region(("verify",), lambda c: c.rows == "pitched"),
    "interleaved pools": Region(POOLED, lambda c: c.pool == "envelope"),
    "pitched pools": Region(POOLED, lambda c: c.pool == "pitched"),
    "transposed conv pool": Region(
        _taking("conv_pool"), lambda c: c.conv_pool == "transposed" and c.conv
    ),
    "strided indices": Region(POOLED, lambda c: c.index_stride > 1),
    "rings and snapshots": Region(
        _taking("records"), lambda c: {"rings", "snapshots"} <= set(c.records)
    ),
    "nothing recorded": Region(_taking("records"), lambda c: not c.records),
    "output norm": Region(_taking("out_norm"), lambda c: c.out_norm),
    "caller's out": Region(_taking("out_given"), lambda c: c.out_given),
    "bf16": Region(EVERY, lambda c: c.dtype == "bfloat16"),
    "fp16": Region(POOLED, lambda c: c.dtype == "float16"),
    "conv given": Region(_taking("conv"), lambda c: not c.conv),
    "no q/k norm": Region(STATEFUL, lambda c: not c.qk_norm),
    "tracked slot": Region(_taking("track"), lambda c: c.track),
    "several layers": Region(_taking("layers"), lambda c: c.layers > 1),
    "slot 0 null": Region(_taking("null_block"), lambda c: c.null_block == 0),
    "state K-major": Region(_taking("state_layout"), lambda c: c.state_layout == "kv"),
    "no initial state": Region(_taking("initial"), lambda c: c.initial == "none"),
    "batched sequences": Region(_taking("batched"), lambda c: c.batched and c.requests > 1),
    "exact": Region(STATEFUL, lambda c: c.exact),
    "huge poison": Region(EVERY, lambda c: c.poison == "huge"),
}
for field, names, operations in (
    ("keys", KEYS, STATEFUL), ("gates", GATES, STATEFUL), ("taps", TAPS, _taking("taps")),
    ("betas", BETAS, STATEFUL), ("values", VALUES, STATEFUL), ("states", STATES, STATEFUL),
    ("gate_form", GATE_FORMS, SEQUENCES), ("beta_form", BETA_FORMS, SEQUENCES),
):  # fmt: skip
    for name in names:
        REGIONS[f"{field} {name}"] = Region(operations, _is(field, name))


def asked() -> list[str]:
    """Name every region of every operation that must reach it."""
    return [f"{o}: {name}" for name, region in REGIONS.items() for o in region.operations]


def coverage(cases: Iterable[Case]) -> dict[str, int]:
    """Count the cases in every region of their operation."""
    counts = dict.fromkeys(asked(), 0)
    for case in cases:
        for name, region in REGIONS.items():
            if case.operation in region.operations:
                counts[f"{case.operation}: {name}"] += region.holds(case)
    return counts
