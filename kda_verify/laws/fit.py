"""The nearest case that a law can be asked of, and where what it says is not empty."""

from __future__ import annotations

from dataclasses import replace

from ..cases.case import Case
from ..operations import facts

ROOM = 8
"""Largest capacity a law starts from: some ask for twice as much."""


def finite(case: Case) -> Case:
    """Leave out planted non-finite values, and keep room for a larger capacity."""
    if not facts(case.operation).bounded:
        return replace(case, spoil="none")
    lengths = tuple(min(n, ROOM) for n in case.lengths)
    return replace(case, spoil="none", lengths=lengths, capacity=min(case.capacity, ROOM))


def packed(case: Case) -> Case:
    """Give sequences offsets in one row; every case will do."""
    return replace(case, batched=False)


def several(case: Case) -> Case:
    """Have three requests or more, the last of them live, in pools with room."""
    case = packed(case)
    more = max(0, 3 - case.requests)
    lengths = case.lengths + (case.capacity, max(1, case.capacity - 1))[:more]
    padding = tuple(n for n in case.padding if n != len(lengths) - 1)
    spare = max(1, case.spare_slots)
    return replace(case, lengths=lengths, padding=padding, spare_slots=spare)


def spacious(case: Case) -> Case:
    """Have two query heads or more."""
    return replace(packed(case), heads=max(case.heads, 2))


def steps(case: Case) -> Case:
    """Have a live request of two tokens or more."""
    case = packed(case)
    capacity = max(case.capacity, 2)
    lengths = (max(case.lengths[0], 2), *case.lengths[1:])
    padding = tuple(n for n in case.padding if n)
    return replace(case, lengths=lengths, capacity=capacity, padding=padding)


def wide_steps(case: Case) -> Case:
    """Have states that a call may hand to the next one unrounded, and two tokens or more."""
    return replace(steps(case), state_dtype="float32")


def uneven_capacity(case: Case) -> Case:
    """Have a capacity below the power of two that it is compiled for."""
    capacity = case.capacity if case.capacity in (3, 5, 6, 7) else 3
    return replace(case, capacity=capacity, lengths=tuple(min(n, capacity) for n in case.lengths))


def with_records(case: Case) -> Case:
    """Record everything there is, with a live request last."""
    records = ("rings", "snapshots", "windows") if case.conv else ("rings", "snapshots")
    lengths = (*case.lengths[:-1], max(1, case.lengths[-1]))
    padding = tuple(n for n in case.padding if n != case.requests - 1)
    return replace(case, records=records, lengths=lengths, padding=padding)


def without_norm(case: Case) -> Case:
    """Leave out the output norm, which sums over value columns."""
    return replace(packed(case), out_norm=False)


def normed(case: Case) -> Case:
    """Fuse the output norm."""
    return replace(case, out_norm=True)


def pre_processed(case: Case) -> Case:
    """Give q, k and v after their convolution: SiLU has no symmetry."""
    records = tuple(r for r in case.records if r != "windows")
    return replace(packed(case), conv=False, records=records)


def linear(case: Case) -> Case:
    """Have outputs that are linear in the values and the state."""
    return without_norm(pre_processed(case))


def scalable(case: Case) -> Case:
    """Keep every number far from the denormals, where a power of two is not exact."""
    return replace(
        linear(case),
        dtype="bfloat16" if case.dtype == "float16" else case.dtype,
        keys="random" if case.keys == "tiny" else case.keys,
        gates="mild" if case.gates in ("saturated", "steep_channel") else case.gates,
        values="unit" if case.values == "tiny" else case.values,
        states="unit" if case.states == "tiny" else case.states,
    )


def with_idle_room(case: Case) -> Case:
    """Give decays and strengths, with room for one more token in the first request."""
    case = pre_processed(case)
    capacity = max(case.capacity, 2)
    # A new compiled variant would be another law: the capacity stays what it is.
    first = min(max(case.lengths[0], 1), capacity - 1)
    return replace(
        case,
        capacity=capacity,
        lengths=(first, *case.lengths[1:]),
        padding=tuple(n for n in case.padding if n),
        gate_form="given",
        beta_form="given",
        gate_bias=False,
        gate_rate=False,
    )


def as_batch(case: Case) -> Case:
    """Have sequences of one length, as a batch."""
    return replace(case, batched=True, lengths=(max(1, case.lengths[0]),) * max(2, case.requests))


def layered(case: Case) -> Case:
    """Commit two layers or more in one call."""
    return replace(case, layers=max(case.layers, 2))


def tracked(case: Case) -> Case:
    """Track a step of several requests."""
    return replace(several(case), track=True, spare_slots=3)
