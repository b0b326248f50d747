"""The general commits: accepted ring entries into the state pool, windows into the conv pools."""

from __future__ import annotations

from torch import Tensor

from .contract import COMMIT, CONV_COMMIT
from .registration import commit_operation, conv_commit_operation


def kda_replay_commit(
    *,
    checkpoint_state: Tensor,
    rawv: Tensor,
    rawk: Tensor,
    gk: Tensor,
    beta: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    null_block_id: int,
    mamba_track_indices: Tensor | None = None,
    mamba_steps_to_track: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    check_values: bool | None = None,
) -> None:
    """Fold the accepted prefix of the rings into the state pool, in place.

    Per accepted entry: S <- S diag(exp gk); u = beta (v - S k); S <- S + u k^T.

    Args:
        checkpoint_state: [slots, HV, V, K] fp32, or [layers, slots, HV, V, K] with every buffer
            (not the indices) layer-stacked alike, in one launch.
        rawv, rawk: rings [slots, HV, R, V], [slots, H, R, K] fp32, bf16 or fp16.
        gk: ring [slots, HV, R, K] fp32, natural-log decay.
        beta: ring [slots, HV, R] fp32, write strength.
        ssm_state_indices: [B] int32 pool slots.
        accept_lens: [B] int32 accepted tokens, 0 to R; 0 leaves the slot bit-identical.
        null_block_id: requests with slot <= null_block_id are skipped (-1: only padding).
        mamba_track_indices, mamba_steps_to_track: [B] int32 or None; the state after step ==
            track step (from 0, if accepted) also goes to the track slot; -1 is none.
        use_qk_l2norm_in_kernel: divide k by sqrt(sum of squares + 1e-6).
        check_values: check index values too; None does so for CPU tensors only.

    Raises:
        ValueError: the contract is not met; nothing has been written then.

    Numerics: fp32 class; stacked layers equal the per-layer calls bit for bit.
    Source: the public replay fold; arXiv 2510.26692 for the step.
    """
    COMMIT.validate(locals())
    commit_operation(
        checkpoint_state, rawv, rawk, gk, beta, ssm_state_indices, accept_lens, null_block_id,
        mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,
    )  # fmt: skip


def kda_conv_commit(
    *,
    cs_q: Tensor,
    cs_k: Tensor,
    cs_v: Tensor,
    intermediate_conv_q: Tensor,
    intermediate_conv_k: Tensor,
    intermediate_conv_v: Tensor,
    intermediate_state_indices: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    null_block_id: int,
    check_values: bool | None = None,
) -> None:
    """Copy the window recorded at the last accepted token into the conv pools, in place.

    cs[slot] <- intermediate_conv[row, accepted - 1]; nothing where accepted is 0.

    Args:
        cs_q, cs_k, cs_v: [slots, channels, 3], or layer-stacked [layers, slots, channels, 3].
        intermediate_conv_q, intermediate_conv_k, intermediate_conv_v: [rows, depth, channels,
            3] of the same dtype, layer-stacked alike.
        intermediate_state_indices: [B] int32 rows.
        ssm_state_indices: [B] int32 pool slots.
        accept_lens: [B] int32 accepted tokens, 0 to depth.
        null_block_id: requests with slot <= null_block_id are skipped (-1: only padding).
        check_values: check index values too; None does so for CPU tensors only.

    Raises:
        ValueError: the contract is not met; nothing has been written then.

    Numerics: a copy, bit for bit.
    Source: the public conv scatter after a verify.
    """
    CONV_COMMIT.validate(locals())
    conv_commit_operation(
        cs_q, cs_k, cs_v, intermediate_conv_q, intermediate_conv_k, intermediate_conv_v,
        intermediate_state_indices, ssm_state_indices, accept_lens, null_block_id,
    )  # fmt: skip
