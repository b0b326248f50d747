"""Laws of layouts and pools: strides, slots, scratch rows, layers, ring depth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from ..cases.build import Built, build
from ..cases.draw import Draw
from ..operations import facts
from .calls import Call
from .results import Arguments, Results, lengths, live
from .rows import Pairs, shuffled


def repeat(built: Built, call: Call, draw: Draw) -> Pairs:
    """The same call gives the same bits three times."""
    first = call(built.case.operation, built.arguments)
    for _ in range(2):
        yield first, call(built.case.operation, built.arguments)


def strides(built: Built, call: Call, draw: Draw) -> Pairs:
    """The same numbers in dense, separate tensors with other surroundings give the same bits."""
    poison = "huge" if built.case.poison == "nan" else "nan"
    plain = replace(
        built.case,
        rows="separate",
        pool="dense",
        conv_pool="dense",
        index_stride=1,
        poison=poison,
        out_given=not built.case.out_given,
    )
    device = next(v for v in built.arguments.values() if isinstance(v, Tensor)).device
    other = build(plain, device)
    yield call(plain.operation, built.arguments), call(plain.operation, other.arguments)


def permute_slots(built: Built, call: Call, draw: Draw) -> Pairs:
    """Other slots and scratch rows for the same requests give the same results."""
    operation, arguments = built.case.operation, built.arguments
    mine, layered = facts(operation), int(built.case.layers > 0)
    first_slot = arguments.get("null_block_id", -1) + 1
    other = dict(arguments)
    count = arguments[mine.slot_pools[0]].shape[layered]
    new = torch.arange(count)
    new[first_slot:] = shuffled(draw, "slots", count - first_slot) + first_slot
    for name in mine.slot_pools:
        if arguments.get(name) is not None:
            other[name] = _moved(arguments[name], new, layered)
    for name in ("ssm_state_indices", "mamba_track_indices"):
        if arguments.get(name) is not None:
            other[name] = _renamed(arguments[name], new, first_slot)
    kept = [n for n in mine.row_pools if arguments.get(n) is not None]
    if kept:
        rows = shuffled(draw, "rows", arguments[kept[0]].shape[layered])
        for name in kept:
            other[name] = _moved(arguments[name], rows, layered)
        old = arguments["intermediate_state_indices"]
        other["intermediate_state_indices"] = _renamed(old, rows, 0)
    yield call(operation, arguments), call(operation, other)


def layer_by_layer(built: Built, call: Call, draw: Draw) -> Pairs:
    """All layers in one call equal one call per layer."""
    operation, arguments = built.case.operation, built.arguments
    mine, all_at_once = facts(operation), call(operation, arguments)
    stacked = (*mine.slot_pools, *mine.row_pools)
    for layer in range(built.case.layers):
        single = {k: v[layer] if k in stacked else v for k, v in arguments.items()}
        own = {key: value[layer : layer + 1] for key, value in all_at_once.items()}
        yield own, call(operation, single)


def past_accepted(built: Built, call: Call, draw: Draw) -> Pairs:
    """Ring entries past the accepted count, and rings deeper than they need be, change nothing."""
    arguments = built.arguments
    first = call("commit", arguments)
    edited, slots = dict(arguments), arguments["ssm_state_indices"].tolist()
    for name, axis in (("rawv", -2), ("rawk", -2), ("gk", -2), ("beta", -1)):
        ring = arguments[name]
        shape = list(ring.shape)
        shape[axis] += 3
        deeper = draw.normal(name, *shape).to(ring)
        view, source = (x.movedim(axis, 0) for x in (deeper, ring))
        slot_axis = 2 if built.case.layers else 1
        for n in live(arguments):
            count = lengths(arguments)[n]
            at = (slice(0, count), *[slice(None)] * (slot_axis - 1), slots[n])
            view[at] = source[at]
        edited[name] = deeper
    yield first, call("commit", edited)


def tracked_step(built: Built, call: Call, draw: Draw) -> Pairs:
    """A tracked step stores what a commit of that many tokens leaves."""
    arguments = dict(built.arguments)
    tracks = arguments.pop("mamba_track_indices").tolist()
    steps = arguments.pop("mamba_steps_to_track").tolist()
    counts, slots = lengths(arguments), arguments["ssm_state_indices"].tolist()
    chosen = [
        n for n in live(arguments) if tracks[n] >= 0 and 0 <= steps[n] < counts[n]
    ]  # fmt: skip
    first = call("commit", built.arguments)
    shorter = [steps[n] + 1 if n in chosen else c for n, c in enumerate(counts)]
    arguments["accept_lens"] = torch.tensor(
        shorter, dtype=torch.int32, device=arguments["accept_lens"].device
    )
    other = call("commit", arguments)
    assert len(set(slots)) >= len(chosen)
    yield {("state", n): first["tracked", n] for n in chosen}, _only(other, chosen)


def batched(built: Built, call: Call, draw: Draw) -> Pairs:
    """Sequences of equal length, packed into one row, give what they give as a batch."""
    arguments = built.arguments
    batch, rows = arguments["q"].shape[:2]
    packed: Arguments = {
        k: v.flatten(0, 1)[None] if k in ("q", "k", "v", "g", "beta") else v
        for k, v in arguments.items()
    }
    offsets = torch.arange(batch + 1, dtype=torch.int32, device=arguments["q"].device) * rows
    packed["cu_seqlens"] = offsets
    yield call("recurrent", arguments), call("recurrent", packed)


def _only(results: Results, requests: Iterable[int]) -> Results:
    return {key: value for key, value in results.items() if key[1] in requests}


def _moved(pool: Tensor, new: Tensor, axis: int) -> Tensor:
    """Put what was at i at new[i]."""
    return pool.index_select(axis, torch.argsort(new).to(pool.device))


def _renamed(indices: Tensor, new: Tensor, first: int) -> Tensor:
    """Rename the indices from `first` to the last; others (padding, none) stay."""
    names = [int(new[i]) if first <= i < len(new) else i for i in indices.tolist()]
    return torch.tensor(names, dtype=torch.int32, device=indices.device)
