"""Calls just inside a contract: for the clauses that draw a line, the last step before it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kda_kernels.contract import Contract

from . import mutations as step
from .catalogue import Mutation, base_of, tracking
from .example_calls import complete, example
from .mutations import Arguments, Change
from .values import live_requests, spare_slot

Cases = Iterator[tuple[str, str, Change]]
RINGS = {
    "rawv": "replayssm_rawv",
    "rawk": "replayssm_rawk",
    "g": "replayssm_g",
    "beta": "replayssm_beta",
}


def boundaries(contract: Contract) -> tuple[Mutation, ...]:
    """Return steps that a contract must accept, each beside a clause that it nearly breaks."""
    cases = _verify if contract.name in ("mtp", "dspark") else _commit
    clauses = {clause.id: clause for clause in contract.clauses}
    found = []
    for name, label, change in [*_common(contract), *cases(contract)]:
        ident = f"{contract.name}.{name}"
        if ident not in clauses:
            continue
        context = torch.no_grad if name.endswith(".grad") else torch.enable_grad
        base = base_of(contract, clauses[ident])
        found.append(Mutation(f"{ident}:{label}", ident, base, change, context))
    return tuple(found)


def _common(contract: Contract) -> Cases:
    """Yield what every contract accepts: free strides, parameters under no_grad, padding."""
    for operand in contract.operands:
        name = operand.name
        if operand.is_float:
            yield f"{name}.grad", "parameter", step.replaced(name, step.with_gradient)
        else:
            yield f"{name}.shape", "column", step.replaced(name, _column)
        if operand.unit_last:
            yield f"{name}.last-stride", "padded rows", step.replaced(name, _padded_rows)
        elif operand.is_float and operand.shape[-2:] not in (("V", "K"), ("128", "128")):
            yield f"{name}.type", "free strides", step.replaced(name, step.spread)
    yield "ssm_state_indices.range", "last slot", _last_slot
    yield "ssm_state_indices.unique", "padding twice", _padded
    yield "ssm_state_indices.range", "all padding", _all_padding
    for value in (True, False, None):
        yield "check_values.type", str(value), step.given(check_values=value)
    yield "use_qk_l2norm_in_kernel.type", "False", step.given(use_qk_l2norm_in_kernel=False)


def _verify(contract: Contract) -> Cases:
    capacity = "max_tokens" if contract.name == "mtp" else "L"
    state, conv = "recurrent_state", [f"cs_{x}" for x in "qkv"]
    rings = list(RINGS.values())
    yield f"{state}.pitch", "4 more", step.replaced(state, lambda x: step.pitched(x, 4))
    yield f"{state}.offset", "offset 4", step.replaced(state, lambda x: step.moved(x, 4))
    snapshots = "intermediate_ssm"
    loose = lambda x: step.pitched(x, 4, offset=4, outer=2)  # noqa: E731
    yield f"{snapshots}.pitch", "4 more", step.replaced(snapshots, loose)
    yield "replayssm_rawv.depth", "R == capacity", _ring_depth(contract, capacity)
    for name in (snapshots, *(f"intermediate_conv_{x}" for x in "qkv")):
        yield f"{name}.depth", "just deep enough", _depth(contract, name, capacity)
    for name in (*conv, *rings):
        yield f"{name}.slots", "more", step.replaced(name, lambda x: _grown(x, 0))
    transposed = lambda x: x.mT.contiguous().mT  # noqa: E731
    for name in conv:
        yield f"{name}.shape", "transposed view", step.replaced(name, transposed)
    yield "replayssm_rawv.overlap", "envelope", step.interleaved([*conv, state, *rings])
    yield "out.type", "None", step.given(out=None)
    yield "out.overlap", "given beside x_v", step.replaced("out", torch.empty_like)
    yield "out.overlap", "packed rows", _packed
    yield "beta.shape", "one head", lambda a: example(contract, _device(contract, a), **_one_head())
    yield "onorm_eps.nonnegative", "zero", step.given(onorm_eps=0.0)
    yield (
        "onorm_eps.group",
        "no norm",
        step.given(onorm_gate=None, onorm_weight=None, onorm_eps=None),
    )
    yield "onorm_eps.type", "int", step.given(onorm_eps=0)
    yield "lower_bound.negative", "smallest", step.given(lower_bound=-math.ulp(0.0))
    yield "lower_bound.type", "int", step.given(lower_bound=-5)
    yield "scale.finite", "negative", step.given(scale=-1.0)
    yield "scale.type", "None", step.given(scale=None)
    yield "replayssm_rawv.group", "no rings", _without_rings(contract)
    yield "cu_seqlens.end", "slack rows", _offsets([0, 0, 1])
    yield "cu_seqlens.order", "all empty", _offsets([0])
    yield "cu_seqlens.capacity", "ragged", _offsets([0, 1])
    rows = "intermediate_state_indices"
    yield f"{rows}.range", "last row", _last_row(contract)
    yield f"{rows}.range", "padding out of range", _padded_row
    if contract.name == "dspark":
        wrong: Arguments = {snapshots: torch.empty(0)}
        yield f"{snapshots}.shape", "ignored beside rings", _beside_rings(contract, wrong)
        yield "x_q.capacity", "16", _sized(contract, N=2, T=32, L=16, R=16)
        yield "x_q.tokens", "one token", _sized(contract, N=2, T=2, L=1)
        return
    for count in (1, 16):
        change = _sized(contract, N=2, T=2 * count, L=count, max_tokens=count, R=count)
        yield "max_tokens.range", f"{count}", change
    yield "x_q.shape", "no rows", _sized(contract, T=0, L=0)
    for size in (16, 17, 256):
        pool = {"H": 1, "HV": 4, "slots": 4}
        yield "x_q.size-k", f"{size}", _sized(contract, K=size, **pool)
        yield "x_v.size-v", f"{size}", _sized(contract, V=size, **pool)
    yield "x_v.heads", "HV == H", _sized(contract, H=2, HV=2)
    yield "w_q.group", "conv given", step.given(**_no_conv())
    yield "intermediate_conv_q.group", "no windows", step.given(**_no_windows())
    recorded = dict(_no_windows(), intermediate_ssm=None, intermediate_state_indices=None)
    yield f"{rows}.needed", "nothing recorded", step.given(**recorded)
    yield f"{rows}.unique", "nothing recorded", _unused_rows
    yield "A_log.needed", "softplus", lambda a: a
    raw = dict(gate_form="given", A_log=None, dt_bias=None, lower_bound=None)
    yield "A_log.unwanted", "given", step.given(**raw)
    yield "lower_bound.needed", "no rate, no bias", step.given(A_log=None, dt_bias=None)
    for form in ("twice_sigmoid", "given"):
        yield "beta_form.choice", form, step.given(beta_form=form)


def _commit(contract: Contract) -> Cases:
    layered = step.stacked(contract.operands)
    anchor = contract.anchor
    yield f"{anchor}.type", "stacked", layered
    yield f"{anchor}.self-overlap", "stacked", layered
    interleaved = step.interleaved([o.name for o in contract.operands if o.stacks])
    if contract.name != "conv-commit":
        yield f"{anchor}.overlap", "envelope", interleaved
        pitched = lambda x: step.pitched(x, 4, offset=4)  # noqa: E731
        yield f"{anchor}.pitch", "4 more", step.replaced(anchor, pitched)
    limit = "capacity" if contract.name == "conv-commit" else "R"
    for label, count in (("none", 0), ("all", None)):
        yield "accept_lens.range", label, _accepted(contract, limit, count)
    yield "accept_lens.range", "skipped request", _skipped_count
    yield "null_block_id.range", "-1", step.given(null_block_id=-1)
    yield "null_block_id.range", "all skipped", step.given(null_block_id=2**31 - 1)
    track = "mamba_track_indices"
    pair = {track: None, "mamba_steps_to_track": None}
    yield f"{track}.group", "no track", step.given(**pair)
    yield f"{track}.range", "spare slot", lambda a: _track(a, spare_slot(a), 0)
    yield f"{track}.live", "step not accepted", lambda a: _track(a, _first_slot(a), 1)
    yield f"{track}.live", "no step", lambda a: _track(a, _first_slot(a), -1)
    yield f"{track}.range", "not stored", lambda a: _track(a, 2**31 - 1, -1)


def _device(contract: Contract, arguments: Arguments) -> torch.device:
    return step.tensor(arguments, contract.anchor).device


def _sized(contract: Contract, **sizes: int) -> Change:
    return lambda arguments: example(contract, _device(contract, arguments), **sizes)


def _one_head() -> dict[str, int]:
    return {"H": 1, "HV": 1}


def _column(x: torch.Tensor) -> torch.Tensor:
    """Return an index vector as a column of a wider matrix."""
    return torch.stack([x, x.new_full(x.shape, -7)], dim=1)[:, 0]


def _padded_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with a free stride in the last axis but one, odd and unaligned."""
    return step.pitched(x, 3, offset=1, outer=x.dim() - 1)


def _grown(x: torch.Tensor, axis: int) -> torch.Tensor:
    return step.resized(x, axis, x.shape[axis] + 1)


def _last_slot(arguments: Arguments) -> Arguments:
    pool = arguments.get(
        "recurrent_state", arguments.get("checkpoint_state", arguments.get("cs_q"))
    )
    assert isinstance(pool, torch.Tensor)
    axis = -3 if "cs_q" in arguments and "recurrent_state" not in arguments else -4
    return _slot(arguments, live_requests(arguments)[-1], pool.shape[axis] - 1)


def _slot(arguments: Arguments, request: int, slot: int) -> Arguments:
    indices = step.tensor(arguments, "ssm_state_indices")
    return {**arguments, "ssm_state_indices": step.with_element(indices, request, slot)}


def _padded(arguments: Arguments) -> Arguments:
    first, second, *_ = live_requests(arguments)
    return _slot(_slot(arguments, first, -1), second, -1)


def _all_padding(arguments: Arguments) -> Arguments:
    indices = step.tensor(arguments, "ssm_state_indices")
    return {**arguments, "ssm_state_indices": torch.full_like(indices, -(2**31))}


def _ring_depth(contract: Contract, capacity: str) -> Change:
    def change(arguments: Arguments) -> Arguments:
        least = contract.call(arguments).dim(capacity)
        assert least
        cut = {name: step.tensor(arguments, name)[:, :, :least] for name in RINGS.values()}
        return {**arguments, **cut}

    return change


def _depth(contract: Contract, name: str, capacity: str) -> Change:
    def change(arguments: Arguments) -> Arguments:
        least = contract.call(arguments).dim(capacity)
        assert least
        return {**arguments, name: step.tensor(arguments, name)[:, :least]}

    return change


def _packed(arguments: Arguments) -> Arguments:
    """Put q, k, v, gates and out into one matrix: rows interleave, elements do not overlap."""
    names = ["x_q", "x_k", "x_v", "out"]
    parts = [step.tensor(arguments, name) for name in names]
    matrix = torch.cat([part[0].flatten(1) for part in parts], dim=1)
    views = torch.split(matrix, [part[0].flatten(1).shape[1] for part in parts], dim=1)
    shaped = [
        view.unflatten(1, part.shape[2:])[None] for view, part in zip(views, parts, strict=True)
    ]
    return {**arguments, **dict(zip(names, shaped, strict=True))}


def _without_rings(contract: Contract) -> Change:
    def change(arguments: Arguments) -> Arguments:
        without = {**arguments, **dict.fromkeys(RINGS.values())}
        if contract.name != "dspark":
            return without
        clause = next(c for c in contract.clauses if c.id == "dspark.intermediate_ssm.needed")
        return base_of(contract, clause)(without)

    return change


def _beside_rings(contract: Contract, values: Arguments) -> Change:
    return lambda arguments: {**complete(contract, arguments), **values}


def _offsets(head: list[int]) -> Change:
    """Return a change to offsets that start with `head` and then stay."""

    def change(arguments: Arguments) -> Arguments:
        old = step.tensor(arguments, "cu_seqlens")
        values = [*head, *[head[-1]] * len(old)][: len(old)]
        return {**arguments, "cu_seqlens": old.new_tensor(values)}

    return change


def _last_row(contract: Contract) -> Change:
    def change(arguments: Arguments) -> Arguments:
        limit = contract.call(arguments).dim("scratch_rows")
        assert limit
        return _row(arguments, live_requests(arguments)[-1], limit - 1)

    return change


def _row(arguments: Arguments, request: int, row: int) -> Arguments:
    rows = step.tensor(arguments, "intermediate_state_indices")
    return {**arguments, "intermediate_state_indices": step.with_element(rows, request, row)}


def _padded_row(arguments: Arguments) -> Arguments:
    request = live_requests(arguments)[0]
    return _row(_slot(arguments, request, -1), request, 2**31 - 1)


def _unused_rows(arguments: Arguments) -> Arguments:
    rows = step.tensor(arguments, "intermediate_state_indices")
    gone = dict(_no_windows(), intermediate_ssm=None)
    return {**arguments, **gone, "intermediate_state_indices": torch.zeros_like(rows)}


def _no_windows() -> Arguments:
    return {f"intermediate_conv_{x}": None for x in "qkv"}


def _no_conv() -> Arguments:
    return {**_no_windows(), **{f"{kind}_{x}": None for kind in ("w", "cs") for x in "qkv"}}


def _accepted(contract: Contract, limit: str, count: int | None) -> Change:
    def change(arguments: Arguments) -> Arguments:
        most = contract.call(arguments).dim(limit) if count is None else count
        assert most is not None
        counts = step.tensor(arguments, "accept_lens")
        return {**arguments, "accept_lens": torch.full_like(counts, most)}

    return change


def _skipped_count(arguments: Arguments) -> Arguments:
    request = live_requests(arguments)[0]
    counts = step.with_element(step.tensor(arguments, "accept_lens"), request, -9)
    return {**_slot(arguments, request, -1), "accept_lens": counts}


def _first_slot(arguments: Arguments) -> int:
    return int(step.tensor(arguments, "ssm_state_indices")[live_requests(arguments)[0]])


def _track(arguments: Arguments, slot: int, at: int) -> Arguments:
    full = tracking(arguments)
    request = live_requests(full)[0]
    slots = step.with_element(step.tensor(full, "mamba_track_indices"), request, slot)
    steps = step.with_element(step.tensor(full, "mamba_steps_to_track"), request, at)
    return {**full, "mamba_track_indices": slots, "mamba_steps_to_track": steps}
