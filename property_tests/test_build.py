"""The builder: reproducible, poisoned where nobody may look, watched by its frame, and exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kda_ref import Precision
from kda_verify.cases.arena import POISON_INDEX
from kda_verify.cases.build import build
from kda_verify.cases.case import POISONS, Case
from kda_verify.cases.layout import SEED_PERIOD
from kda_verify.judging.expect import expect
from kda_verify.operations import NAMES

from .any_case import SMALL, call_oracle, cases

RICH = Case(
    heads=2, group=2, size_k=20, lengths=(3, 0, 2, 4), capacity=4, padding=(2,), slack_rows=2,
    dtype="bfloat16", logit_dtype="bfloat16", rows="packed", pool="envelope",
    conv_pool="transposed", spare_slots=2, index_stride=3, out_norm=True, out_given=True,
    records=("rings", "snapshots", "windows"), seed=5,
)  # fmt: skip


def is_poison(x: Tensor) -> Tensor:
    """Say which elements are poison."""
    if not x.dtype.is_floating_point:
        return x == POISON_INDEX
    return x.isnan() | (x.float().abs() >= 6e4)


def test_a_frame_adopts_only_one_that_lies_the_same() -> None:
    one, two = build(RICH), build(replace(RICH, seed=RICH.seed + SEED_PERIOD))
    one.frame.adopt(two.frame)
    for mine, theirs in zip(one.frame.arenas, two.frame.arenas, strict=True):
        assert torch.equal(mine.storage, theirs.storage)
    with pytest.raises(ValueError, match="must place the same operands alike"):
        one.frame.adopt(build(replace(RICH, spare_slots=1)).frame)


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
    # Of the oracles, only that of sequences writes: the pool, where it is asked to.
    pool = built.arguments.get("initial_state")
    owned = {} if pool is None else expect(built, Precision()).owned({"initial_state": pool})
    assert built.frame.trespasses(owned) == []
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
    arguments = build(replace(RICH, index_stride=3)).arguments
    vectors = ("cu_seqlens", "ssm_state_indices", "intermediate_state_indices")
    assert [arguments[name].stride() for name in vectors] == [(3,), (4,), (5,)]
    weights = ("A_log", "dt_bias", "onorm_weight")
    assert [arguments[name].stride() for name in weights] == [(3,), (4,), (5,)]
    taps = ("w_q", "w_k", "w_v")
    assert [arguments[name].stride() for name in taps] == [(6, 1), (7, 1), (8, 1)]


def streams(stem: str) -> tuple[str, ...]:
    return tuple(f"{stem}_{x}" for x in "qkv")


ALIKE = {
    "verify": (streams("x"), streams("w"), streams("cs"), streams("intermediate_conv"),
               ("replayssm_rawv", "replayssm_rawk", "replayssm_g")),
    "commit": (("rawv", "rawk", "gk"),),
    "conv_commit": (streams("cs"), streams("intermediate_conv")),
    "recurrent": (("q", "k", "v"),),
}  # fmt: skip


@pytest.mark.parametrize("operation", NAMES)
def test_operands_that_are_alike_lie_apart(operation: str) -> None:
    """With equal heads and sizes, no stride of one is one of another, but 1."""
    case = replace(
        RICH, operation=operation, rows="pitched", pool="pitched", group=1, size_v=RICH.size_k,
        layers=2, initial="pool",
    )  # fmt: skip
    arguments = build(case).arguments
    for names in ALIKE[operation]:
        one, two, three = (set(arguments[name].stride()) - {1} for name in names)
        assert not one & two | two & three | one & three, names


@pytest.mark.parametrize("states", ["unit", "zero"])
@pytest.mark.parametrize(
    ("initial", "passed"),
    [
        ("none", set()),
        ("given", {"initial_state"}),
        ("pool", {"initial_state", "ssm_state_indices"}),
    ],
)
def test_sequences_start_where_the_case_says(initial: str, passed: set[str], states: str) -> None:
    case = Case(operation="recurrent", lengths=(2, 1), capacity=2, initial=initial, states=states)
    arguments = build(case).arguments
    assert {"initial_state", "ssm_state_indices"} & set(arguments) == passed
    if initial != "none":
        assert arguments["initial_state"].shape[0] == 2 + (initial == "pool")


def test_poison_can_be_left_out() -> None:
    given, bare = build(RICH), build(replace(RICH, poison="zeros"))
    for with_poison, without in zip(given.frame.arenas, bare.frame.arenas, strict=True):
        assert bool(with_poison.storage[: with_poison.guard].any())
        assert not bool(without.storage[: without.guard].any())


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
