"""The oracle over sequences and pools: layouts, slots, padding, in-place update, commits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kda_ref import kda_conv_commit, kda_recurrent, kda_replay_commit

H, HV, K, V, T = 2, 4, 16, 24, 7
OFFSETS = torch.tensor([0, 3, 3, 7], dtype=torch.int32)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def inputs() -> dict[str, Any]:
    return {
        "q": normal(1, T, H, K, seed=1),
        "k": normal(1, T, H, K, seed=2),
        "v": normal(1, T, HV, V, seed=3),
        "g": -normal(1, T, HV, K, seed=4).abs(),
        "beta": normal(1, T, HV, seed=5).sigmoid(),
        "use_qk_l2norm_in_kernel": True,
    }


def rows(given: dict[str, Any], part: slice) -> dict[str, Any]:
    return {n: x[:, part] if isinstance(x, Tensor) else x for n, x in given.items()}


def test_packed_sequences_equal_separate_ones_and_empty_ones_pass_their_state_through() -> None:
    state = normal(3, HV, V, K)
    packed = kda_recurrent(**inputs(), initial_state=state, cu_seqlens=OFFSETS)
    for n, part in ((0, slice(0, 3)), (2, slice(3, 7))):
        alone = kda_recurrent(**rows(inputs(), part), initial_state=state[n : n + 1])
        assert torch.equal(packed.out.value[:, part], alone.out.value)
        assert torch.equal(packed.final_state.value[n], alone.final_state.value[0])
    assert torch.equal(packed.final_state.value[1], state[1].double())
    assert not packed.final_state.error[1].any()


def test_both_state_layouts_hold_the_same_numbers() -> None:
    state = normal(3, HV, V, K)
    vk = kda_recurrent(**inputs(), initial_state=state, cu_seqlens=OFFSETS)
    kv = kda_recurrent(
        **inputs(), initial_state=state.mT.contiguous(), cu_seqlens=OFFSETS, state_layout="kv"
    )
    assert torch.equal(vk.out.value, kv.out.value)
    assert torch.equal(vk.final_state.value, kv.final_state.value.mT)
    assert torch.equal(vk.final_state.error, kv.final_state.error.mT)


@pytest.mark.parametrize("layout", ["vk", "kv"])
def test_a_pool_is_updated_in_place_at_the_listed_slots_only(layout: str) -> None:
    pool = normal(5, HV, V, K)
    given = pool.clone() if layout == "vk" else pool.mT.contiguous()
    slots = torch.tensor([4, -1, 2], dtype=torch.int32)
    found = kda_recurrent(
        **inputs(), initial_state=given, cu_seqlens=OFFSETS, ssm_state_indices=slots,
        update_pool=True, state_layout=layout,
    )  # fmt: skip
    plain = kda_recurrent(**inputs(), initial_state=pool[[4, 0, 2]], cu_seqlens=OFFSETS)
    after = given if layout == "vk" else given.mT
    for n, slot in ((0, 4), (2, 2)):
        assert torch.equal(after[slot], plain.final_state.value[n].float())
    for slot in (0, 1, 3):
        assert torch.equal(after[slot], pool[slot])
    assert torch.equal(found.out.value, plain.out.value)


def test_padding_sequences_get_zero_rows() -> None:
    slots = torch.tensor([-1, 0, 1], dtype=torch.int32)
    found = kda_recurrent(
        **inputs(), initial_state=normal(2, HV, V, K), cu_seqlens=OFFSETS, ssm_state_indices=slots
    )
    assert not found.out.value[0, :3].any()
    assert not found.out.error[0, :3].any()
    assert found.out.value[0, 3:].any()


def test_query_heads_serve_consecutive_value_heads() -> None:
    given = inputs()
    apart = {
        **given,
        "q": given["q"].repeat_interleave(2, 2),
        "k": given["k"].repeat_interleave(2, 2),
    }
    assert torch.equal(kda_recurrent(**given).out.value, kda_recurrent(**apart).out.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_layout": "kk"}, "`state_layout` must be 'vk' or 'kv', got 'kk'"),
        ({"q": normal(2, T, H, K)}, "`q` must have batch size 1 with `cu_seqlens`, got 2"),
        (
            {"ssm_state_indices": torch.tensor([0, 1, 2])},
            "`initial_state` must be a pool with `ssm_state_indices`, got None",
        ),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        kda_recurrent(**{**inputs(), "cu_seqlens": OFFSETS, **change})
    assert str(caught.value) == message


def commit_inputs() -> dict[str, Any]:
    return {
        "checkpoint_state": normal(4, HV, V, K),
        "rawv": normal(4, HV, 5, V),
        "rawk": normal(4, H, 5, K),
        "gk": -normal(4, HV, 5, K).abs(),
        "beta": normal(4, HV, 5).sigmoid(),
        "ssm_state_indices": torch.tensor([3, 0, -1], dtype=torch.int32),
        "accept_lens": torch.tensor([4, 2, 5], dtype=torch.int32),
    }


def test_commit_replays_the_accepted_prefix_and_keeps_the_tracked_step() -> None:
    given = commit_inputs()
    track = torch.tensor([1, 2, -1]), torch.tensor([1, 2, 0])
    found = kda_replay_commit(
        **given, null_block_id=-1, mamba_track_indices=track[0], mamba_steps_to_track=track[1]
    )
    (written,) = found.layers
    # Slot 2 stays: step 2 of two accepted tokens does not exist. The null slot is skipped.
    assert set(written) == {3, 0, 1}
    for slot, source, count in ((3, 3, 4), (0, 0, 2), (1, 3, 2)):
        ring = {
            n: given[n][source].transpose(0, 1)[None, :count]
            for n in ("rawk", "rawv", "gk", "beta")
        }
        plain = kda_recurrent(
            q=ring["rawk"], k=ring["rawk"], v=ring["rawv"], g=ring["gk"], beta=ring["beta"],
            use_qk_l2norm_in_kernel=True, initial_state=given["checkpoint_state"][source][None],
        )  # fmt: skip
        assert torch.equal(written[slot].value, plain.final_state.value[0])


def test_null_block_skips_slot_zero() -> None:
    (written,) = kda_replay_commit(**commit_inputs(), null_block_id=0).layers
    assert set(written) == {3}


def test_all_layers_equal_each_layer() -> None:
    one, two = commit_inputs(), {**commit_inputs(), "rawv": normal(4, HV, 5, V, seed=9)}
    shared = ("ssm_state_indices", "accept_lens")
    stacked: dict[str, Any] = {
        n: x if n in shared else torch.stack([x, two[n]]) for n, x in one.items()
    }
    both = kda_replay_commit(**stacked, null_block_id=-1).layers
    for layer, given in zip(both, (one, two), strict=True):
        (alone,) = kda_replay_commit(**given, null_block_id=-1).layers
        assert all(torch.equal(layer[s].value, alone[s].value) for s in alone)


def test_conv_commit_takes_the_window_of_the_last_accepted_token() -> None:
    pools: dict[str, Any] = {f"cs_{n}": normal(4, 6, 3, seed=i) for i, n in enumerate("qkv")}
    recorded: dict[str, Any] = {
        f"intermediate_conv_{n}": normal(3, 5, 6, 3, seed=i) for i, n in enumerate("qkv")
    }
    new = kda_conv_commit(
        **pools, **recorded,
        intermediate_state_indices=torch.tensor([2, 0, 1]),
        ssm_state_indices=torch.tensor([1, 3, -1]),
        accept_lens=torch.tensor([5, 0, 2]),
        null_block_id=-1,
    )  # fmt: skip
    for name, pool in zip("qkv", new, strict=True):
        before = pools[f"cs_{name}"]
        assert torch.equal(pool[1], recorded[f"intermediate_conv_{name}"][2, 4])
        assert all(torch.equal(pool[s], before[s]) for s in (0, 2, 3))
