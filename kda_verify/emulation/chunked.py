"""The chunked (WY) form of the recurrence in fp32, with cumulative gates."""

from __future__ import annotations

import torch
from torch import Tensor

from .arithmetic import Arithmetic
from .forms import Operands


def chunked(x: Operands, arithmetic: Arithmetic, *, size: int) -> tuple[Tensor, Tensor]:
    """Solve `size` tokens at a time against the state at the start of their chunk.

    A[t, j] = b_t <k_t, k_j e^(c_t - c_j)> for j < t, T = (I + A)^-1,
    u = T b v - (T b k e^c) S0^T, o = (q e^c) S0^T + B u: gates enter as differences of sums.
    """
    state, outputs, states = x.state, [], []
    for start in range(0, x.k.shape[0], size):
        at = slice(start, start + size)
        part = Operands(x.q[at], x.k[at], x.v[at], x.log_decay[at], x.b[at], state)
        o, after = _chunk(part, arithmetic)
        state = after[-1]
        outputs.append(o)
        states.append(after)
    return torch.cat(outputs), torch.cat(states)


def scan(x: Tensor) -> Tensor:
    """Cumulative sums along axis 1, by doubling as in parallel scans: neighbours round apart."""
    reach = 1
    while reach < x.shape[1]:
        x = torch.cat([x[:, :reach], x[:, reach:] + x[:, :-reach]], 1)
        reach *= 2
    return x


def _chunk(x: Operands, arithmetic: Arithmetic) -> tuple[Tensor, Tensor]:
    q, k, v = (y.transpose(0, 1) for y in (x.q, x.k, x.v))
    b = x.b.T[..., None]
    length = k.shape[1]
    summed = scan(x.log_decay.transpose(0, 1))
    gap = summed[:, :, None, :] - summed[:, None, :, :]
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    decay = arithmetic.exp(gap.masked_fill(~seen[..., None], -torch.inf))
    carried = k[:, None, :, :] * decay
    a = (b * arithmetic.apply("keys", carried, k)).tril(-1)
    weights = arithmetic.apply("output", carried, q).tril()

    written = b * v
    read = b * (k * arithmetic.exp(summed))
    for t in range(1, length):
        row = a[:, t : t + 1, :t]
        written[:, t] -= arithmetic.matmul("keys", row, written[:, :t])[:, 0]
        read[:, t] -= arithmetic.matmul("keys", row, read[:, :t])[:, 0]
    u = written - arithmetic.matmul("state", read, x.state.mT)
    o = arithmetic.matmul("output", q * arithmetic.exp(summed), x.state.mT)
    o = o + arithmetic.matmul("output", weights, u)
    after = x.state[:, None] * arithmetic.exp(summed)[:, :, None, :]
    after = after + arithmetic.matmul("update", u[:, None].mT, carried)
    return o.transpose(0, 1), after.transpose(0, 1)
