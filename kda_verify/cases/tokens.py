"""The numbers of a case, apart from where they lie: one record per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .case import Case

HISTORY = 3
"""Raw inputs that the conv of the next token still needs."""


@dataclass(frozen=True)
class Streams:
    """Hold the raw (or post-SiLU) inputs of q, k or v with what their convolution needs.

    Attributes:
        x: [T, heads, D], request after request.
        history: [N, heads*D, 3], oldest to newest, or None where the convolution is given.
        taps: [heads*D, 4], oldest to newest, or None alike.
    """

    x: Tensor
    history: Tensor | None
    taps: Tensor | None


@dataclass(frozen=True)
class Tokens:
    """Hold every number of one layer of a case, in fp32, before the cast to the case's dtypes.

    Attributes:
        q, k, v: input streams.
        g: [T, HV, K] gate logits, or log decay where the gate is given.
        beta: [T, HV] write-strength logits, or the strength where it is given.
        a_log, dt_bias: [HV], [HV*K], or None where the call takes none.
        state: [N, HV, V, K].
    """

    q: Streams
    k: Streams
    v: Streams
    g: Tensor
    beta: Tensor
    a_log: Tensor | None
    dt_bias: Tensor | None
    state: Tensor


class Timeline:
    """Lay all requests out in time: three history rows, then the tokens, request after request.

    Args:
        lengths: tokens of each request.
        extra: further rows after each request's tokens.
    """

    def __init__(self, lengths: Sequence[int], extra: int = 0) -> None:
        starts, self.rows = [], 0
        for length in lengths:
            starts.append(self.rows)
            self.rows += HISTORY + length + extra
        self.history = torch.tensor([[s + i for i in range(HISTORY)] for s in starts])
        self.tokens = torch.tensor(
            [s + HISTORY + t for s, n in zip(starts, lengths, strict=True) for t in range(n)],
            dtype=torch.int64,
        )

    def split(self, rows: Tensor, taps: Tensor | None) -> Streams:
        """Cut a stream [rows, heads, D] into tokens and, where there are taps, histories."""
        if taps is None:
            return Streams(rows[self.tokens], None, None)
        history = rows[self.history].flatten(2).transpose(1, 2)
        return Streams(rows[self.tokens], history, taps)


def floor_of(case: Case) -> float | None:
    """Return the lower bound where the case's gate form has one."""
    return case.lower_bound if case.gate_form == "lower_bound" else None
