"""Calls as the laws see them: arguments in, what each request owns out, and its error bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import kda_ref
from kda_ref import Bounded, Precision, stored

from ..cases.arena import dense
from ..cases.build import Built
from ..subjects.base import Subject

Arguments = dict[str, Any]
Results = dict[tuple[str, int], Tensor]
"""(record, request) -> what that request owns; rows that no request owns are ("slack", 0).

Every record starts with tokens and heads, [L, heads, ...]; a state or a conv pool with layers,
[layers, HV, V, K] or [layers, C, 3].
"""
Call = Callable[[str, Arguments], Results]
"""Make a call of an operation on copies of what it writes, and read what each request owns."""

WINDOWS = tuple(f"intermediate_conv_{x}" for x in "qkv")
RINGS = {
    "ring_v": "replayssm_rawv",
    "ring_k": "replayssm_rawk",
    "ring_g": "replayssm_g",
    "ring_beta": "replayssm_beta",
}
STATES = ("recurrent_state", "checkpoint_state", "intermediate_ssm")
COLUMNS = ("snapshots", "state", "tracked")
"""Records of states: their bound, the same for every key channel, is one of a column's norm."""
WRITTEN = {
    "verify": ("out", "intermediate_ssm", *WINDOWS, *RINGS.values()),
    "commit": ("checkpoint_state",),
    "conv_commit": ("cs_q", "cs_k", "cs_v"),
    "recurrent": (),
}


class OutOfRange(Exception):
    """An exact intermediate leaves fp32, so no budget judges the case."""


def kernel_call(subjects: Mapping[str, Subject], built: Built) -> Call:
    """Make calls of kernels: the subject of each operation."""

    def call(operation: str, arguments: Arguments) -> Results:
        mine = dict(arguments)
        for name in WRITTEN[operation]:
            if mine.get(name) is not None:
                mine[name] = like(mine[name])
        for name in STATES:
            if mine.get(name) is not None:
                mine[name] = _aligned(mine[name])
        returned = subjects[operation].call(replace(built, arguments=mine))
        return read(operation, {**mine, **returned})

    return call


def bound_call(precision: Precision) -> Call:
    """Make calls of the oracle that yield error bounds, stores included, in place of values."""

    def call(operation: str, arguments: Arguments) -> Results:
        return bounds(operation, arguments, precision)

    return call


def like(tensor: Tensor) -> Tensor:
    """Copy an operand with its strides."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _aligned(states: Tensor) -> Tensor:
    """Copy a pool of [HV, V, K] blocks to pitches that are multiples of 4, if they are not."""
    if not any(pitch % 4 for pitch in states.stride()[:-3]):
        return states
    pitch = -(-states.shape[-3:].numel() // 4) * 4
    strides = list(dense(states.shape[-3:]))
    for size in reversed(states.shape[:-3]):
        strides.insert(0, pitch)
        pitch *= size
    return torch.empty_strided(states.shape, strides, device=states.device).copy_(states)


def read(operation: str, operands: Mapping[str, Any]) -> Results:
    """Read what a call left behind, from its operands and what it returned."""
    if operation == "verify":
        return _read_verify(operands)
    if operation == "recurrent":
        return _read_recurrent(operands, operands["out"], operands["final_state"])
    names = ("checkpoint_state",) if operation == "commit" else ("cs_q", "cs_k", "cs_v")
    return _read_slots(operands, {n: _layers(operation, operands[n]) for n in names})


def live(arguments: Mapping[str, Any]) -> list[int]:
    """Return the positions of the requests that are not padding."""
    slots = arguments.get("ssm_state_indices")
    if slots is None:
        return list(range(len(lengths(arguments))))
    null = arguments.get("null_block_id", -1)
    return [n for n, slot in enumerate(slots.tolist()) if slot > null]


def lengths(arguments: Mapping[str, Any]) -> list[int]:
    """Return the rows (or accepted tokens) of every request."""
    if "accept_lens" in arguments:
        return arguments["accept_lens"].tolist()
    if "cu_seqlens" not in arguments:
        batch, rows = arguments["q"].shape[:2]
        return [rows] * batch
    return arguments["cu_seqlens"].diff().tolist()


def bounds(
    operation: str,
    arguments: Arguments,
    precision: Precision,
    through_rings: torch.dtype | None = None,
) -> Results:
    """Bound the error of everything a call owns, by the oracle; infinite where NaN is accepted.

    Raises:
        OutOfRange: an exact intermediate leaves fp32.
    """
    if operation == "verify":
        return _verify_bounds(arguments, precision, through_rings)
    if operation == "recurrent":
        answer = kda_ref.kda_recurrent(**arguments, precision=precision)
        _require_range(answer.in_range)
        out = _bound(answer.out, arguments["v"].dtype, precision)
        axis = -1 if arguments["state_layout"] == "vk" else -2
        final = _column_bound(answer.final_state, precision, axis)
        return _read_recurrent(arguments, out, final)
    if operation == "conv_commit":
        pools = {n: torch.zeros_like(_layers(operation, arguments[n])) for n in WRITTEN[operation]}
        return _read_slots(arguments, pools)
    committed = kda_ref.kda_replay_commit(**arguments, precision=precision)
    _require_range(committed.in_range)
    error = torch.zeros_like(_layers(operation, arguments["checkpoint_state"]).double())
    for layer, slots in enumerate(committed.layers):
        for slot, state in slots.items():
            error[layer, slot] = _column_bound(state, precision)
    return _read_slots(arguments, {"checkpoint_state": error})


def _read_verify(operands: Mapping[str, Any]) -> Results:
    out, slots = operands["out"], operands["ssm_state_indices"].tolist()
    start, results = 0, {}
    rows = operands.get("intermediate_state_indices")
    size_k, size_v = operands["x_q"].shape[-1], operands["x_v"].shape[-1]
    for n, length in enumerate(lengths(operands)):
        results["out", n] = out[0, start : start + length]
        start += length
        if slots[n] < 0:
            continue
        for record, operand in RINGS.items():
            if operands.get(operand) is not None:
                ring = operands[operand][slots[n], :, :length]
                results[record, n] = ring.transpose(0, 1)
        if rows is None:
            continue
        row = int(rows[n])
        if operands.get("intermediate_ssm") is not None:
            results["snapshots", n] = operands["intermediate_ssm"][row, :length]
        for name, size in zip(WINDOWS, (size_k, size_k, size_v), strict=True):
            if operands.get(name) is not None:
                window = operands[name][row, :length].unflatten(1, (-1, size))
                results[f"window_{name[-1]}", n] = window
    results["slack", 0] = out[0, start:]
    return results


def _verify_bounds(
    arguments: Arguments, precision: Precision, through_rings: torch.dtype | None
) -> Results:
    answer = kda_ref.kda_mtp_verify(**arguments, precision=precision, through_rings=through_rings)
    _require_range(answer.in_range)
    dtype, rows = arguments["x_v"].dtype, answer.out.value[0]
    results: Results = {}
    start = 0
    for n, length in enumerate(lengths(arguments)):
        trace = answer.requests[n]
        results["out", n] = torch.zeros_like(rows[start : start + length])
        start += length
        if trace is None:
            continue
        error = _bound(trace.out, dtype, precision)
        results["out", n] = error.masked_fill(trace.undetermined, torch.inf)
        if arguments.get("replayssm_rawv") is not None:
            narrow = {"ring_v": trace.ring_v, "ring_k": trace.ring_k}
            wide = {"ring_g": trace.ring_log_decay, "ring_beta": trace.ring_beta}
            for name, ring in narrow.items():
                results[name, n] = _bound(ring, dtype, precision)
            for name, ring in wide.items():
                results[name, n] = _bound(ring, torch.float32, precision)
        if trace.snapshots is not None:
            results["snapshots", n] = _column_bound(trace.snapshots, precision)
        elif arguments.get("intermediate_ssm") is not None:
            results["snapshots", n] = rows.new_zeros(0, *arguments["recurrent_state"].shape[1:])
        if trace.windows is not None and arguments.get("intermediate_conv_q") is not None:
            for x, window in zip("qkv", trace.windows, strict=True):
                size = arguments[f"x_{x}"].shape[-1]
                results[f"window_{x}", n] = torch.zeros_like(window.unflatten(1, (-1, size)))
    results["slack", 0] = torch.zeros_like(rows[start:])
    return results


def _read_recurrent(operands: Mapping[str, Any], out: Tensor, final: Tensor) -> Results:
    final = final.mT if operands["state_layout"] == "kv" else final
    rows, start, results = out.flatten(0, 1), 0, {}
    for n, length in enumerate(lengths(operands)):
        results["out", n] = rows[start : start + length]
        results["state", n] = final[n][None]
        start += length
    return results


def _read_slots(operands: Mapping[str, Any], pools: Mapping[str, Tensor]) -> Results:
    slots, counts = operands["ssm_state_indices"].tolist(), lengths(operands)
    tracks, steps = (operands.get(f"mamba_{x}") for x in ("track_indices", "steps_to_track"))
    results = {}
    for n in live(operands):
        for name, pool in pools.items():
            results[name.replace("checkpoint_", ""), n] = pool[:, slots[n]]
        if tracks is not None and steps is not None:
            track, step = int(tracks[n]), int(steps[n])
            if track >= 0 and 0 <= step < counts[n]:
                results["tracked", n] = pools["checkpoint_state"][:, track]
    return results


def _layers(operation: str, pool: Tensor) -> Tensor:
    """Return a pool with its layer axis, also where it has none."""
    return pool if pool.ndim == (5 if operation == "commit" else 4) else pool[None]


def _bound(x: Bounded, dtype: torch.dtype, precision: Precision) -> Tensor:
    full = Bounded(x.value, x.error.expand_as(x.value))
    wide = stored(full, dtype, truncate=precision.truncating_store)
    return wide.error + (wide.value - full.value).abs()


def _column_bound(state: Bounded, precision: Precision, axis: int = -1) -> Tensor:
    store = _bound(Bounded(state.value, torch.zeros_like(state.value)), torch.float32, precision)
    whole = torch.linalg.vector_norm(store, dim=axis, keepdim=True) + state.error
    return whole.expand_as(state.value)


def _require_range(in_range: bool) -> None:
    if not in_range:
        raise OutOfRange
