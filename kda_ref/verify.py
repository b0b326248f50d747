"""Multi-token verify: run a draft from the committed pools and record what a commit needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import budget, stages
from .bounded import Bounded, round_to, ulp
from .budget import Precision
from .prepare import activate, log_decay, prepare, write_strength
from .recurrence import initial, run

FP32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class RequestTrace:
    """Everything a verify records for one live request of L tokens.

    Attributes:
        o: [L, HV, V], before any output norm.
        out: [L, HV, V], after the norm where there is one.
        undetermined: [L, HV, 1], where the norm's root may be zero (NaN is then accepted).
        snapshots: state after every token, [L, HV, V, K], error [L, HV, V, 1]; or None.
        windows: conv history after every token for q, k, v ([L, C, 3], exact), or None.
        ring_v, ring_k, ring_log_decay, ring_beta: [L, HV, V], [L, H, K] (not normalized),
            [L, HV, K], [L, HV].
    """

    o: Bounded
    out: Bounded
    undetermined: Tensor
    snapshots: Bounded | None
    windows: tuple[Tensor, Tensor, Tensor] | None
    ring_v: Bounded
    ring_k: Bounded
    ring_log_decay: Bounded
    ring_beta: Bounded


@dataclass(frozen=True)
class MtpResult:
    """The oracle's answer to a multi-token verify.

    Attributes:
        out: [1, T, HV, V]; rows of padding requests and rows nobody owns are zero, exactly.
        requests: one trace per request; None for padding and for requests not asked for.
        in_range: every exact intermediate fits fp32; a case out of range is not judged.
    """

    out: Bounded
    requests: tuple[RequestTrace | None, ...]
    in_range: bool


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
    precision: Precision | None = None,
    through_rings: torch.dtype | None = None,
    only: Iterable[int] | None = None,
) -> MtpResult:
    """Verify a draft in float64, request by request and token by token.

    The keywords are those of `kda_kernels.kda_mtp_verify`, plus three. Buffers a kernel would
    write (`out`, `intermediate_*`, `replayssm_*`) say what is recorded and are never touched.

    Args:
        precision: what the judged kernel declares; fp32 throughout by default.
        through_rings: dtype of rings that a later commit will replay; the bound then covers
            states rebuilt from k and v rounded to it (to judge verify-then-commit).
        only: indices of the requests to compute; all by default. Rows of the others are zero.

    Returns:
        The outputs and one trace per request.

    Numerics: float64 throughout; every result carries the error bound of `kda_ref.budget`.
    Source: arXiv 2510.26692 for the recurrence; contract of the multi-token kernel for padding,
        ragged requests, windows and rings.
    """
    precision = precision or Precision()
    tokens, heads_v, size_v = x_v.shape[1:]
    scale = x_q.shape[-1] ** -0.5 if scale is None else scale
    rows = Bounded(*(x_v.new_zeros(1, tokens, heads_v, size_v, dtype=torch.float64) for _ in "ve"))
    offsets, slots = cu_seqlens.tolist(), ssm_state_indices.tolist()
    wanted = set(range(len(slots)) if only is None else only)
    traces: list[RequestTrace | None] = []
    largest = 0.0

    for n, slot in enumerate(slots):
        if slot < 0 or n not in wanted:
            traces.append(None)
            continue
        mine = slice(offsets[n], offsets[n + 1])

        streams = []
        for x, taps, history in ((x_q, w_q, cs_q), (x_k, w_k, cs_k), (x_v, w_v, cs_v)):
            conv_history = None if history is None else history[slot]
            streams.append(activate(x[0, mine], taps, conv_history, precision))
        (q, window_q, peak_q), (k, window_k, peak_k), (v, window_v, peak_v) = streams
        decay = log_decay(g[0, mine], A_log, dt_bias, gate_form, lower_bound, precision)
        b = write_strength(beta[0, mine], beta_form, precision)
        replayed_k, replayed_v = _through_rings(k, through_rings), _through_rings(v, through_rings)
        inputs = prepare(
            q, replayed_k, replayed_v, decay, b,
            scale=scale, use_l2norm=use_qk_l2norm_in_kernel, precision=precision,
        )  # fmt: skip

        kept: list[Bounded] | None = None if intermediate_ssm is None else []
        keep = None if kept is None else lambda _, state, into=kept: into.append(state)
        trace = run(inputs, initial(recurrent_state[slot]), precision, keep)

        o = round_to(trace.o, precision.rounding.output, truncate=precision.truncating_store)
        normed, undetermined = o, torch.zeros_like(o.value[..., :1], dtype=torch.bool)
        if onorm_gate is not None and onorm_weight is not None and onorm_eps is not None:
            normed, undetermined = normed_output(
                o, onorm_gate[0, mine].double(), onorm_weight.double(), onorm_eps, precision
            )
        rows.value[0, mine], rows.error[0, mine] = normed

        squares = [
            (y.value**2).sum(-1).amax() for y in (q, k) if use_qk_l2norm_in_kernel and len(y.value)
        ]
        largest = max(largest, peak_q, peak_k, peak_v, trace.largest, *map(float, squares))
        windows = None
        if window_q is not None and window_k is not None and window_v is not None:
            windows = (window_q, window_k, window_v)
        traces.append(
            RequestTrace(
                o=o,
                out=normed,
                undetermined=undetermined,
                snapshots=_stack(kept),
                windows=windows,
                ring_v=v,
                ring_k=k,
                ring_log_decay=decay,
                ring_beta=b,
            )  # fmt: skip
        )
    return MtpResult(rows, tuple(traces), in_range=largest < FP32_MAX)


def _through_rings(y: Bounded, dtype: torch.dtype | None) -> Bounded:
    """Add the rounding that a stored ring entry suffers, as an input error of the replay."""
    if dtype is None:
        return y
    return Bounded(y.value, y.error + ulp(y.value.abs() + y.error, dtype))


def _stack(states: list[Bounded] | None) -> Bounded | None:
    if not states:
        return None
    return Bounded(torch.stack([s.value for s in states]), torch.stack([s.error for s in states]))


def normed_output(
    o: Bounded, gate: Tensor, weight: Tensor, eps: float, precision: Precision
) -> tuple[Bounded, Tensor]:
    """Norm and gate an output, and say where rounding alone decides what comes out.

    Args:
        o: [..., V] before the norm, with its bound.
        gate: [..., V] float64 logits.
        weight: [V] float64.
        eps: inside the root of the RMS norm.
        precision: what the judged kernel declares.

    Returns:
        The normed output and a mask [..., 1] of rows that are not determined.

    Numerics: float64; the bound is `budget.gated_rms_norm_error`.
    """
    value = stages.gated_rms_norm(o.value, gate, weight, eps)
    error, undetermined = budget.gated_rms_norm_error(o, gate, weight, eps, value, precision.inputs)
    return Bounded(torch.where(undetermined, torch.zeros_like(value), value), error), undetermined
