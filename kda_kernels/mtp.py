"""The general multi-token verify."""

from __future__ import annotations

import torch
from torch import Tensor

from .contract import MTP_VERIFY
from .registration import verify_operation


def kda_mtp_verify(
    *,
    x_q: Tensor,
    x_k: Tensor,
    x_v: Tensor,
    w_q: Tensor | None = None,
    w_k: Tensor | None = None,
    w_v: Tensor | None = None,
    cs_q: Tensor | None = None,
    cs_k: Tensor | None = None,
    cs_v: Tensor | None = None,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    recurrent_state: Tensor,
    intermediate_ssm: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    intermediate_conv_q: Tensor | None = None,
    intermediate_conv_k: Tensor | None = None,
    intermediate_conv_v: Tensor | None = None,
    ssm_state_indices: Tensor,
    cu_seqlens: Tensor,
    max_tokens: int,
    gate_form: str = "lower_bound",
    lower_bound: float | None = None,
    beta_form: str = "sigmoid",
    use_qk_l2norm_in_kernel: bool = True,
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
    """Run a draft from the committed pools, leave them alone, record what a commit needs.

    Per token: S <- S diag(exp G); u = b (v - S k); S <- S + u k^T; o = S q.

    Args:
        x_q, x_k: [1, T, H, K] fp32, bf16 or fp16; inputs of the convolution, or its results
            after SiLU where no taps are given. Last axis of unit stride.
        x_v: [1, T, HV, V], same dtype; HV = G * H and value head hv reads query head hv // G.
        w_q, w_k, w_v: [H * K, 4] (q, k) and [HV * V, 4] (v) fp32 taps, oldest first, or None.
        cs_q, cs_k, cs_v: [slots, channels, 3] last raw inputs, oldest first; read only.
        g: [1, T, HV, K] gate logits, or natural-log decay where `gate_form` is "given".
        beta: [1, T, HV] write-strength logits, or the strength where `beta_form` is "given".
        A_log: [HV] fp32 log rate; None is a factor of 1 (lower bound only).
        dt_bias: [HV * K] fp32; None is zero.
        recurrent_state: [slots, HV, V, K] fp32, inner block dense; read only.
        intermediate_ssm: [rows, >= max_tokens, HV, V, K] fp32, state after every token, or None.
        intermediate_state_indices: [N] int32 row of each request in the intermediate buffers.
        intermediate_conv_q, intermediate_conv_k, intermediate_conv_v: [rows, >= max_tokens,
            channels, 3] dtype of x, conv window after every token, or None.
        ssm_state_indices: [N] int32 pool slot of each request; negative is padding.
        cu_seqlens: [N + 1] int32 row offsets; ragged and empty requests are allowed.
        max_tokens: most rows of one request, 1 to 16.
        gate_form: "lower_bound" (G = lower_bound * sigmoid(exp(A_log) * (g + dt_bias))),
            "softplus" (G = -exp(A_log) * softplus(g + dt_bias)) or "given".
        lower_bound: negative gate floor, for the lower-bound form only.
        beta_form: "sigmoid", "twice_sigmoid" or "given".
        use_qk_l2norm_in_kernel: divide q and k by sqrt(sum of squares + 1e-6).
        scale: factor of q after its norm; K ** -0.5 by default.
        replayssm_rawv, replayssm_rawk: rings [slots, HV, R, V], [slots, H, R, K] dtype of x:
            v and k after SiLU, k before its norm. All four rings or none.
        replayssm_g, replayssm_beta: rings [slots, HV, R, K], [slots, HV, R] fp32: natural-log
            decay and write strength.
        onorm_gate: [1, T, HV, V] logits of the output gate; with weight and eps, or none.
        onorm_weight: [V] fp32.
        onorm_eps: eps of the output RMS norm, inside its root.
        out: [1, T, HV, V] dtype of x, last axis of unit stride; allocated when None.
        check_values: check index values too; None does so for CPU tensors only.

    Returns:
        `out`. Rows of padding requests and rows that no request owns are zero.

    Raises:
        ValueError: the contract is not met; nothing has been allocated or written then.

    Numerics: fp32 class from load to store, one rounding to the dtype of each result.
    Source: arXiv 2510.26692; the one-pass form is derived in `kda_kernels.prepare`.
    """
    MTP_VERIFY.validate(locals())
    if out is None:
        out = torch.empty(x_v.shape, dtype=x_v.dtype, device=x_v.device)
    verify_operation(
        x_q, x_k, x_v, w_q, w_k, w_v, cs_q, cs_k, cs_v, g, beta, A_log, dt_bias,
        recurrent_state, intermediate_ssm, intermediate_state_indices,
        intermediate_conv_q, intermediate_conv_k, intermediate_conv_v,
        ssm_state_indices, cu_seqlens, max_tokens, gate_form, lower_bound, beta_form,
        use_qk_l2norm_in_kernel, scale, replayssm_rawv, replayssm_rawk, replayssm_g,
        replayssm_beta, onorm_gate, onorm_weight, onorm_eps, out,
    )  # fmt: skip
    return out
