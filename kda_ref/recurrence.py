"""The KDA recurrence, one token at a time, with the error bound carried in the same loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import budget
from .bounded import Bounded, round_to
from .budget import Precision, Step


@dataclass(frozen=True)
class Prepared:
    """The inputs of the recurrence for the L tokens of one request.

    Attributes:
        q, k: [L, H, K]; q normalized and scaled, k normalized. The error is that of the whole
            vector, [L, H].
        v: [L, HV, V].
        log_decay: [L, HV, K].
        b: [L, HV], write strength.
    """

    q: Bounded
    k: Bounded
    v: Bounded
    log_decay: Bounded
    b: Bounded

    def __len__(self) -> int:
        return self.b.value.shape[0]


@dataclass(frozen=True)
class Trace:
    """What the recurrence produced.

    Attributes:
        o: [L, HV, V].
        state: [HV, V, K] after the last token, error [HV, V, 1].
        largest: the largest magnitude of any intermediate, for the fp32 range.
    """

    o: Bounded
    state: Bounded
    largest: float


def initial(state: Tensor) -> Bounded:
    """Lift an initial state [HV, V, K]; it reaches the kernel unrounded."""
    # Dense, so that both layouts are summed in the same order.
    state = state.double().contiguous()
    return Bounded(state, torch.zeros_like(state[..., :1]))


def token_step(
    state: Bounded,
    token: Prepared,
    t: int,
    cumulative: Tensor,
    peak: Tensor,
    precision: Precision,
) -> tuple[Bounded, Bounded, float]:
    """Advance the state of every value head by token t and read it.

    S <- S diag(exp G); u = b (v - S k); S <- S + u k^T; o = S q.

    `cumulative` [HV, K] sums the log decays of the chunk, this token's included; `peak` [HV, V]
    is the largest norm that each column of the state had before it.

    Returns:
        The state after the token, o [HV, V], and the largest intermediate magnitude.
    """
    group = token.v.value.shape[1] // token.k.value.shape[1]
    k, k_error = (x[t].repeat_interleave(group, 0) for x in token.k)
    q, q_error = (x[t].repeat_interleave(group, 0) for x in token.q)
    v, b, log_decay = token.v.at(t), token.b.at(t), token.log_decay.at(t)

    a = torch.exp(log_decay.value)
    decayed = state.value * a[:, None, :]
    predicted = (decayed * k[:, None, :]).sum(-1)
    u = b.value[:, None] * (v.value - predicted)
    after = decayed + u[..., None] * k[:, None, :]

    step = Step(
        peak=peak, decayed=decayed, after=after, a=a, log_decay=log_decay,
        k=k, k_error=k_error, q=q, q_error=q_error, v=v, b=b,
        predicted=predicted, u=u, cumulative=cumulative,
    )  # fmt: skip
    error = budget.state_error(step, state.error[..., 0], precision)
    new_state = Bounded(after, error[..., None])
    if precision.rounding.state is not None:
        rounded = round_to(new_state, precision.rounding.state, truncate=precision.truncating_store)
        new_state = Bounded(rounded.value, budget.norm(rounded.error)[..., None])

    o = Bounded((after * q[:, None, :]).sum(-1), budget.output_error(step, error, precision))
    largest = float(
        torch.stack([x.detach().abs().amax() for x in (after, u, o.value, predicted)]).amax()
    )
    return new_state, o, largest


def run(
    tokens: Prepared,
    state: Bounded,
    precision: Precision,
    after_token: Callable[[int, Bounded], None] | None = None,
) -> Trace:
    """Run the recurrence over all tokens of one request.

    Args:
        tokens: inputs of the recurrence.
        state: initial state, see `initial`.
        precision: what the judged kernel declares.
        after_token: called with (t, state) after every token, for snapshots.

    Numerics: float64; no error of its own worth mentioning beside fp32 budgets.
    Source: Kimi Linear technical report (arXiv 2510.26692), the gated delta rule with a
        per-channel decay.
    """
    outputs, errors, largest = [], [], 0.0
    cumulative = torch.zeros_like(state.value[:, 0, :])
    peak = budget.norm(state.value)
    for t in range(len(tokens)):
        if t % precision.chunk == 0:
            cumulative = torch.zeros_like(cumulative)
        cumulative = cumulative + tokens.log_decay.value[t]
        state, o, magnitude = token_step(state, tokens, t, cumulative, peak, precision)
        peak = torch.maximum(peak, budget.norm(state.value))
        if after_token is not None:
            after_token(t, state)
        outputs.append(o.value)
        errors.append(o.error)
        largest = max(largest, magnitude)
    if not outputs:
        empty = torch.zeros_like(tokens.v.value)
        return Trace(Bounded(empty, empty), state, largest)
    return Trace(Bounded(torch.stack(outputs), torch.stack(errors)), state, largest)
