"""KDA over whole sequences: dense or packed, fresh, given or pooled states."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .bounded import Bounded, cast, exact, round_to
from .budget import Precision
from .prepare import log_decay, prepare, write_strength
from .recurrence import initial, run
from .verify import FP32_MAX


@dataclass(frozen=True)
class SequenceResult:
    """The oracle's answer over sequences.

    Attributes:
        out: [B, T, HV, V]; rows of padding sequences and rows nobody owns are zero.
        final_state: state after each sequence in the asked layout, [N, HV, V, K] or
            [N, HV, K, V], error broadcastable; with a pool, of the pooled slot (zero for
            padding). An empty sequence passes its state through.
        in_range: every exact intermediate fits fp32.
    """

    out: Bounded
    final_state: Bounded
    in_range: bool


def kda_recurrent(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    gate_form: str = "given",
    lower_bound: float | None = None,
    beta_form: str = "given",
    use_qk_l2norm_in_kernel: bool = False,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    state_layout: str = "vk",
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    update_pool: bool = False,
    precision: Precision | None = None,
) -> SequenceResult:
    """Run KDA over sequences in float64, one token at a time.

    S <- S diag(exp G); u = b (v - S k); S <- S + u k^T; o = S q.

    Args:
        q, k: [B, T, H, K]; v: [B, T, HV, V], HV a multiple of H.
        g: [B, T, HV, K], natural-log decay, or logits of the gate form.
        beta: [B, T, HV], write strength, or logits of the beta form.
        A_log: [HV] or None; dt_bias: [HV*K] or None.
        gate_form: "given", "softplus" or "lower_bound".
        beta_form: "given", "sigmoid" or "twice_sigmoid".
        scale: multiplies q; K**-0.5 by default.
        initial_state: [N, HV, V, K] ("vk") or [N, HV, K, V] ("kv"); zero when None; with
            `ssm_state_indices` a pool whose first axis is slots.
        cu_seqlens: [N+1] row offsets of packed sequences (B = 1), or None: N = B.
        ssm_state_indices: [N] pool slots; negative is padding: zero rows, nothing written.
        update_pool: also write the new states into the given pool, rounded to its dtype.
        precision: what the judged kernel declares.

    Raises:
        ValueError: unknown layout, packed rows with B > 1, or a pool asked for and not given.

    Numerics: float64 with the error bound of `kda_ref.budget`.
    Source: Kimi Linear technical report (arXiv 2510.26692).
    """
    if state_layout not in ("vk", "kv"):
        raise ValueError(f"`state_layout` must be 'vk' or 'kv', got {state_layout!r}")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"`q` must have batch size 1 with `cu_seqlens`, got {q.shape[0]}")
    if ssm_state_indices is not None and initial_state is None:
        raise ValueError("`initial_state` must be a pool with `ssm_state_indices`, got None")
    precision = precision or Precision()
    batch, tokens, heads_v, size_v = v.shape
    size_k = k.shape[-1]
    scale = size_k**-0.5 if scale is None else scale

    offsets = cu_seqlens.tolist() if cu_seqlens is not None else None
    count = batch if offsets is None else len(offsets) - 1
    slots = list(range(count)) if ssm_state_indices is None else ssm_state_indices.tolist()
    rows = [torch.zeros_like(v, dtype=torch.float64) for _ in "ve"]
    shape = (count, heads_v, size_v, size_k)
    final = Bounded(
        torch.zeros(shape, dtype=torch.float64, device=v.device),
        torch.zeros(*shape[:-1], 1, dtype=torch.float64, device=v.device),
    )
    largest = 0.0
    for n, slot in enumerate(slots):
        if slot < 0:
            continue
        at = (n, slice(None)) if offsets is None else (0, slice(offsets[n], offsets[n + 1]))
        state = torch.zeros(shape[1:], dtype=torch.float64, device=v.device)
        if initial_state is not None:
            given = initial_state[slot]
            state = given if state_layout == "vk" else given.transpose(-1, -2)
        inputs = prepare(
            exact(q[at]),
            exact(k[at]),
            exact(v[at]),
            log_decay(g[at], A_log, dt_bias, gate_form, lower_bound, precision),
            write_strength(beta[at], beta_form, precision),
            scale=scale,
            use_l2norm=use_qk_l2norm_in_kernel,
            precision=precision,
        )
        trace = run(inputs, initial(state), precision)
        o = round_to(trace.o, precision.rounding.output, truncate=precision.truncating_store)
        rows[0][at], rows[1][at] = o
        final.value[n], final.error[n] = trace.state
        largest = max(largest, trace.largest)
        if update_pool and initial_state is not None:
            new = trace.state.value
            new = new if state_layout == "vk" else new.transpose(-1, -2)
            truncate = precision.truncating_store
            initial_state[slot] = cast(new, initial_state.dtype, truncate=truncate).to(
                initial_state.dtype
            )
    if state_layout == "kv":
        final = Bounded(final.value.transpose(-1, -2), final.error.transpose(-1, -2))
    return SequenceResult(Bounded(rows[0], rows[1]), final, in_range=largest < FP32_MAX)
