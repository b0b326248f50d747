"""The exact family: inputs for which no algorithm and no precision rounds at all.

The key channels fall into blocks of 4^m. A key is a signed Hadamard row on one block, so keys are
orthogonal or equal, their norms are powers of two, and the state of a block is a small integer
combination of its rows: every intermediate of the token loop, of the one-pass form and of bf16
products is an integer of at most eight bits times a power of two.
Behind convolution and SiLU, which is the identity from 64 up and at zero, only the all-ones row is
left; before a norm keys are 2^30 times the row, where eps vanishes; logits of +-1024 close or open
every gate completely.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .case import Case
from .draw import Draw
from .families import hadamard
from .tokens import HISTORY, Streams, Timeline, Tokens

LARGE = 2.0**30
SATURATING = 1024.0
SCALE = 1.0
"""Of an exact case that names no scale: K**-0.5 is a power of two for K = 4^m only."""

_ROWS = 4


def tokens(case: Case, draw: Draw) -> Tokens:
    """Draw one layer's numbers for which nothing rounds.

    Raises:
        ValueError: the case asks for a stage that rounds.
    """
    require_exact(case)
    keys = KeySet(case, draw)
    timeline = Timeline(case.lengths, extra=HISTORY if case.conv else 0)
    k_ids, k = keys.rows(draw, "k", timeline.rows)
    _, q = keys.rows(draw, "q", timeline.rows)
    if case.keys == "zero":
        k = k * 0.0
    unit = torch.full((case.heads_v, case.size_v), keys.root)
    if case.conv:
        q_stream, k_stream = (_delayed(case, draw, n, x) for n, x in (("q", q), ("k", k)))
        v_stream, unit = _conv_values(case, draw, keys.root)
        coefficients = draw.integers("state", -8, 9, case.requests, *unit.shape, keys.count)
    else:
        q_stream, k_stream = timeline.split(q, None), timeline.split(k, None)
        v = draw.integers("v", -3, 4, len(timeline.tokens), *unit.shape) * unit
        v_stream = Streams(v * (case.values != "zero"), None, None)
        coefficients = draw.integers("state", -3, 4, case.requests, *unit.shape, keys.count)
    g, a_log, dt_bias = _gates(case, draw, keys, len(timeline.tokens))
    grid = (unit / keys.root)[..., None]
    return Tokens(
        q=q_stream,
        k=k_stream,
        v=v_stream,
        g=g,
        beta=_strengths(case, draw, keys, k_ids[timeline.tokens]),
        a_log=a_log,
        dt_bias=dt_bias,
        state=keys.state(draw, coefficients * grid, grid) * (case.states != "zero"),
    )


def require_exact(case: Case) -> None:
    """Refuse an exact case with a stage or a dtype that rounds."""
    if case.dtype == "float16":
        raise ValueError("`dtype` must be float32 or bfloat16 where exact, got float16")
    if case.out_norm:
        raise ValueError("`out_norm` must be false where exact, got true")
    if case.conv and not case.qk_norm:
        raise ValueError("`qk_norm` must be true where exact and conv is computed, got false")
    if case.scale is not None and math.frexp(abs(case.scale))[0] != 0.5:
        raise ValueError(f"`scale` must be a power of two where exact, got {case.scale}")


class KeySet:
    """Choose the orthogonal rows that the keys and queries of every head come from.

    Attributes:
        size: channels of a block, 4^m; root: 2^m.
        count: rows per head that keys may be.
        basis: [H, count, K], +-1 on a row's block and zero elsewhere.
        block: [H, K], the block of every channel, -1 where it lies in none that is used.
        block_of_row: [count].
    """

    def __init__(self, case: Case, draw: Draw) -> None:
        sizes = [n for n in (1, 4, 16, 64, 256) if n <= case.size_k]
        pick = {"one_hot": 0, "hadamard": len(sizes) - 1}
        self.size = sizes[pick.get(case.keys, draw.integer("block size", 0, len(sizes)))]
        self.root = float(self.size) ** 0.5
        self.group = case.group
        self.magnitude = LARGE if case.qk_norm else 1.0 / self.root
        # Few blocks and few rows, so that keys repeat.
        blocks = min(case.size_k // self.size, 4)
        signed = not case.conv and self.size > 1
        self.signed = not case.conv
        count = _ROWS if signed else 1
        self.count = blocks * count
        self.block_of_row = torch.arange(blocks).repeat_interleave(count)
        self.basis = torch.zeros(case.heads, self.count, case.size_k)
        self.block = torch.full((case.heads, case.size_k), -1)
        for head in range(case.heads):
            channels = draw.permutation(f"channels {head}", case.size_k)
            for b in range(blocks):
                mine = channels[b * self.size : (b + 1) * self.size]
                chosen = draw.permutation(f"rows {head} {b}", self.size)[:count]
                rows = hadamard(self.size)[chosen] if signed else torch.ones(1, self.size)
                for r in range(count):
                    self.basis[head, b * count + r, mine] = rows[r]
                self.block[head, mine] = b

    def rows(self, draw: Draw, name: str, count: int) -> tuple[Tensor, Tensor]:
        """Draw rows as the call takes them: their ids [count, H] and values [count, H, K].

        One row in eight is zero.
        """
        heads = self.basis.shape[0]
        ids = draw.integers(f"{name} ids", 0, self.count, count, heads)
        values = self.basis[torch.arange(heads), ids] * self.magnitude
        if self.signed:
            values = values * (draw.integers(f"{name} sign", 0, 2, count, heads, 1) * 2 - 1)
        return ids, values * (draw.integers(f"{name} zero", 0, 8, count, heads, 1) > 0)

    def state(self, draw: Draw, coefficients: Tensor, grid: Tensor) -> Tensor:
        """Combine the rows into states: [N, HV, V, count] -> [N, HV, V, K]."""
        basis = self.basis.repeat_interleave(self.group, 0)
        inside = (self.block >= 0).repeat_interleave(self.group, 0)
        shape = (*coefficients.shape[:3], basis.shape[-1])
        # Channels that no key reaches hold arbitrary small integers.
        rest = draw.integers("state rest", -8, 9, *shape) * grid
        return torch.where(inside[:, None, :], torch.einsum("nhvr,hrk->nhvk", coefficients, basis),
                           rest)  # fmt: skip


def _delayed(case: Case, draw: Draw, name: str, y: Tensor) -> Streams:
    """Find raw inputs whose convolution, with one tap of one per channel, yields the rows y.

    y [rows, H, K] covers, per request, three rows before its tokens and three after: a channel
    delayed by d tokens takes its input d rows ahead.
    """
    channels = case.heads * case.size_k
    delay = draw.integers(f"{name} delay", 0, 4, channels) * (case.taps != "unit")
    taps = torch.zeros(channels, 4).scatter_(1, 3 - delay[:, None], 1.0)
    ahead = Timeline(case.lengths, extra=HISTORY)
    shifted = y.flatten(1)[
        (torch.arange(ahead.rows)[:, None] + delay).clamp_max(ahead.rows - 1),
        torch.arange(channels),
    ]
    return ahead.split(shifted.view_as(y), taps)


def _conv_values(case: Case, draw: Draw, root: float) -> tuple[Streams, Tensor]:
    """Draw v, zero or integers in 64..256, with taps of zeros and ones, and each column's unit.

    Up to four inputs add up where a channel has several taps; a coarser unit keeps eight bits.
    """
    timeline = Timeline(case.lengths)
    channels = case.heads_v * case.size_v
    taps = draw.integers("v taps", 0, 2, channels, 4)
    taps[:, 3] += taps.sum(1) == 0
    if case.taps == "unit":
        taps = torch.tensor([0, 0, 0, 1]).repeat(channels, 1)
    unit = torch.where(taps.sum(1) > 1, 16.0, max(4.0, root)).view(case.heads_v, case.size_v)
    drawn = draw.uniform("v", timeline.rows, case.heads_v, case.size_v)
    steps = torch.floor((256 - 64) / unit + 1)
    x = 64 + torch.floor(drawn * steps) * unit
    present = draw.integers("v present", 0, 4, *drawn.shape) > 0
    x = x * present * (case.values != "zero")
    return timeline.split(x, taps.float()), unit


def _gates(
    case: Case, draw: Draw, keys: KeySet, count: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Draw gates that keep everything or, where the gate is unbounded, forget whole blocks."""
    shape = (count, case.heads_v, case.size_k)
    forgotten = torch.zeros(shape, dtype=torch.bool)
    if case.gates != "none" and case.gate_form != "lower_bound":
        event = draw.integers("forget", 0, 4, *shape[:2], 1) == 0
        by_block = draw.integers("forget block", 0, 2, *shape[:2], 4) == 0
        single = draw.integers("forget channel", 0, 2, *shape) == 0
        block = keys.block.repeat_interleave(case.group, 0).expand(shape)
        forgotten = event & torch.where(block >= 0, by_block.gather(2, block.clamp_min(0)), single)
    if case.gate_form == "given":
        return torch.where(forgotten, -SATURATING, 0.0), None, None
    g = torch.where(forgotten, SATURATING, -SATURATING)
    a_log = None
    if case.gate_rate or case.gate_form == "softplus":
        a_log = torch.zeros(case.heads_v)
    bias = None
    if case.gate_bias:
        bias = draw.integers("dt_bias", -1, 2, case.heads_v * case.size_k) * 256.0
        g = g - bias.view(case.heads_v, case.size_k)
    return g, a_log, bias


def _strengths(case: Case, draw: Draw, keys: KeySet, ids: Tensor) -> Tensor:
    """Draw strengths 0, 1 or (twice the sigmoid) 2, or their logits.

    A strength of 2 reflects a row's coefficient, s -> 2v - s, which grows when repeated: a row
    reflected once is next written with 1.
    """
    count, heads = ids.shape[0], case.heads_v
    twice = case.beta_form == "twice_sigmoid"
    fixed = {"zero": 0, "one": 2 if twice else 1}.get(case.betas)
    b = torch.where(
        draw.uniform("beta", count, heads) < 0.25, 0, draw.integers("b", 1, 3, count, heads)
    )
    b = b.clamp_max(2 if twice else 1) if fixed is None else torch.full_like(b, fixed)
    mine = ids.repeat_interleave(case.group, 1)
    head = torch.arange(heads)
    starts = {sum(case.lengths[:n]) for n in range(case.requests)}
    reflected = torch.zeros(heads, keys.count, dtype=torch.bool)
    for t in range(count if twice else 0):
        if t in starts:
            reflected = torch.zeros_like(reflected)
        again = reflected[head, mine[t]] & (b[t] == 2)
        b[t] = torch.where(again, 1, b[t])
        written = torch.where(b[t] == 0, reflected[head, mine[t]], b[t] == 2)
        reflected[head, mine[t]] = written
    if case.beta_form == "given":
        return b.float()
    if twice:
        return (b - 1) * SATURATING
    return (2 * b - 1) * SATURATING
