"""Drop-ins for the released verify and commit: their names, keywords, defaults and checks."""

from __future__ import annotations

import torch
from torch import Tensor

from .contract import COMMIT_SPEC, DSPARK
from .registration import commit_operation, verify_operation


def fused_kda_decode_mtp_dspark(
    *,
    x_q: Tensor,
    x_k: Tensor,
    x_v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    cs_q: Tensor,
    cs_k: Tensor,
    cs_v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    recurrent_state: Tensor,
    intermediate_ssm: Tensor | None,
    intermediate_state_indices: Tensor,
    intermediate_conv_q: Tensor,
    intermediate_conv_k: Tensor,
    intermediate_conv_v: Tensor,
    ssm_state_indices: Tensor,
    cu_seqlens: Tensor,
    lower_bound: float,
    scale: float | None = None,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
    onorm_gate: Tensor | None = None,
    onorm_weight: Tensor | None = None,
    onorm_eps: float | None = None,
    out: Tensor | None = None,
    check_values: bool | None = None,
) -> Tensor:
    """Verify a speculative draft with H = HV, K = V = 128, bf16 and the lower-bound gate.

    Per token: S <- S diag(exp G); u = sigmoid(beta) (v - S k); S <- S + u k^T; o = S q.

    Args:
        x_q, x_k, x_v: [1, T, H, 128] bf16, inputs of the convolution.
        w_q, w_k, w_v: [H * 128, 4] fp32 taps, oldest first.
        cs_q, cs_k, cs_v: [slots, H * 128, 3] bf16 conv history; read only.
        g: [1, T, H, 128] bf16 gate logits.
        beta: [1, T, H] bf16 write-strength logits.
        A_log: [H] fp32.
        dt_bias: [H * 128] fp32.
        recurrent_state: [slots, H, 128 (V), 128 (K)] fp32; read only.
        intermediate_ssm: [rows, >= T // N, H, 128, 128] fp32 state after every token; not
            written when rings are given.
        intermediate_state_indices: [N] int32 scratch rows.
        intermediate_conv_q, intermediate_conv_k, intermediate_conv_v: [rows, >= T // N,
            H * 128, 3] bf16 windows.
        ssm_state_indices: [N] int32 pool slots; negative is padding.
        cu_seqlens: [N + 1] int32 row offsets, each request at most T // N rows.
        lower_bound: negative gate floor.
        scale: factor of q after its norm; 128 ** -0.5 by default.
        replayssm_rawv, replayssm_rawk: rings [slots, H, R, 128] bf16.
        replayssm_g, replayssm_beta: rings [slots, H, R, 128] and [slots, H, R] fp32.
        onorm_gate: [1, T, H, 128] bf16; with weight [128] fp32 and eps, or none.
        onorm_weight: [128] fp32.
        onorm_eps: 0.0 counts as given.
        out: [1, T, H, 128] bf16; allocated when None.
        check_values: check index values too; None does so for CPU tensors only.

    Returns:
        `out`.

    Raises:
        ValueError: a released check, in the released order, or ours after those.

    Numerics: as `kda_mtp_verify`.
    Source: the public serving function of this name.
    """
    DSPARK.validate(locals())
    if out is None:
        out = torch.empty(x_v.shape, dtype=x_v.dtype, device=x_v.device)
    max_tokens = x_q.shape[1] // ssm_state_indices.shape[0]
    snapshots = intermediate_ssm if replayssm_rawv is None else None
    verify_operation(
        x_q, x_k, x_v, w_q, w_k, w_v, cs_q, cs_k, cs_v, g, beta, A_log, dt_bias,
        recurrent_state, snapshots, intermediate_state_indices,
        intermediate_conv_q, intermediate_conv_k, intermediate_conv_v,
        ssm_state_indices, cu_seqlens, max_tokens, "lower_bound", lower_bound, "sigmoid",
        True, scale, replayssm_rawv, replayssm_rawk, replayssm_g, replayssm_beta,
        onorm_gate, onorm_weight, onorm_eps, out,
    )  # fmt: skip
    return out


def commit_kda_replayssm_spec(
    checkpoint_state: Tensor,
    rawv: Tensor,
    rawk: Tensor,
    gk: Tensor,
    beta: Tensor,
    ssm_state_indices: Tensor,
    accept_lens: Tensor,
    *,
    max_cache_len: int,
    num_k_heads: int,
    mamba_track_indices: Tensor | None = None,
    mamba_steps_to_track: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    null_block_id: int = 0,
    check_values: bool | None = None,
) -> None:
    """Fold the accepted prefix of the rings into the pool, in place; slot 0 is null by default.

    Per accepted entry: S <- S diag(exp gk); u = beta (v - S k); S <- S + u k^T.

    Args:
        checkpoint_state, rawv, rawk, gk, beta, ssm_state_indices, accept_lens,
            mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel, check_values:
            as `kda_replay_commit`, stacked layers included.
        max_cache_len: R, the entries of a ring.
        num_k_heads: H, the key heads.
        null_block_id: requests with slot <= null_block_id are skipped. The verify treats slot 0
            as live, so pass -1 where slot 0 is used.

    Raises:
        ValueError: the contract is not met; nothing has been written then.

    Numerics: as `kda_replay_commit`.
    Source: the public serving function of this name.
    """
    COMMIT_SPEC.validate(locals())
    commit_operation(
        checkpoint_state, rawv, rawk, gk, beta, ssm_state_indices, accept_lens, null_block_id,
        mamba_track_indices, mamba_steps_to_track, use_qk_l2norm_in_kernel,
    )  # fmt: skip
