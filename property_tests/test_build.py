"""The builder: reproducible, poisoned where nobody may look, watched by its frame, and exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import kda_ref
from kda_ref import stages
from kda_verify.cases.arena import POISON_INDEX
from kda_verify.cases.build import Built, build
from kda_verify.cases.case import (
    BETA_FORMS,
    BETAS,
    GATE_FORMS,
    GATES,
    KEYS,
    POISONS,
    STATES,
    TAPS,
    VALUES,
    Case,
)

ORACLES: dict[str, Any] = {
    "verify": kda_ref.kda_mtp_verify,
    "commit": kda_ref.kda_replay_commit,
    "conv_commit": kda_ref.kda_conv_commit,
    "recurrent": kda_ref.kda_recurrent,
}
SMALL = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
RICH = Case(
    heads=2, group=2, size_k=20, lengths=(3, 0, 2, 4), capacity=4, padding=(2,), slack_rows=2,
    dtype="bfloat16", logit_dtype="bfloat16", rows="packed", pool="envelope",
    conv_pool="transposed", spare_slots=2, index_stride=3, out_norm=True, out_given=True,
    records=("rings", "snapshots", "windows"), seed=5,
)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, operation: str | None = None, exact: bool = False) -> Case:
    """Draw any case of an operation, exact ones without the stages that round."""

    def choose(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    operation = operation or choose(*ORACLES)
    lengths = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    batched = operation == "recurrent" and len(set(lengths)) == 1 and draw(st.booleans())
    conv = draw(st.booleans())
    qk_norm = (exact and conv) or draw(st.booleans())
    dtypes = ("float32", "bfloat16") if exact else ("float32", "bfloat16", "float16")
    layers = choose(0, 2) if operation.endswith("commit") else 0
    return Case(
        operation=operation, heads=choose(1, 2), group=choose(1, 2), size_k=choose(16, 20, 64),
        size_v=choose(16, 19), lengths=lengths, capacity=max(*lengths, 1) + choose(0, 1),
        padding=tuple(n for n in range(len(lengths)) if draw(st.booleans())),
        slack_rows=choose(0, 2), dtype=choose(*dtypes),
        logit_dtype=choose("float32", "bfloat16"), rows=choose("packed", "separate"),
        pool=choose("dense", "pitched", "envelope"), conv_pool=choose("transposed", "dense"),
        state_layout=choose("vk", "kv"), batched=batched, spare_slots=choose(0, 1, 3),
        index_stride=choose(1, 3), conv=conv, qk_norm=qk_norm, gate_form=choose(*GATE_FORMS),
        beta_form=choose(*BETA_FORMS), gate_bias=draw(st.booleans()),
        gate_rate=draw(st.booleans()), out_norm=not exact and draw(st.booleans()),
        out_given=draw(st.booleans()), layers=layers, track=draw(st.booleans()),
        records=("rings", "snapshots", *(("windows",) if conv else ())), null_block=choose(-1, 1),
        exact=exact, keys=choose(*KEYS), gates=choose(*GATES), taps=choose(*TAPS),
        betas=choose(*BETAS), values=choose(*VALUES), states=choose(*STATES),
        poison=choose(*POISONS), seed=draw(st.integers(0, 999)),
    )  # fmt: skip


def is_poison(x: Tensor) -> Tensor:
    """Say which elements are poison."""
    if not x.dtype.is_floating_point:
        return x == POISON_INDEX
    return x.isnan() | (x.float().abs() >= 6e4)


def call_oracle(built: Built) -> Any:
    """Run the oracle of the case's operation on the call."""
    return ORACLES[built.case.operation](**built.arguments)


@SMALL
@given(cases())
def test_same_seed_same_bits(case: Case) -> None:
    one, two = build(case), build(Case.from_json(case.to_json()))
    assert one.slots == two.slots
    assert one.scratch_rows == two.scratch_rows
    for a, b in zip(one.frame.arenas, two.frame.arenas, strict=True):
        assert torch.equal(a.storage, b.storage)


@SMALL
@given(cases())
def test_oracle_takes_the_arguments_and_reads_no_poison(case: Case) -> None:
    built = build(case)
    built.frame.snapshot()
    result = call_oracle(built)
    assert built.frame.trespasses({}) == []
    if case.operation == "verify":
        assert not is_poison(result.out.value).any()
    elif case.operation == "recurrent":
        assert not is_poison(result.out.value).any()
        assert not is_poison(result.final_state.value).any()
    elif case.operation == "commit":
        live = {
            s for s, a in zip(built.slots, case.lengths, strict=True) if s > case.null_block and a
        }
        for written in result.layers:
            assert live <= set(written)
            assert not any(is_poison(state.value).any() for state in written.values())
    else:
        for pool in result:
            for slot, count in zip(built.slots, case.lengths, strict=True):
                if slot > case.null_block and count:
                    assert not is_poison(pool[..., slot, :, :]).any()


@SMALL
@given(cases())
def test_layout_changes_no_number(case: Case) -> None:
    other = replace(
        case, rows="separate", pool="dense", conv_pool="dense", index_stride=1, poison="nan"
    )
    if case.operation == "recurrent" and not case.padding and case.pool != "dense":
        return  # plain states instead of a pool
    one, two = build(case), build(other)
    for name in one.arguments:
        a, b = one.arguments[name], two.arguments[name]
        if not isinstance(a, Tensor):
            assert a == b, name
        elif name.startswith(("x_", "q", "k", "w_", "g", "beta", "A_", "dt_")):
            mine = ~is_poison(b)
            assert torch.equal(a[mine], b[mine]), name


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("pool", ["dense", "pitched", "envelope"])
def test_everything_nobody_may_read_is_poison(pool: str, poison: str) -> None:
    built = build(replace(RICH, pool=pool, poison=poison))
    given_, case = built.arguments, built.case
    live = {s for s in built.slots if s >= 0}
    for name in ("recurrent_state", "cs_q", "cs_k", "cs_v"):
        for slot in range(given_[name].shape[0]):
            expected = slot not in live
            assert bool(is_poison(given_[name][slot]).all()) == expected, (name, slot)
    outputs = [n for n in given_ if n.startswith(("replayssm", "intermediate_conv", "out"))]
    for name in [*outputs, "intermediate_ssm"]:
        assert is_poison(given_[name]).all(), name
    offsets = given_["cu_seqlens"].tolist()
    for name in ("x_q", "x_k", "x_v", "g", "beta", "onorm_gate"):
        x = given_[name][0]
        owned = torch.zeros(len(x), dtype=torch.bool)
        for n in range(case.requests):
            owned[offsets[n] : offsets[n + 1]] = n not in case.padding
        assert is_poison(x[~owned]).all(), name
        assert not is_poison(x[owned]).any(), name
    for arena in built.frame.arenas:
        dtype = arena.placements[0].dtype
        for zone in (arena.storage[: arena.guard], arena.storage[-arena.guard :]):
            assert is_poison(zone.view(dtype)).all()


def test_commit_rings_are_poison_past_the_accepted_count() -> None:
    built = build(replace(RICH, operation="commit", layers=2, null_block=0, track=True))
    rings = {"rawv": 2, "rawk": 2, "gk": 2, "beta": 2}
    for name in rings:
        for n, slot in enumerate(built.slots):
            if n in built.case.padding:
                assert slot <= 0
                continue
            entries = built.arguments[name][:, slot]
            count = built.case.lengths[n]
            assert not is_poison(entries[:, :, :count]).any()
            assert is_poison(entries[:, :, count:]).all()
    tracked = [s for s in built.arguments["mamba_track_indices"].tolist() if s >= 0]
    assert tracked
    assert not set(tracked) & set(built.slots)


def test_envelope_operands_share_bytes_but_no_element() -> None:
    built = build(RICH)
    arena = next(a for a in built.frame.arenas if len(a.placements) > 3)
    names = {p.name for p in arena.placements}
    assert {"recurrent_state", "cs_q", "replayssm_rawv", "replayssm_beta"} <= names
    starts, ends = zip(*((p.start, p.end()) for p in arena.placements), strict=True)
    assert max(starts) < min(ends)
    claims = torch.zeros_like(arena.storage)
    for p in arena.placements:
        alone = torch.zeros_like(arena.storage)
        width = {2: torch.int16, 4: torch.int32}[p.dtype.itemsize]
        first = (arena.guard + p.start) // p.dtype.itemsize
        alone.view(width).as_strided(p.shape, p.strides, first).fill_(-1)
        claims += alone > 0
    assert claims.max() == 1
    state = built.arguments["recurrent_state"]
    assert state.storage_offset() % 4 == 0
    assert state.stride(0) % 4 == 0
    assert state.stride(0) % 16 != 0
    assert state.data_ptr() % 16 == 0


def test_weights_have_the_gaps_of_index_vectors() -> None:
    arguments = build(RICH).arguments
    vectors = ("A_log", "dt_bias", "onorm_weight", "ssm_state_indices", "cu_seqlens")
    assert {arguments[name].stride() for name in vectors} == {(3,)}
    assert {arguments[f"w_{x}"].stride() for x in "qkv"} == {(6, 1)}
    dense = build(replace(RICH, index_stride=1)).arguments
    assert all(dense[name].is_contiguous() for name in ("A_log", "dt_bias", "w_q"))


def flip(storage: Tensor, byte: int) -> None:
    """Change one bit."""
    storage[byte] = storage[byte] ^ 1


@pytest.mark.parametrize("pool", ["dense", "pitched", "envelope"])
def test_frame_finds_one_changed_bit_anywhere(pool: str) -> None:
    built = build(replace(RICH, pool=pool))
    frame, live = built.frame, [s for s in built.slots if s >= 0]
    ring = torch.zeros(built.arguments["replayssm_rawv"].shape, dtype=torch.bool)
    ring[live[0], :, :3] = True
    owned = {"replayssm_rawv": ring, "out": torch.tensor(True)}
    unlisted = next(s for s in range(99) if s not in live)
    spare_row = next(r for r in range(99) if r not in built.scratch_rows)
    planted = {
        "recurrent_state": (unlisted, 1, 2, 3),
        "cs_v": (live[0], 5, 1),
        "replayssm_rawv": (live[0], 1, 3, 0),
        "replayssm_g": (live[0], 0, 0, 0),
        "intermediate_ssm": (spare_row, 1, 0, 0, 0),
        "intermediate_conv_k": (spare_row, 0, 2, 1),
        "x_k": (0, 1, 1, 7),
        "ssm_state_indices": (1,),
    }
    for name, where in planted.items():
        frame.snapshot()
        arena = next(a for a in frame.arenas if name in {p.name for p in a.placements})
        element = built.arguments[name][where]
        flip(arena.storage, element.storage_offset() * element.element_size())
        assert frame.trespasses(owned) == [(name, where)]
        frame.restore()
        assert frame.trespasses({}) == []
    built.arguments["out"].fill_(1.0)
    built.arguments["replayssm_rawv"][ring] = 2.0
    assert frame.trespasses(owned) == []
    assert frame.trespasses({})


@SMALL
@given(cases(), st.randoms(use_true_random=False))
def test_frame_finds_guards_and_gaps(case: Case, random: Any) -> None:
    built = build(case)
    arena = random.choice(built.frame.arenas)
    claimed = torch.zeros_like(arena.storage)
    for p in arena.placements:
        width = {2: torch.int16, 4: torch.int32}[p.dtype.itemsize]
        first = (arena.guard + p.start) // p.dtype.itemsize
        claimed.view(width).as_strided(p.shape, p.strides, first).fill_(-1)
    free = (claimed == 0).nonzero()[:, 0].tolist()
    byte = random.choice(free)
    built.frame.snapshot()
    flip(arena.storage, byte)
    everything = {n: torch.tensor(True) for n in built.frame.views()}
    found = built.frame.trespasses(everything)
    assert len(found) == 1
    name, (offset,) = found[0]
    p = next(p for p in arena.placements if name == f"guard of {p.name}")
    start = arena.guard + p.start + offset * p.dtype.itemsize
    assert start <= byte < start + p.dtype.itemsize


# The exact family: any algorithm in any precision must give the oracle's bits.


def prepared(built: Built, n: int) -> tuple[Tensor, ...]:
    """Run every stage before the recurrence in fp32, for request n: q, k, v, G, b."""
    a, case = built.arguments, built.case
    start, end = a["cu_seqlens"][n : n + 2].tolist()
    streams = []
    for s in "qkv":
        x = a[f"x_{s}"][0, start:end].float()
        if case.conv:
            window = stages.windows(a[f"cs_{s}"][built.slots[n]].float(), x.flatten(1))
            y = stages.silu(stages.short_conv(window, a[f"w_{s}"]))
            assert torch.equal(y, y.to(a["x_q"].dtype).float())
            x = y.view_as(x)
        streams.append(x)
    q, k, v = streams
    if case.qk_norm:
        q, k = stages.l2_normalize(q), stages.l2_normalize(k)
    q = (q * a["scale"]).repeat_interleave(case.group, 1)
    k = k.repeat_interleave(case.group, 1)
    logit = a["g"][0, start:end].float()
    if "dt_bias" in a:
        logit = logit + a["dt_bias"].view(case.heads_v, -1)
    rate = a.get("A_log", torch.zeros(case.heads_v))[:, None]
    decay = logit
    if case.gate_form == "softplus":
        decay = stages.softplus_gate(logit, rate)
    elif case.gate_form == "lower_bound":
        decay = stages.lower_bound_gate(logit, rate, a["lower_bound"])
    b = stages.write_strength(a["beta"][0, start:end].float(), case.beta_form)
    return q, k, v, decay, b


def token_loop(state: Tensor, tokens: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Advance one head token by token, every operand of a product rounded to `dtype`."""

    def r(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    q, k, v, decay, b = tokens
    out = []
    for t in range(len(b)):
        state = state * torch.exp(decay[t])
        u = b[t] * (v[t] - r(state) @ r(k[t]))
        state = state + r(u)[:, None] * r(k[t])
        out.append(r(state) @ r(q[t]))
    return torch.stack(out), state


def one_pass(state: Tensor, tokens: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Advance one head in one pass over its state, by forward substitution."""

    def r(x: Tensor) -> Tensor:
        return x.to(dtype).float()

    q, k, v, decay, b = tokens
    size, count = k.shape[1], len(b)
    carried = torch.zeros(0, size)
    total = torch.ones(size)
    y, z, p, w = torch.zeros(0, size), torch.zeros(0, v.shape[1]), [], []
    for t in range(count):
        total = total * torch.exp(decay[t])
        carried = carried * torch.exp(decay[t])
        row = b[t] * (r(carried) @ r(k[t]))
        y = torch.cat([y, (-b[t] * k[t] * total - r(row) @ r(y))[None]])
        z = torch.cat([z, (b[t] * v[t] - r(row) @ r(z))[None]])
        carried = torch.cat([carried, k[t : t + 1]])
        reads = r(carried) @ r(q[t])
        p.append(q[t] * total + r(reads) @ r(y))
        w.append(r(reads) @ r(z))
    out = r(torch.stack(p)) @ r(state).T + torch.stack(w)
    u = r(y) @ r(state).T + z
    return out, state * total + r(u).T @ r(carried)


@SMALL
@given(cases("verify", exact=True))
def test_exact_family_rounds_nowhere(case: Case) -> None:
    built = build(case)
    result = call_oracle(built)
    assert result.in_range
    for n, trace in enumerate(result.requests):
        if trace is None or not case.lengths[n]:
            continue
        q, k, v, decay, b = prepared(built, n)
        ring = trace.ring_log_decay.value
        assert torch.equal(decay.double(), ring)
        assert torch.equal(b.double(), trace.ring_beta.value)
        state = built.arguments["recurrent_state"][built.slots[n]]
        for head in range(case.heads_v):
            for algorithm in (token_loop, one_pass):
                for dtype in (torch.float32, torch.bfloat16):
                    inputs = [x[:, head] for x in (q, k, v, decay, b)]
                    out, last = algorithm(state[head], inputs, dtype)
                    assert torch.equal(out.double(), trace.o.value[:, head])
                    assert trace.snapshots is not None
                    assert torch.equal(last.double(), trace.snapshots.value[-1, head])
                    assert torch.equal(out, out.to(dtype).float())


@pytest.mark.parametrize("keys", ["one_hot", "hadamard"])
@pytest.mark.parametrize("conv", [True, False])
def test_exact_family_exercises_every_stage(keys: str, conv: bool) -> None:
    case = Case(
        exact=True, conv=conv, keys=keys, lengths=(12, 12), capacity=12, gate_form="softplus",
        beta_form="twice_sigmoid", records=("snapshots",), group=2, dtype="bfloat16",
    )  # fmt: skip
    built = build(case)
    result = call_oracle(built)
    traces = [t for t in result.requests if t is not None]
    assert {float(x) for t in traces for x in t.ring_beta.value.unique()} == {0.0, 1.0, 2.0}
    assert {float(x) for t in traces for x in t.ring_log_decay.value.unique()} == {0.0, -1024.0}
    assert all((t.o.value != 0).double().mean() > 0.3 for t in traces)


@pytest.mark.parametrize(
    "change", [{"dtype": "float16"}, {"out_norm": True}, {"qk_norm": False}, {"scale": 0.3}]
)
def test_exact_refuses_stages_that_round(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be .* where exact"):
        build(replace(Case(exact=True), **change))
