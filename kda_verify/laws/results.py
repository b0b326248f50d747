"""What each request owns of a call, read from its operands, and the error bounds of the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import kda_ref
from kda_ref import Bounded, Precision, stored

from ..judging.answer import sequences
from ..operations import commit, conv_commit
from ..operations.facts import SLOTS, WINDOWS, Facts
from ..operations.verify import RINGS

Arguments = dict[str, Any]
Results = dict[tuple[str, int], Tensor]
"""(record, request) -> what that request owns; rows that no request owns are ("slack", 0).

Every record starts with tokens and heads, [L, heads, ...]; a state or a conv pool with layers,
[layers, HV, V, K] or [layers, C, 3].
"""

COLUMNS = ("snapshots", "state", "tracked")
"""Records of states: their bound, the same for every key channel, is one of a column's norm."""


class OutOfRange(Exception):
    """An exact intermediate leaves fp32, so no budget judges the case."""


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


def read_verify(operands: Mapping[str, Any]) -> Results:
    """Read the rows, rings, snapshots and windows that a verify left."""
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


def bound_verify(
    arguments: Arguments, precision: Precision, through_rings: torch.dtype | None = None
) -> Results:
    """Bound what a verify leaves; its states as replayed from rings of a dtype, where named."""
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
            results["snapshots", n] = _column_bound(
                trace.snapshots, arguments["recurrent_state"].dtype, precision
            )
        elif arguments.get("intermediate_ssm") is not None:
            results["snapshots", n] = rows.new_zeros(0, *arguments["recurrent_state"].shape[1:])
        if trace.windows is not None and arguments.get("intermediate_conv_q") is not None:
            for x, window in zip("qkv", trace.windows, strict=True):
                size = arguments[f"x_{x}"].shape[-1]
                results[f"window_{x}", n] = torch.zeros_like(window.unflatten(1, (-1, size)))
    results["slack", 0] = torch.zeros_like(rows[start:])
    return results


def read_recurrent(operands: Mapping[str, Any]) -> Results:
    """Read the rows and the final states that sequences left."""
    slots = operands.get(SLOTS)
    if slots is None:
        return _split(operands, operands["out"], operands["final_state"])
    # Padding lists no slot, and no state of it is read.
    held = operands["initial_state"][slots.clamp_min(0).to(torch.int64)]
    return _split(operands, operands["out"], held)


def bound_recurrent(arguments: Arguments, precision: Precision) -> Results:
    """Bound what sequences leave."""
    answer = sequences(arguments, precision)
    _require_range(answer.in_range)
    out = _bound(answer.out, arguments["v"].dtype, precision)
    axis = -1 if arguments["state_layout"] == "vk" else -2
    pooled = arguments.get(SLOTS) is not None
    dtype = arguments["initial_state"].dtype if pooled else torch.float32
    return _split(arguments, out, _column_bound(answer.final_state, dtype, precision, axis))


def read_commit(operands: Mapping[str, Any]) -> Results:
    """Read the states of the slots that a commit left, tracked ones included."""
    return _read_slots(operands, _layered(commit.FACTS, operands))


def bound_commit(arguments: Arguments, precision: Precision) -> Results:
    """Bound the states that a commit leaves."""
    committed = kda_ref.kda_replay_commit(**arguments, precision=precision)
    _require_range(committed.in_range)
    ((name, pool),) = _layered(commit.FACTS, arguments).items()
    error = torch.zeros_like(pool.double())
    for layer, slots in enumerate(committed.layers):
        for slot, state in slots.items():
            error[layer, slot] = _column_bound(state, pool.dtype, precision)
    return _read_slots(arguments, {name: error})


def read_conv_commit(operands: Mapping[str, Any]) -> Results:
    """Read the conv histories of the slots that a conv commit left."""
    return _read_slots(operands, _layered(conv_commit.FACTS, operands))


def bound_conv_commit(arguments: Arguments, precision: Precision) -> Results:
    """Bound what a conv commit leaves: it copies, so by nothing."""
    pools = _layered(conv_commit.FACTS, arguments)
    return _read_slots(arguments, {name: torch.zeros_like(pool) for name, pool in pools.items()})


def _split(operands: Mapping[str, Any], out: Tensor, final: Tensor) -> Results:
    """Give every sequence its rows and, unless it is padding, its state, [V, K] inside."""
    final = final.mT if operands["state_layout"] == "kv" else final
    rows, start, results = out.flatten(0, 1), 0, {}
    alive = live(operands)
    for n, length in enumerate(lengths(operands)):
        results["out", n] = rows[start : start + length]
        if n in alive:
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


def _layered(facts: Facts, operands: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the pools that are written, each with its layer axis, also where it has none."""
    return {
        name: pool if pool.ndim > len(facts.axes[name].split()) else pool[None]
        for name, pool in ((name, operands[name]) for name in facts.written)
    }


def _bound(x: Bounded, dtype: torch.dtype, precision: Precision) -> Tensor:
    full = Bounded(x.value, x.error.expand_as(x.value))
    wide = stored(full, dtype, truncate=precision.truncating_store)
    return wide.error + (wide.value - full.value).abs()


def _column_bound(
    state: Bounded, dtype: torch.dtype, precision: Precision, axis: int = -1
) -> Tensor:
    store = _bound(Bounded(state.value, torch.zeros_like(state.value)), dtype, precision)
    whole = torch.linalg.vector_norm(store, dim=axis, keepdim=True) + state.error
    return whole.expand_as(state.value)


def _require_range(in_range: bool) -> None:
    if not in_range:
        raise OutOfRange
