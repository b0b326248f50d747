"""Token-order and one-pass forms of the recurrence in fp32, with the products of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .arithmetic import Arithmetic


@dataclass(frozen=True)
class Operands:
    """Inputs of the recurrence for one request, fp32 and one row per value head.

    Attributes:
        q, k, log_decay: [L, HV, K], q normalized and scaled, k normalized; v: [L, HV, V];
            b: [L, HV].
        state: [HV, V, K].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    b: Tensor
    state: Tensor


Form = Callable[[Operands, Arithmetic], tuple[Tensor, Tensor]]
"""(operands, arithmetic) -> o [L, HV, V] and the state after every token [L, HV, V, K]."""


def token_order(x: Operands, arithmetic: Arithmetic) -> tuple[Tensor, Tensor]:
    """S <- S diag(exp G); u = b (v - S k); S <- S + u k^T; o = S q."""
    state, outputs, states = x.state, [], []
    for q, k, v, decay, b in zip(x.q, x.k, x.v, x.log_decay, x.b, strict=True):
        state = state * arithmetic.exp(decay)[:, None, :]
        u = b[:, None] * (v - arithmetic.apply("state", state, k))
        state = state + arithmetic.outer(u, k)
        outputs.append(arithmetic.apply("output", state, q))
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def one_pass(
    x: Operands, arithmetic: Arithmetic, *, segment_sums: bool = False
) -> tuple[Tensor, Tensor]:
    """o_t = S0 p_t + w_t and u_t = S0 y_t + z_t, by forward substitution on the operands.

    Earlier keys carry their decay along: as a product that grows by one factor per token, or
    (`segment_sums`) as the exponential of a sum that starts at their own token.
    """
    length, heads, size_k = x.k.shape
    size_v = x.v.shape[-1]
    ys, zs = x.k.new_zeros(heads, length, size_k), x.k.new_zeros(heads, length, size_v)
    summed = x.k.new_zeros(heads, length + 1, size_k)
    decays = torch.ones_like(summed)
    keys = torch.zeros_like(ys)
    ps, ws, states = [], [], []
    for t, (q, k, v, decay, b) in enumerate(zip(x.q, x.k, x.v, x.log_decay, x.b, strict=True)):
        # Row 0 belongs to S0, row j + 1 to key j; rows that start later hold one.
        if segment_sums:
            summed[:, : t + 1] += decay[:, None, :]
            decays = arithmetic.exp(summed)
        else:
            decays[:, : t + 1] *= arithmetic.exp(decay)[:, None, :]
        carried = keys[:, :t] * decays[:, 1 : t + 1]
        row = b[:, None] * arithmetic.apply("keys", carried, k)
        back = row[:, None, :]
        ys[:, t] = (
            -b[:, None] * (k * decays[:, 0]) - arithmetic.matmul("keys", back, ys[:, :t])[:, 0]
        )
        zs[:, t] = b[:, None] * v - arithmetic.matmul("keys", back, zs[:, :t])[:, 0]
        keys[:, t] = k
        carried = torch.cat([carried, k[:, None]], 1)
        weights = arithmetic.apply("output", carried, q)[:, None, :]
        ps.append(q * decays[:, 0] + arithmetic.matmul("output", weights, ys[:, : t + 1])[:, 0])
        ws.append(arithmetic.matmul("output", weights, zs[:, : t + 1])[:, 0])
        u = arithmetic.matmul("state", ys[:, : t + 1], x.state.mT) + zs[:, : t + 1]
        states.append(x.state * decays[:, :1] + arithmetic.matmul("update", u.mT, carried))
    p, w = torch.stack(ps, 1), torch.stack(ws, 1)
    o = arithmetic.matmul("output", p, x.state.mT) + w
    return o.transpose(0, 1), torch.stack(states)
