"""Value regimes over which the error budget is calibrated: one verify call each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

DRAFT = 16
"""Tokens of a request in a serving call; forms are calibrated on it and on longer sequences."""


@dataclass(frozen=True)
class Regime:
    """Describe the values of one call; the defaults are ordinary values.

    Attributes:
        about: one line for the report.
        gate: maps [T, HV, K] standard normals to `g`.
        size_k, size_v, lengths: dims; one query head, two value heads.
        gate_form, lower_bound, beta_form: stages as in the call.
        conv, normalize: computed in the call, or given.
        beta: mean of the beta logits, whose deviation is one (or b itself where given).
        taps: maps [C, 4] standard normals to taps.
        keys: maps [T, K] normals to the inputs of k.
        values, states: multiply v and the state (by a scalar or per value column).
        norm: (eps, weight) of the fused output norm, or None.
        flush: emulations flush denormals to zero.
        forms: emulated forms; None for all.
        dtype: of activations and outputs.
        late: how many tokens at the end are judged; 0 for all.
        x_v: mean of the inputs of v; onorm_gate: mean of the output gate's logits.
        slow_signal: inputs barely change from token to token.
        reason: why correct emulations leave the bands here; empty where they must not.
    """

    about: str
    gate: Callable[[Tensor], Tensor] = lambda z: z
    size_k: int = 32
    size_v: int = 16
    lengths: tuple[int, ...] = (80, DRAFT)
    gate_form: str = "given"
    lower_bound: float | None = None
    beta_form: str = "sigmoid"
    conv: bool = True
    normalize: bool = True
    beta: float = 0.0
    beta_spread: float = 1.0
    taps: Callable[[Tensor], Tensor] = lambda z: 0.5 * z
    keys: Callable[[Tensor], Tensor] = lambda z: z
    values: Tensor | float = 1.0
    states: Tensor | float = 1.0
    norm: tuple[float, float] | None = (1e-6, 1.0)
    flush: bool = False
    forms: tuple[str, ...] | None = None
    dtype: torch.dtype = torch.float32
    late: int = 0
    x_v: float = 0.0
    onorm_gate: float = 0.0
    slow_signal: bool = False
    reason: str = ""


def one_channel(value: float, rest: float = 0.05) -> Callable[[Tensor], Tensor]:
    """Decay channel 3 of every token by `value`, the others mildly."""

    def gate(z: Tensor) -> Tensor:
        g = -rest * z.abs()
        g[..., 3] = value
        return g

    return gate


def one_token(value: float) -> Callable[[Tensor], Tensor]:
    """Decay channel 3 by `value` at the fifth token alone."""

    def gate(z: Tensor) -> Tensor:
        g = -0.05 * z.abs()
        g[4, :, 3] = value
        return g

    return gate


def cancelling(z: Tensor) -> Tensor:
    """Taps that sum to zero, for inputs that barely change."""
    taps = 4 * z
    taps[:, 3] = -taps[:, :3].sum(-1)
    return taps


def repeated(z: Tensor) -> Tensor:
    """One key at every token."""
    return z[:1].expand_as(z).clone()


def near_repeated(z: Tensor) -> Tensor:
    """Keys a thousandth apart."""
    return z[:1] + 1e-3 * z


SPREAD = torch.logspace(-6, 6, 16)

UNDAMPED = (
    "where nothing decays the bound adds up the error of every token, of which the delta rule "
    "erases most"
)

GIVEN = Regime("", conv=False)

REGIMES: dict[str, Regime] = {
    "serving": Regime("lower bound -5, softest logits", gate_form="lower_bound", lower_bound=-5.0),
    "serving bf16": Regime(
        "the same, bf16 in and out", gate_form="lower_bound", lower_bound=-5.0,
        dtype=torch.bfloat16,
        reason="a stored bf16 output errs by up to half a step, whatever computed it",
    ),
    "saturated": Regime(
        "every gate at its bound of -5", lambda z: 9 + z, gate_form="lower_bound", lower_bound=-5.0
    ),
    "softplus": Regime("softplus gate", lambda z: 2 * z, gate_form="softplus"),
    "steep": Regime("gates to -20", lambda z: -20 * torch.sigmoid(2 * z)),
    "plain output": Regime(
        "serving without the output norm", gate_form="lower_bound", lower_bound=-5.0, norm=None
    ),
    "mild": Regime("gates near -0.1", lambda z: -0.1 * z.abs()),
    "slow": Regime("gates near -0.001", lambda z: -1e-3 * z.abs()),
    "no gates": Regime("no decay", lambda z: 0 * z),
    "wide": Regime("K = 128", lambda z: -0.1 * z.abs(), size_k=128, lengths=(DRAFT, DRAFT)),
    "channel -200": Regime("one channel forgets at every token", one_channel(-200.0)),
    "channel -500": Regime("one channel forgets at every token", one_channel(-500.0)),
    "token -500": Regime("one channel forgets once", one_token(-500.0)),
    "doubled": Regime(
        "b near 2", lambda z: -1e-2 * z.abs(), beta_form="twice_sigmoid", beta=5.0
    ),
    "repeated": replace(
        GIVEN, about="one key, b near 1", gate=lambda z: -1e-2 * z.abs(), keys=repeated, beta=5.0
    ),
    "repeated doubled": replace(
        GIVEN, about="one key, b near 2, no decay", gate=lambda z: 0 * z, keys=repeated,
        beta_form="twice_sigmoid", beta=5.0,
    ),
    "near repeated": replace(
        GIVEN, about="keys 1e-3 apart, b near 2", gate=lambda z: -1e-3 * z.abs(),
        keys=near_repeated, beta_form="twice_sigmoid", beta=5.0,
    ),
    "amplifying": replace(
        GIVEN, about="keys of norm 1.5 as they are", gate=lambda z: -0.1 * z.abs(),
        keys=lambda z: 1.5 * z / z.norm(dim=-1, keepdim=True), normalize=False, beta=3.0,
        lengths=(DRAFT, DRAFT),
    ),
    "tiny": replace(
        GIVEN, about="v and S of 1e-30", gate=lambda z: -0.1 * z.abs(), values=1e-30,
        states=1e-30, norm=None,
    ),
    "denormal": replace(
        GIVEN, about="v and S of 1e-38, flushed", gate=lambda z: -0.1 * z.abs(), values=1e-38,
        states=1e-38, norm=None, flush=True,
        reason="flush-to-zero takes most of every value, in every class",
    ),
    "steep flushed": replace(
        GIVEN, about="gates to -90, flushed", gate=lambda z: -90 * torch.sigmoid(2 * z),
        flush=True,
    ),
    "huge flushed": replace(
        GIVEN, about="states of 1e30 that gates bring down, flushed",
        gate=lambda z: -60 + z, states=1e30, flush=True,
    ),
    "forgotten flushed": replace(
        GIVEN, about="columns 1e12 apart, forgotten, nothing written, flushed",
        gate=lambda z: -22 + 0 * z, beta=-1000.0, states=SPREAD[:, None], norm=None, flush=True,
        reason="no products: only the decay and its underflow are measured",
    ),
    "spread": replace(
        GIVEN, about="value columns 1e12 apart", gate=lambda z: -0.1 * z.abs(), values=SPREAD,
        states=SPREAD[:, None],
    ),
    "near zero": replace(
        GIVEN, about="outputs of 1e-4 under the norm", gate=lambda z: -0.1 * z.abs(), values=1e-4,
        states=1e-4,
    ),
    "near zero, eps 0": replace(
        GIVEN, about="outputs of 1e-12, eps 0", gate=lambda z: -0.1 * z.abs(), values=1e-12,
        states=1e-12, norm=(0.0, 1.0),
    ),
    "tiny, eps 0": replace(
        GIVEN, about="squares of outputs underflow", gate=lambda z: -0.1 * z.abs(), values=1e-20,
        states=1e-20, norm=(0.0, 1.0),
        reason="the root of the output norm may be zero: only the size of the output is asked",
    ),
    "cancelling taps": Regime(
        "taps sum to zero on a slow signal", lambda z: -0.1 * z.abs(), taps=cancelling,
        slow_signal=True,
        reason="the convolution cancels: what it loses exceeds what TF32 products lose",
    ),
    "silent values": Regime(
        "SiLU deep in its negative tail", lambda z: -0.1 * z.abs(),
        taps=lambda z: torch.full_like(z, 0.25), x_v=-20.0,
    ),
    "logit tails": Regime(
        "sigmoids near 2^-126, flushed", lambda z: -88 + z, gate_form="lower_bound",
        lower_bound=-5.0, beta_form="twice_sigmoid", beta=-88.0, flush=True,
        onorm_gate=-88.0, norm=(1e-6, 8.0),
        reason="a flushed sigmoid loses all of its value, which is all that its bound allows",
    ),
    "long, slow": Regime(
        "10^4 tokens, constant slow decay", lambda z: 0 * z - 1e-3, size_k=16,
        lengths=(10_000,), conv=False, forms=("token", "chunk-64"), late=64, beta=-6.0, norm=None,
        reason=UNDAMPED,
    ),
    "long, no gates": Regime(
        "10^4 tokens, no decay", lambda z: 0 * z, size_k=16,
        lengths=(10_000,), conv=False, forms=("token", "chunk-64"), late=64, norm=None,
        reason=UNDAMPED,
    ),
    "long, serving": Regime(
        "10^4 tokens, lower bound -5", gate_form="lower_bound", lower_bound=-5.0, size_k=16,
        lengths=(10_000,), conv=False, forms=("token", "chunk-64"), late=64, norm=None,
    ),
}  # fmt: skip


def draw(regime: Regime, seed: int = 0) -> dict[str, Any]:
    """Draw the keywords of one verify call, output buffers included."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    r = regime
    tokens, requests, heads = sum(r.lengths), len(r.lengths), 2
    k, v = r.size_k, r.size_v
    signal = torch.ones(tokens, 1) + 1e-3 * normal(tokens, 1)
    x = {
        "q": normal(tokens, 1, k),
        "k": r.keys(normal(tokens, k))[:, None],
        "v": normal(tokens, heads, v) * r.values,
    }
    if r.slow_signal:
        x = {name: signal[..., None] * (1 + 0 * y) for name, y in x.items()}
    x["v"] = x["v"] + r.x_v
    cast = {name: y[None].to(r.dtype) for name, y in x.items()}
    arguments: dict[str, Any] = {f"x_{name}": y for name, y in cast.items()}
    channels = {"q": k, "k": k, "v": heads * v}
    for name, width in channels.items():
        if r.conv:
            history = (
                torch.ones(requests, width, 3) if r.slow_signal else (normal(requests, width, 3))
            )
            history = history + (r.x_v if name == "v" else 0)
            arguments[f"w_{name}"] = r.taps(normal(width, 4))
            arguments[f"cs_{name}"] = history.to(r.dtype)
            arguments[f"intermediate_conv_{name}"] = torch.empty(
                requests, max(r.lengths), width, 3, dtype=r.dtype
            )
    arguments["g"] = r.gate(normal(tokens, heads, k))[None]
    arguments["beta"] = (r.beta + r.beta_spread * normal(tokens, heads))[None]
    if r.gate_form != "given":
        arguments["A_log"] = 0.5 * normal(heads) * (r.gate_form == "softplus")
        arguments["dt_bias"] = 0.1 * normal(heads * k)
    arguments["recurrent_state"] = normal(requests, heads, v, k) * r.states
    if r.norm is not None:
        eps, weight = r.norm
        arguments["onorm_gate"] = r.onorm_gate + normal(1, tokens, heads, v)
        arguments["onorm_weight"] = weight * (1 + 0.1 * normal(v))
        arguments["onorm_eps"] = eps
    offsets = [0, *torch.tensor(r.lengths).cumsum(0).tolist()]
    depth = max(r.lengths)
    rings = {"rawv": (heads, v), "rawk": (1, k), "g": (heads, k)}
    for name, (count, width) in rings.items():
        arguments[f"replayssm_{name}"] = torch.empty(requests, count, depth, width)
    return arguments | {
        "replayssm_beta": torch.empty(requests, heads, depth),
        "intermediate_ssm": torch.empty(requests, depth, heads, v, k),
        "intermediate_state_indices": torch.arange(requests, dtype=torch.int32),
        "ssm_state_indices": torch.arange(requests, dtype=torch.int32),
        "cu_seqlens": torch.tensor(offsets, dtype=torch.int32),
        "max_tokens": depth,
        "gate_form": r.gate_form,
        "lower_bound": r.lower_bound,
        "beta_form": r.beta_form,
        "use_qk_l2norm_in_kernel": r.normalize,
        "scale": None,
    }
