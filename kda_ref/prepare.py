"""From raw inputs to the inputs of the recurrence, with the error each stage adds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import budget, stages
from .bounded import Bounded, exact, round_to
from .budget import Precision
from .recurrence import Prepared


@dataclass(frozen=True)
class Activated:
    """q, k and v after convolution and SiLU, before any norm.

    Attributes:
        q, k: [L, H, K]; v: [L, HV, V]; error elementwise.
        windows: conv history after every token, [L, C, 3] for q, k and v, or None where the
            convolution was given; copies of raw inputs, so exact.
        largest: the largest magnitude of any intermediate.
    """

    q: Bounded
    k: Bounded
    v: Bounded
    windows: tuple[Tensor, Tensor, Tensor] | None
    largest: float


def activate(
    x: Tensor, taps: Tensor | None, history: Tensor | None, precision: Precision
) -> tuple[Bounded, Tensor | None, float]:
    """Run convolution and SiLU over one stream of one request, or take it as given.

    Args:
        x: [L, heads, D] raw inputs (post-SiLU values where taps is None).
        taps: [heads*D, 4], oldest to newest, or None.
        history: [heads*D, 3], oldest to newest, or None.
        precision: what the judged kernel declares.
    """
    if taps is None or history is None:
        return exact(x), None, float(x.abs().amax()) if x.numel() else 0.0
    heads = x.shape[1:]
    window = stages.windows(history.double(), x.double().flatten(1))
    taps = taps.double()
    c = stages.short_conv(window, taps)
    c_error = budget.conv_error(window, taps, precision.inputs)
    y = stages.silu(c)
    y_error = budget.silu_error(c, y, c_error, precision.inputs)
    activated = Bounded(y.unflatten(1, heads), y_error.unflatten(1, heads))
    rounded = round_to(activated, precision.rounding.conv, truncate=precision.truncating_store)
    largest = float((window.abs() * taps.abs()).sum(-1).amax()) if c.numel() else 0.0
    return rounded, window[..., 1:], largest


def normalize(y: Bounded, use_l2norm: bool, scale: float | None, precision: Precision) -> Bounded:
    """Normalize (or not) and scale q or k; the error becomes that of the whole vector.

    [L, H, K] with elementwise error -> [L, H, K] with error [L, H].
    """
    u = precision.inputs
    value, error = y.value, budget.norm(y.error.expand_as(y.value))
    if use_l2norm:
        value = stages.l2_normalize(y.value)
        error = budget.l2_normalize_error(y.value, value, y.error, u)
    if scale is not None:
        value = value * scale
        error = error * abs(scale) + u * budget.norm(value)
    dtype = precision.rounding.qk_norm
    if dtype is not None and use_l2norm:
        rounded = round_to(
            Bounded(value, error[..., None]), dtype, truncate=precision.truncating_store
        )
        return Bounded(rounded.value, budget.norm(rounded.error))
    return Bounded(value, error)


def log_decay(
    g: Tensor,
    a_log: Tensor | None,
    dt_bias: Tensor | None,
    gate_form: str,
    lower_bound: float | None,
    precision: Precision,
) -> Bounded:
    """Compute the natural-log decay [L, HV, K] from raw gate logits, or take it as given.

    Args:
        g: [L, HV, K].
        a_log: [HV] or None (factor one, lower-bound form only).
        dt_bias: [HV*K] or None (zero).
        gate_form: "given", "softplus" or "lower_bound".
        lower_bound: negative floor of the lower-bound form.
        precision: what the judged kernel declares.
    """
    if gate_form == "given":
        return exact(g)
    heads, size = g.shape[1:]
    logit = g.double()
    if dt_bias is not None:
        logit = logit + dt_bias.double().view(heads, size)
    rate = torch.zeros(heads, 1, dtype=torch.float64, device=g.device)
    if a_log is not None:
        rate = a_log.double()[:, None]
    u = precision.inputs
    if gate_form == "softplus":
        value = stages.softplus_gate(logit, rate)
        naive = precision.naive_softplus
        return Bounded(value, budget.softplus_gate_error(logit, rate, value, u, naive=naive))
    assert lower_bound is not None
    value = stages.lower_bound_gate(logit, rate, lower_bound)
    return Bounded(value, budget.lower_bound_gate_error(logit, rate, value, u))


def write_strength(beta: Tensor, beta_form: str, precision: Precision) -> Bounded:
    """Compute the write strength [L, HV] from its logits, or take it as given."""
    logit = beta.double()
    b = stages.write_strength(logit, beta_form)
    bounded = Bounded(b, budget.write_strength_error(logit, b, beta_form, precision.inputs))
    return round_to(bounded, precision.rounding.beta, truncate=precision.truncating_store)


def prepare(
    q: Bounded,
    k: Bounded,
    v: Bounded,
    decay: Bounded,
    b: Bounded,
    *,
    scale: float,
    use_l2norm: bool,
    precision: Precision,
) -> Prepared:
    """Assemble the recurrence's inputs from activated q, k and v, the gate and beta."""
    return Prepared(
        q=normalize(q, use_l2norm, scale, precision),
        k=normalize(k, use_l2norm, None, precision),
        v=Bounded(v.value, v.error.expand_as(v.value)),
        log_decay=Bounded(decay.value, decay.error.expand_as(decay.value)),
        b=b,
    )
