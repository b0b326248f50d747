"""Calls over token rows: the multi-token verify and the recurrent operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..operations.verify import RINGS
from .assembly import Assembly, Built, Seats, seat
from .case import Case
from .draw import Draw
from .exact_family import SCALE
from .layout import (
    ACTIVATION,
    Item,
    activations,
    history_items,
    plain,
    ring_items,
    rows,
    scratch,
    state_item,
)
from .numbers import tokens
from .tokens import Streams, Tokens, floor_of

NORM_EPS = (1e-5, 1e-6, 0.0)


def verify(case: Case, draw: Draw, device: torch.device | str) -> Built:
    """Build a multi-token verify."""
    assembly, seats, drawn = Assembly(case), seat(case, draw), tokens(case, draw)
    streams = _inputs(assembly, ("x_q", "x_k", "x_v"), drawn)
    if case.conv:
        for name, stream in zip("qkv", streams, strict=True):
            assembly.weight(f"w_{name}", stream.taps)

    depth = case.capacity + (case.pool != "dense")
    items = history_items(case, "cs") if case.conv else []
    items = [*items, state_item(case, "recurrent_state")]
    if "rings" in case.records:
        items += ring_items(case, tuple(RINGS.values()), depth)
    pools = {name: views[0] for name, views in assembly.pools(items, seats.slot_count).items()}
    _fill_slots(pools["recurrent_state"], drawn.state, seats)
    if case.conv:
        for name, stream in zip("qkv", streams, strict=True):
            assert stream.history is not None
            _fill_slots(pools[f"cs_{name}"], stream.history, seats)

    kept = []
    if "snapshots" in case.records:
        kept.append(Item("intermediate_ssm", *_block(state_item(case, "")), multiple=4))
    if "windows" in case.records:
        kept += history_items(case, "intermediate_conv")
    for item in kept:
        assembly.place(scratch(case, item, seats.row_count, depth))
    if kept:
        assembly.index("intermediate_state_indices", seats.rows)
    assembly.index("ssm_state_indices", seats.slots)
    assembly.offsets("cu_seqlens")

    scalars = {**_forms(case), "max_tokens": case.capacity}
    if case.out_norm:
        scalars["onorm_eps"] = _output_norm(assembly, draw)
    if case.out_given:
        inner = (case.heads_v, case.size_v)
        assembly.place(rows(case, "out", inner, ACTIVATION[case.dtype]))
    return assembly.finish(scalars, seats, device)


def recurrent(case: Case, draw: Draw, device: torch.device | str) -> Built:
    """Build a call of the recurrent operation; its q, k and v are post-SiLU values."""
    assembly, seats, drawn = Assembly(case), seat(case, draw), tokens(case, draw)
    _inputs(assembly, ("q", "k", "v"), drawn)
    state = drawn.state if case.state_layout == "vk" else drawn.state.mT
    item = state_item(case, "initial_state")
    if case.initial == "pool":
        pool = assembly.pools([item], seats.slot_count)["initial_state"][0]
        _fill_slots(pool, state, seats)
        assembly.index("ssm_state_indices", seats.slots)
    else:
        everyone = list(range(case.requests))
        seats = replace(seats, slots=everyone, rows=everyone)
        if case.initial == "given":
            assembly.place(plain(item.name, tuple(state.shape)))[0].copy_(state)
    if not case.batched:
        assembly.offsets("cu_seqlens")
    scalars = {**_forms(case), "state_layout": case.state_layout}
    if case.initial == "pool":
        scalars["update_pool"] = True
    return assembly.finish(scalars, seats, device)


def _inputs(assembly: Assembly, names: tuple[str, ...], drawn: Tokens) -> list[Streams]:
    """Place and fill what every operation over rows takes: q, k, v, gate and strength."""
    case = assembly.case
    views = [view for together in activations(case, names) for view in assembly.place(*together)]
    streams = [drawn.q, drawn.k, drawn.v]
    for view, stream in zip(views, streams, strict=True):
        assembly.fill_rows(view, stream.x)
    dtype = ACTIVATION[case.logit_dtype]
    gate = assembly.place(rows(case, "g", (case.heads_v, case.size_k), dtype))[0]
    assembly.fill_rows(gate, drawn.g)
    beta = assembly.place(rows(case, "beta", (case.heads_v,), dtype))[0]
    assembly.fill_rows(beta, drawn.beta)
    assembly.weight("A_log", drawn.a_log)
    assembly.weight("dt_bias", drawn.dt_bias)
    return streams


def _forms(case: Case) -> dict[str, Any]:
    scale = SCALE if case.exact and case.scale is None else case.scale
    forms = {
        "gate_form": case.gate_form,
        "lower_bound": floor_of(case),
        "beta_form": case.beta_form,
        "use_qk_l2norm_in_kernel": case.qk_norm,
        "scale": scale,
    }
    return {name: value for name, value in forms.items() if value is not None}


def _output_norm(assembly: Assembly, draw: Draw) -> float:
    """Place the gate and the weight of the output norm and return its eps."""
    case = assembly.case
    inner = (case.heads_v, case.size_v)
    gate = assembly.place(rows(case, "onorm_gate", inner, ACTIVATION[case.logit_dtype]))[0]
    assembly.fill_rows(gate, 2.0 * draw.normal("onorm_gate", sum(case.lengths), *inner))
    assembly.weight("onorm_weight", 1.0 + 0.2 * draw.normal("onorm_weight", case.size_v))
    return NORM_EPS[draw.integer("onorm_eps", 0, len(NORM_EPS))]


def _fill_slots(pool: Tensor, values: Tensor, seats: Seats) -> None:
    """Write the slots of live requests; all others stay poison."""
    for n in seats.live:
        pool[seats.slots[n]].copy_(values[n])


def _block(item: Item) -> tuple[tuple[int, ...], torch.dtype]:
    return item.shape, item.dtype
