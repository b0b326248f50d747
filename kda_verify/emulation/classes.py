"""Correct kernels of a declared arithmetic, imitated in plain torch.

They calibrate the error budget: what a correct kernel errs by is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kda_ref import UNIT_ROUNDOFF, Precision

from .arithmetic import Arithmetic
from .chunked import chunked
from .forms import Form, Operands, one_pass, token_order

FORMS: dict[str, Form] = {
    "token": token_order,
    "one-pass": one_pass,
    "segments": partial(one_pass, segment_sums=True),
    "chunk-16": partial(chunked, size=16),
    "chunk-64": partial(chunked, size=64),
}


@dataclass(frozen=True)
class Emulation:
    """A multi-token verify in a form and an arithmetic; call it like `kda_mtp_verify`.

    Attributes:
        form: key of FORMS.
        arithmetic: of all products ("fp32", "tf32x3", "tf32", "bf16"), or site by site.
        naive_softplus: log(1 + exp(x)).
        flush: denormals are flushed to zero, on processors that can.
    """

    form: str = "token"
    arithmetic: str | Arithmetic = "fp32"
    naive_softplus: bool = False
    flush: bool = False

    @property
    def precision(self) -> Precision:
        """What a kernel of this arithmetic declares."""
        return Precision(
            products=UNIT_ROUNDOFF[self.sites.precision_class],
            cumulative_gates=self.form.startswith("chunk"),
            naive_softplus=self.naive_softplus,
        )

    def __call__(self, **arguments: Any) -> Tensor:
        """Run every live request; fill the buffers given and return `out`."""
        with _flush_to_zero(self.flush):
            return _verify(self, **arguments)

    @property
    def sites(self) -> Arithmetic:
        """The arithmetic, site by site."""
        given = self.arithmetic
        return Arithmetic.of(given) if isinstance(given, str) else given


@contextmanager
def _flush_to_zero(wanted: bool) -> Iterator[None]:
    torch.set_flush_denormal(wanted)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _activate(
    x: Tensor, taps: Tensor | None, history: Tensor | None, sites: Arithmetic
) -> tuple[Tensor, Tensor]:
    """Convolve and apply SiLU ([L, heads, D]); also the windows [L, heads*D, 4]."""
    flat = x.float().flatten(1)
    if taps is None or history is None:
        return x.float(), flat[..., None]
    window = torch.cat([history.float().T, flat]).unfold(0, 4, 1)
    c = window[..., 0] * taps[:, 0]
    for w in range(1, 4):
        c = c + window[..., w] * taps[:, w]
    return (c * sites.sigmoid(c)).view(x.shape), window


def _unit(x: Tensor, normalize: bool, sites: Arithmetic) -> Tensor:
    if not normalize:
        return x
    return sites.quotient(x, sites.sqrt((x * x).sum(-1, keepdim=True) + 1e-6))


def _log_decay(g: Tensor, a: dict[str, Any], naive_softplus: bool, sites: Arithmetic) -> Tensor:
    logit = g.float()
    if a["gate_form"] == "given":
        return logit
    if a.get("dt_bias") is not None:
        logit = logit + a["dt_bias"].view(logit.shape[-2:])
    rate = torch.ones(()) if a.get("A_log") is None else sites.exp(a["A_log"])[:, None]
    if a["gate_form"] == "lower_bound":
        return a["lower_bound"] * sites.sigmoid(rate * logit)
    if naive_softplus:
        return -rate * torch.where(logit > 20, logit, torch.log(1 + sites.exp(logit)))
    return -rate * (logit.clamp_min(0) + torch.log1p(sites.exp(-logit.abs())))


def _gated_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float, sites: Arithmetic) -> Tensor:
    # Squares of small rows flush to zero; without an eps to speak of, scale them up first.
    is_small = (o.abs().amax(-1, keepdim=True) < 2.0**-40) & (eps < 2.0**-80)
    lift = torch.where(is_small, 2.0**100, 1.0)
    o = o * lift
    root = sites.sqrt((o * o).mean(-1, keepdim=True) + eps * lift * lift)
    return sites.quotient(o, root) * weight * sites.sigmoid(gate.float())


def _verify(emulation: Emulation, **a: Any) -> Tensor:
    a = {"gate_form": "lower_bound", "beta_form": "sigmoid", "out": None, **a}
    x_v, slots, offsets = a["x_v"], a["ssm_state_indices"].tolist(), a["cu_seqlens"].tolist()
    listed = a.get("intermediate_state_indices")
    rows = [] if listed is None else listed.tolist()
    out = torch.zeros_like(x_v) if a["out"] is None else a["out"].zero_()
    scale = a.get("scale")
    scale = a["x_q"].shape[-1] ** -0.5 if scale is None else scale
    normalize = a.get("use_qk_l2norm_in_kernel", True)
    sites = emulation.sites
    group = x_v.shape[2] // a["x_k"].shape[2]

    for n, slot in enumerate(slots):
        mine = slice(offsets[n], offsets[n + 1])
        length = offsets[n + 1] - offsets[n]
        if slot < 0 or not length:
            continue
        activated, windows = {}, {}
        for name in "qkv":
            history = a.get(f"cs_{name}")
            activated[name], windows[name] = _activate(
                a[f"x_{name}"][0, mine],
                a.get(f"w_{name}"),
                None if history is None else history[slot],
                sites,
            )
        decay = _log_decay(a["g"][0, mine], a, emulation.naive_softplus, sites)
        b = a["beta"][0, mine].float()
        if a["beta_form"] != "given":
            b = sites.sigmoid(b) * (2 if a["beta_form"] == "twice_sigmoid" else 1)
        q = _unit(activated["q"], normalize, sites) * scale
        k = _unit(activated["k"], normalize, sites)
        q, k = (y.repeat_interleave(group, 1) for y in (q, k))
        state = a["recurrent_state"][slot]
        operands = Operands(q, k, activated["v"], decay, b, state)
        o, states = FORMS[emulation.form](operands, sites)

        if a.get("onorm_gate") is not None:
            gate = a["onorm_gate"][0, mine]
            o = _gated_norm(o, gate, a["onorm_weight"], a["onorm_eps"], sites)
        out[0, mine] = o.to(out.dtype)
        if a.get("intermediate_ssm") is not None:
            a["intermediate_ssm"][rows[n], :length] = states
        for name in "qkv":
            record = a.get(f"intermediate_conv_{name}")
            if record is not None:
                record[rows[n], :length] = windows[name][..., 1:].to(record.dtype)
        for ring, value in (
            ("rawv", activated["v"]), ("rawk", activated["k"]), ("g", decay), ("beta", b),
        ):  # fmt: skip
            if a.get(f"replayssm_{ring}") is not None:
                a[f"replayssm_{ring}"][slot, :, :length] = value.transpose(0, 1)
    return out
