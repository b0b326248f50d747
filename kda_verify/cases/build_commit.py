"""Calls that accept tokens: the replay commit and the conv commit."""

from __future__ import annotations

import torch

from kda_ref.stages import write_strength

from ..operations.commit import RINGS
from .assembly import Assembly, Built, Seats, seat
from .case import Case
from .draw import Draw
from .layout import history_items, ring_items, scratch, state_item
from .numbers import tokens


def commit(case: Case, draw: Draw, device: torch.device | str) -> Built:
    """Build a replay commit; `case.lengths` are the accepted counts, `capacity` the ring depth."""
    assembly, seats = Assembly(case), seat(case, draw)
    items = [state_item(case, "checkpoint_state"), *ring_items(case, RINGS, case.capacity)]
    pools = assembly.pools(items, seats.slot_count)
    for layer, scope in enumerate(_layers(case)):
        drawn = tokens(case, scope)
        strength = write_strength(drawn.beta, case.beta_form)
        for n in seats.live:
            slot, first, count = seats.slots[n], sum(case.lengths[:n]), case.lengths[n]
            mine = slice(first, first + count)
            pools["checkpoint_state"][layer][slot].copy_(drawn.state[n])
            values = (drawn.v.x, drawn.k.x, drawn.g, strength)
            for name, value in zip(RINGS, values, strict=True):
                pools[name][layer][slot, :, :count] = value[mine].transpose(0, 1)
    _accepted(assembly, seats)
    if case.track:
        _tracks(assembly, seats, draw)
    scalars = {"null_block_id": case.null_block, "use_qk_l2norm_in_kernel": case.qk_norm}
    return assembly.finish(scalars, seats, device)


def conv_commit(case: Case, draw: Draw, device: torch.device | str) -> Built:
    """Build a conv commit: histories of the live slots and the windows a verify recorded."""
    assembly, seats, layers = Assembly(case), seat(case, draw), _layers(case)
    depth = case.capacity + (case.pool != "dense")
    pools = assembly.pools(history_items(case, "cs"), seats.slot_count)
    for name, per_layer in pools.items():
        for pool, values in zip(per_layer, layers, strict=True):
            drawn = values.normal(name, case.requests, *pool.shape[1:])
            for n in seats.live:
                pool[seats.slots[n]].copy_(drawn[n])
    for item in history_items(case, "intermediate_conv"):
        view = assembly.place(scratch(case, item, seats.row_count, depth))[0]
        for windows, values in zip(assembly.layers(view), layers, strict=True):
            drawn = values.normal(item.name, case.requests, case.capacity, *item.shape)
            for n in seats.live:
                count = case.lengths[n]
                windows[seats.rows[n], :count].copy_(drawn[n, :count])
    assembly.index("intermediate_state_indices", seats.rows)
    _accepted(assembly, seats)
    return assembly.finish({"null_block_id": case.null_block}, seats, device)


def _layers(case: Case) -> list[Draw]:
    """Scope the draws of every layer; a single layer is the first of many."""
    return [Draw(case.seed, f"layer {layer}") for layer in range(max(case.layers, 1))]


def _accepted(assembly: Assembly, seats: Seats) -> None:
    assembly.index("ssm_state_indices", seats.slots)
    assembly.index("accept_lens", assembly.case.lengths)


def _tracks(assembly: Assembly, seats: Seats, draw: Draw) -> None:
    """Give live requests a spare slot each while there are any, and a step to track.

    Steps are -1, one of the accepted, or one past them; a request without a slot tracks none.
    """
    case = assembly.case
    slots, steps = [-1] * case.requests, [-1] * case.requests
    kinds = draw.integers("track kind", 0, 4, case.requests).tolist()
    shares = draw.uniform("track step", case.requests).tolist()
    order = [seats.live[i] for i in draw.permutation("track order", len(seats.live)).tolist()]
    for n, slot in zip(order, seats.spare, strict=False):
        accepted = int(shares[n] * case.lengths[n])
        past = case.lengths[n] + seats.slots[n] % 2
        slots[n], steps[n] = slot, (-1, past, accepted, accepted)[kinds[n]]
    assembly.index("mamba_track_indices", slots)
    assembly.index("mamba_steps_to_track", steps)
