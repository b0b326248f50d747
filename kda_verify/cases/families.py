"""Value families: what keys, gates, taps, strengths, values and states look like."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case
from .draw import Draw
from .tokens import Timeline, Tokens

KEY_LIMIT = 0.98
"""Largest norm of a key that is not normalized: room for its rounding below b|k|^2 = 2."""

_CLOSED, _FAINT, _OPEN = -200.0, 1e-7, 30.0


def tokens(case: Case, draw: Draw) -> Tokens:
    """Draw one layer's numbers from the families of a case."""
    timeline = Timeline(case.lengths)
    q, k = key_rows(case, draw, timeline.rows)
    v = draw.normal("v", timeline.rows, case.heads_v, case.size_v)
    order = draw.permutation("v columns", case.size_v)
    v = spread_columns(case.values, v, order, case.dtype)
    w_q, w_k, w_v = (
        taps_of(case, draw, name, heads * size) if case.conv else None
        for name, (heads, size) in {
            "w_q": (case.heads, case.size_k),
            "w_k": (case.heads, case.size_k),
            "w_v": (case.heads_v, case.size_v),
        }.items()
    )
    if case.conv and case.taps == "cancelling":
        q, k, v = (x[:1] + (x - x[:1]) * 2.0**-6 for x in (q, k, v))
    if not case.qk_norm:
        k = bounded_keys(k, w_k)
    g, a_log, dt_bias = gates(case, draw, len(timeline.tokens))
    return Tokens(
        q=timeline.split(q, w_q),
        k=timeline.split(k, w_k),
        v=timeline.split(v, w_v),
        g=g,
        beta=strengths(case, draw, len(timeline.tokens)),
        a_log=a_log,
        dt_bias=dt_bias,
        state=states(case, draw),
    )


def key_rows(case: Case, draw: Draw, count: int) -> tuple[Tensor, Tensor]:
    """Draw rows of q and k, [count, H, K] each."""
    shape = (count, case.heads, case.size_k)
    q, k = draw.normal("q", *shape), draw.normal("k", *shape)
    if case.keys == "collinear":
        direction = draw.normal("direction", *shape[1:])
        return 0.5 * q + direction, direction + 1e-3 * k
    if case.keys in ("one_hot", "hadamard"):
        few = _distinct_rows(case, draw)
        choice = draw.integers("choice", 0, few.shape[1], 2, count, case.heads)
        sign = draw.integers("sign", 0, 2, 2, count, case.heads, 1) * 2.0 - 1.0
        head = torch.arange(case.heads)
        q, k = sign * few[head, choice]
    elif case.keys == "tiny":
        low, high = (-7.0, -4.0) if case.dtype == "float16" else (-20.0, -6.0)
        q = q * 10 ** draw.uniform("q exponent", *shape[:2], 1, low=low, high=high)
        k = k * 10 ** draw.uniform("k exponent", *shape[:2], 1, low=low, high=high)
    elif case.keys == "zero":
        q, k = q * draw.integers("q rows", 0, 2, *shape[:2], 1), k * 0.0
    return q, k


def _distinct_rows(case: Case, draw: Draw) -> Tensor:
    """Draw four one-hot or Hadamard rows per head, [H, 4, K]."""
    size = case.size_k
    block = torch.eye(size) if case.keys == "one_hot" else hadamard(1 << (size.bit_length() - 1))
    rows = torch.zeros(case.heads, 4, size)
    for head in range(case.heads):
        rows[head, :, : block.shape[0]] = block[
            draw.permutation(f"rows {head}", block.shape[0])[:4]
        ]
    return rows


def hadamard(size: int) -> Tensor:
    """Return the Sylvester matrix of +-1 with orthogonal rows; size is a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def bounded_keys(k: Tensor, taps: Tensor | None) -> Tensor:
    """Scale keys that no norm follows so that |k| <= 1 after the stages before the recurrence.

    |SiLU(c)| <= |c| and the convolution is linear, so bounding c bounds the key. Windows across
    two requests are bounded too, which costs nothing.
    """
    if taps is None:
        return k * (KEY_LIMIT / torch.linalg.vector_norm(k, dim=-1, keepdim=True)).clamp_max(1.0)
    if len(k) < 4:
        return k
    window = k.unfold(0, 4, 1)
    c = (window * taps.view(*k.shape[1:], 4)).sum(-1)
    peak = torch.linalg.vector_norm(c, dim=-1).amax(0)
    return k * (KEY_LIMIT / peak).clamp_max(1.0)[:, None]


def taps_of(case: Case, draw: Draw, name: str, channels: int) -> Tensor:
    """Draw the four taps of every channel of a stream."""
    if case.taps == "unit":
        return torch.tensor([0.0, 0.0, 0.0, 1.0]).repeat(channels, 1)
    drawn = draw.normal(name, channels, 4)
    if case.taps == "cancelling":
        # The same magnitude four times, so that a repeated input cancels.
        return (0.5 + drawn[:, :1].abs()) * torch.tensor([1.0, -1.0, 1.0, -1.0])
    return 0.5 * drawn


def gates(case: Case, draw: Draw, count: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Draw gate logits [count, HV, K] whose decays are those of the family, A_log and dt_bias."""
    decay = _decays(case, draw, count).double()
    if case.gate_form == "given":
        return -decay.float(), None, None
    a_log = None
    if case.gate_rate or case.gate_form == "softplus":
        a_log = 0.3 * draw.normal("A_log", case.heads_v)
    bias = 0.5 * draw.normal("dt_bias", case.heads_v * case.size_k) if case.gate_bias else None
    rate = 1.0 if a_log is None else torch.exp(a_log.double())[:, None]
    if case.gate_form == "softplus":
        logit = torch.log(torch.expm1(decay / rate)).clamp_min(_CLOSED)
    else:
        share = (decay / -case.lower_bound).clamp_max(1.0)
        logit = torch.log(share / (1 - share)).clamp(_CLOSED, _OPEN) / rate
    if bias is not None:
        logit = logit - bias.double().view(case.heads_v, case.size_k)
    return logit.float(), a_log, bias


def _decays(case: Case, draw: Draw, count: int) -> Tensor:
    """Draw decays -G >= 0."""
    shape = (count, case.heads_v, case.size_k)
    u = draw.uniform("decay", *shape)
    if case.gates == "none":
        return torch.where(u < 0.5, 0.0, _FAINT)
    if case.gates == "mild":
        return 0.1 + 0.9 * u
    if case.gates == "saturated":
        return torch.full(shape, 30.0 if case.gate_form == "softplus" else -case.lower_bound)
    slow = 1e-3 * (0.5 + u)
    if case.gates == "steep_channel":
        steep = {"given": 200.0, "softplus": 60.0, "lower_bound": -case.lower_bound}[case.gate_form]
        channel = draw.integers("steep", 0, case.size_k, 1, case.heads_v, 1)
        slow.scatter_(2, channel.expand(count, -1, -1), steep)
    return slow


def strengths(case: Case, draw: Draw, count: int) -> Tensor:
    """Draw write strengths in 0..1, or their logits, [count, HV]."""
    shape = (count, case.heads_v)
    given = case.beta_form == "given"
    if case.betas == "random":
        return draw.uniform("beta", *shape) if given else draw.normal("beta", *shape)
    if case.betas == "extreme":
        logits = draw.integers("beta", 0, 2, *shape) * 16.0 - 8.0
        return torch.sigmoid(logits) if given else logits
    on = case.betas == "one"
    return torch.full(shape, float(on) if given else (30.0 if on else -30.0))


def spread_columns(family: str, x: Tensor, order: Tensor, dtype: str) -> Tensor:
    """Scale the last axis of standard normal values into a family of values."""
    if family == "tiny":
        return x * (1e-6 if dtype == "float16" else 1e-20)
    if family == "spread":
        return x * torch.logspace(-3, 3, x.shape[-1])[order]
    return x * 0.0 if family == "zero" else x


def states(case: Case, draw: Draw) -> Tensor:
    """Draw one state per request, [N, HV, V, K]."""
    shape = (case.requests, case.heads_v, case.size_v, case.size_k)
    state = draw.normal("state", *shape)
    if case.states == "asymmetric":
        # A ramp along V and a sign along K, so that no transposition goes unseen at K = V.
        ramp = torch.linspace(0.25, 4.0, case.size_v)[:, None]
        sign = 1.0 - 2.0 * (torch.arange(case.size_k) % 2)
        return ramp * sign * (1.0 + 0.1 * state)
    order = draw.permutation("state columns", case.size_v)
    return spread_columns(case.states, state.mT, order, "float32").mT.contiguous()
