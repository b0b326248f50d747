"""Regions of the space of cases that a run must reach, each with a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


REGIONS: dict[str, Callable[[Case], bool]] = {
    "empty request beside others": lambda c: 0 in c.lengths and max(c.lengths) > 0,
    "only empty requests": lambda c: max(c.lengths) == 0,
    "single token": lambda c: 1 in c.lengths,
    "ragged": lambda c: len(set(c.lengths)) > 1,
    "full capacity": lambda c: max(c.lengths) == c.capacity > 1,
    "padding among live requests": lambda c: 0 < len(c.padding) < c.requests,
    "all padding": lambda c: len(c.padding) == c.requests,
    "rows nobody owns": lambda c: c.slack_rows > 0,
    "K not a power of two": lambda c: not _is_power_of_two(c.size_k),
    "V not a power of two": lambda c: not _is_power_of_two(c.size_v),
    "K below V": lambda c: c.size_k < c.size_v,
    "K above V": lambda c: c.size_k > c.size_v,
    "grouped value heads": lambda c: c.group > 1 and c.heads > 1,
    "packed rows": lambda c: c.rows == "packed",
    "rows with gaps": lambda c: c.rows == "pitched",
    "interleaved pools": lambda c: c.pool == "envelope",
    "pitched pools": lambda c: c.pool == "pitched",
    "transposed conv pool": lambda c: c.conv_pool == "transposed" and c.conv,
    "strided indices": lambda c: c.index_stride > 1,
    "rings and snapshots": lambda c: {"rings", "snapshots"} <= set(c.records),
    "nothing recorded": lambda c: c.operation == "verify" and not c.records,
    "output norm": lambda c: c.out_norm,
    "caller's out": lambda c: c.out_given,
    "bf16": lambda c: c.dtype == "bfloat16",
    "fp16": lambda c: c.dtype == "float16",
    "conv given": lambda c: c.operation == "verify" and not c.conv,
    "no q/k norm": lambda c: not c.qk_norm,
    "tracked slot": lambda c: c.track,
    "several layers": lambda c: c.layers > 1,
    "slot 0 null": lambda c: c.null_block == 0 and c.operation == "commit",
    "state K-major": lambda c: c.operation == "recurrent" and c.state_layout == "kv",
    "batched sequences": lambda c: c.batched and c.requests > 1,
    "exact verify": lambda c: c.exact and c.operation == "verify",
    "exact commit": lambda c: c.exact and c.operation == "commit",
    "exact sequences": lambda c: c.exact and c.operation == "recurrent",
    "huge poison": lambda c: c.poison == "huge",
}
for field, names in (
    ("keys", KEYS), ("gates", GATES), ("taps", TAPS), ("betas", BETAS), ("values", VALUES),
    ("states", STATES), ("gate_form", GATE_FORMS), ("beta_form", BETA_FORMS),
):  # fmt: skip
    for name in names:
        REGIONS[f"{field} {name}"] = lambda c, f=field, n=name: getattr(c, f) == n  # type: ignore[misc]


def coverage(cases: Iterable[Case]) -> dict[str, int]:
    """Count the cases in every region."""
    counts = dict.fromkeys(REGIONS, 0)
    for case in cases:
        for name, holds in REGIONS.items():
            counts[name] += holds(case)
    return counts
