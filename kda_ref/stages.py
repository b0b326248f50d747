"""The stages of KDA around the recurrence, one formula each, in float64.

Every function takes and returns plain tensors; `kda_ref.budget` has the error of each beside it.
Source: Kimi Linear technical report (arXiv 2510.26692) and the public kernels' conventions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

QK_NORM_EPS = 1e-6


def windows(history: Tensor, x: Tensor) -> Tensor:
    """Slide the width-4 window of the causal convolution over new tokens.

    Args:
        history: [C, 3], the last three raw inputs, oldest first.
        x: [L, C], new raw inputs.

    Returns:
        [L, C, 4], oldest to newest; `[t, :, 1:]` is the history after token t.
    """
    rows = torch.cat([history.T, x])
    return torch.stack([rows[w : w + len(x)] for w in range(4)], -1)


def short_conv(window: Tensor, taps: Tensor) -> Tensor:
    """c = sum_w taps[ch, w] * window[ch, w] over the last axis ([L, C, 4], [C, 4] -> [L, C])."""
    return (window * taps).sum(-1)


def silu(c: Tensor) -> Tensor:
    """y = c * sigmoid(c)."""
    return c * torch.sigmoid(c)


def l2_normalize(y: Tensor) -> Tensor:
    """y / sqrt(sum y^2 + 1e-6) over the last axis: eps inside the root."""
    return y / torch.sqrt((y * y).sum(-1, keepdim=True) + QK_NORM_EPS)


def softplus_gate(logit: Tensor, a_log: Tensor) -> Tensor:
    """log_decay = -exp(A_log) * softplus(logit); `logit` is g + dt_bias."""
    return -torch.exp(a_log) * F.softplus(logit, threshold=1000.0)


def lower_bound_gate(logit: Tensor, a_log: Tensor, lower_bound: float) -> Tensor:
    """log_decay = lower_bound * sigmoid(exp(A_log) * logit), in (lower_bound, 0)."""
    return lower_bound * torch.sigmoid(torch.exp(a_log) * logit)


def write_strength(beta: Tensor, beta_form: str) -> Tensor:
    """beta as given, sigmoid(beta), or 2 * sigmoid(beta) (negative eigenvalues allowed)."""
    if beta_form == "given":
        return beta
    return torch.sigmoid(beta) * (2.0 if beta_form == "twice_sigmoid" else 1.0)


def gated_rms_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """o / sqrt(mean o^2 + eps) * weight * sigmoid(gate) over the last axis."""
    return o / torch.sqrt((o * o).mean(-1, keepdim=True) + eps) * weight * torch.sigmoid(gate)
