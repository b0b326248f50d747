"""The error budget: how far a correct kernel of a declared precision may be from the oracle.

Each function bounds the error of one stage of `kda_ref.stages` or of one token step. Errors add
linearly: |k| <= 1 and 0 <= b <= 2 make the step a contraction, so local errors are damped and
never amplified, while a constant decay rounds the same way at every token, which no
root-sum-square model survives. Quadrature is used inside one dot product only.
`docs/tolerance.md` has the derivation and the calibration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .bounded import TINY, Bounded
from .stages import QK_NORM_EPS

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""The precision classes; 3xTF32 products belong to fp32."""

C_DECAY, C_RESIDUAL, C_UPDATE = 4.0, 3.0, 2.0

MARGIN = 2.0
"""Slack of the gates and the write strength. Their few roundings can all fall one way, so a
bound without slack is attained; those of a sum never do. Compiled on an H200 they reached 0.74
(softplus, logits near -30), 0.55 (lower bound) and 0.48 (sigmoid) of the bound at 1."""


@dataclass(frozen=True)
class RoundingPoints:
    """Where a kernel rounds to a narrower dtype between stages; None where it does not.

    Attributes:
        conv: q, k and v after convolution and SiLU.
        qk_norm: q and k after their normalization.
        beta: the write strength after its sigmoid.
        output: o before the gated norm.
        state: the state after every token (a bf16 pool, say).
    """

    conv: torch.dtype | None = None
    qk_norm: torch.dtype | None = None
    beta: torch.dtype | None = None
    output: torch.dtype | None = None
    state: torch.dtype | None = None


@dataclass(frozen=True)
class Precision:
    """What a subject declares about its arithmetic.

    Attributes:
        inputs: unit roundoff of convolution, SiLU, norms, gates and write strength.
        products: unit roundoff of the recurrence and of the output product.
        cumulative_gates: exponentiates differences of summed log decays, as chunked forms do.
        chunk: tokens after which those sums start anew.
        naive_softplus: softplus as log(1 + exp(x)), which loses the tail absolutely.
        rounding: declared rounding points.
        truncating_store: casts to bf16 drop bits (Triton's interpreter).
    """

    inputs: float = UNIT_ROUNDOFF["fp32"]
    products: float = UNIT_ROUNDOFF["fp32"]
    cumulative_gates: bool = False
    chunk: int = 64
    naive_softplus: bool = False
    rounding: RoundingPoints = field(default_factory=RoundingPoints)
    truncating_store: bool = False

    def at_class(self, name: str) -> Precision:
        """Return the same declaration with the products of another precision class."""
        return replace(self, products=UNIT_ROUNDOFF[name])


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last axis."""
    return torch.linalg.vector_norm(x, dim=-1)


def conv_error(window: Tensor, taps: Tensor, u: float) -> Tensor:
    """4u * sum |w||x|: four products and three additions."""
    return 4 * u * (window.abs() * taps.abs()).sum(-1) + TINY


def silu_error(c: Tensor, y: Tensor, c_error: Tensor, u: float) -> Tensor:
    """c_error times the slope over the whole of c +- c_error, and the error of c * sigmoid(c).

    The slope is at most 1.1, and it changes by at most 0.5 per unit of c: in the negative tail,
    where y vanishes, so does the error.
    """
    s = torch.sigmoid(c)
    slope = (s * (1 + c * (1 - s))).abs() + 0.5 * c_error
    relative = sigmoid_relative_error(c, 0.0, u) + u
    return slope.clamp_max(1.1) * c_error + relative * y.abs() + TINY


def l2_normalize_error(y: Tensor, k: Tensor, y_error: Tensor, u: float) -> Tensor:
    """Bound the norm of the error of a whole normalized vector ([.., K] -> [..]).

    Unit vectors along x and y are at most 2|x - y| / (|x| + |y|) apart (Dunkl and Williams), and
    the eps is one more component, the same in both.
    """
    root = torch.sqrt((y * y).sum(-1) + QK_NORM_EPS)
    error = norm(y_error)
    shortest = (root - error).clamp_min(QK_NORM_EPS**0.5)
    apart = 2 * error / (root + shortest)
    return apart + 4 * u * norm(k) + TINY * y.shape[-1] ** 0.5 / root


def sigmoid_relative_error(x: Tensor, x_error: Tensor | float, u: float) -> Tensor:
    """Relative error of 1 / (1 + exp(-x)): the argument counts where the sigmoid is small.

    Two ulps each (4u) for exp and for the quotient, as the approximate instructions of GPUs
    have, and u for the sum. A sigmoid below the normal numbers may be flushed, all of it.
    """
    rounding = torch.sigmoid(-x) * (x_error + u * (4 + x.abs())) + 5 * u
    return rounding + (torch.sigmoid(x) < 2 * TINY).double()


def lower_bound_gate_error(logit: Tensor, a_log: Tensor, log_decay: Tensor, u: float) -> Tensor:
    """Error of lower_bound * sigmoid(exp(A_log) * logit)."""
    u = MARGIN * u
    z = torch.exp(a_log) * logit
    z_error = u * z.abs() * (4 + a_log.abs())
    return log_decay.abs() * (sigmoid_relative_error(z, z_error, u) + u) + TINY


def softplus_gate_error(
    logit: Tensor, a_log: Tensor, log_decay: Tensor, u: float, *, naive: bool
) -> Tensor:
    """Error of -exp(A_log) * softplus(logit); absolute in the tail where softplus is naive."""
    u = MARGIN * u
    rate = torch.exp(a_log)
    argument = 2 * u * logit.abs() * torch.sigmoid(logit)
    absolute = 2 * u if naive else 0.0
    return rate * (argument + absolute + TINY) + log_decay.abs() * u * (8 + a_log.abs())


def write_strength_error(beta: Tensor, b: Tensor, beta_form: str, u: float) -> Tensor:
    """Error of the write strength; zero where it is given."""
    if beta_form == "given":
        return torch.zeros_like(b)
    return b * sigmoid_relative_error(beta, 0.0, MARGIN * u) + TINY


@dataclass(frozen=True)
class Step:
    """Everything one token step computed, for its error bound.

    Shapes: decayed, after [HV, V, K]; a, log_decay, cumulative, k, q [HV, K]; peak, v, predicted,
    u [HV, V]; b [HV]. `peak` is the largest norm that a column had so far: a form that carries
    the decay of an old state as one product loses, where that underflows, a share of the old
    state. Errors: k_error, q_error, b_error [HV]; log_decay_error [HV, K];
    v_error [HV, V].
    """

    peak: Tensor
    decayed: Tensor
    after: Tensor
    a: Tensor
    log_decay: Bounded
    k: Tensor
    k_error: Tensor
    q: Tensor
    q_error: Tensor
    v: Bounded
    b: Bounded
    predicted: Tensor
    u: Tensor
    cumulative: Tensor

    def underflow(self) -> Tensor:
        """What flush-to-zero and lost low parts may cost ([HV, V])."""
        scale = 1 + self.peak + self.v.value.abs() + norm(self.q)[:, None]
        return TINY * self.k.shape[-1] ** 0.5 * scale


def state_error(step: Step, error: Tensor, precision: Precision) -> Tensor:
    """Carry the bound of every value column through one token ([HV, V] -> [HV, V]).

    e' = rho e + local, rho = max(a) * max(1, |1 - b|k|^2|).
    """
    u = precision.products
    # As large as the computed ones may be: where key and value cancel, only the product of
    # their errors is left.
    k_norm = (norm(step.k) + step.k_error)[:, None]
    b = (step.b.value + step.b.error)[:, None]
    decayed_norm = norm(step.decayed)
    rho = step.a.amax(-1) * (1 - step.b.value * norm(step.k) ** 2).abs().clamp_min(1.0)
    root_k = step.k.shape[-1] ** 0.5
    residual = step.v.value - step.predicted

    local = u * (
        C_DECAY * decayed_norm
        + b * k_norm * root_k * norm(step.k[:, None, :] * step.decayed)
        + b * k_norm * C_RESIDUAL * (step.v.value.abs() + step.predicted.abs())
        + C_UPDATE * norm(step.after)
    )
    gate = step.log_decay.error + precision.inputs * step.log_decay.value.abs()
    if precision.cumulative_gates:
        # A decay between two tokens is a difference of two sums, each the root of a tree of
        # additions: the same as an input error of this token's gate.
        sums = step.cumulative.abs() + (step.cumulative - step.log_decay.value).abs()
        gate = gate + precision.inputs * math.log2(precision.chunk) * sums
    local = local + norm(gate[:, None, :] * step.decayed)
    local = local + b * k_norm * step.v.error
    local = local + (step.u.abs() + b * k_norm * decayed_norm) * step.k_error[:, None]
    local = local + k_norm * residual.abs() * step.b.error[:, None]
    return rho[:, None] * error + local + step.underflow()


def output_error(step: Step, error: Tensor, precision: Precision) -> Tensor:
    """Bound the error of o = S q, after the state's own error ([HV, V])."""
    u = precision.products
    q = step.q[:, None, :]
    q_norm = (norm(step.q) + step.q_error)[:, None]
    bound = q_norm * error + u * step.q.shape[-1] ** 0.5 * norm(q * step.after)
    return bound + norm(step.after) * step.q_error[:, None] + step.underflow()


def gated_rms_norm_error(
    o: Bounded, gate: Tensor, weight: Tensor, eps: float, out: Tensor, u: float
) -> tuple[Tensor, Tensor]:
    """Bound the fused norm's output and say where it is undetermined.

    Returns:
        error [.., V], and undetermined [.., 1] (bool): the true root may be zero, so only
        |out| <= 1.5 sqrt(V)|weight|sigmoid(gate) can be asked and 0/0 is accepted.
    """
    size = o.value.shape[-1]
    rms = norm(o.value)[..., None] / size**0.5
    spread = norm(o.error)[..., None] / size**0.5
    root = torch.sqrt(rms**2 + eps)
    # The mean of the squares may lose TINY to underflow.
    root_low = torch.sqrt(((rms - spread).clamp_min(0.0) ** 2 - TINY).clamp_min(0.0) + eps)
    undetermined = root_low == 0
    root_low = torch.where(undetermined, torch.ones_like(root_low), root_low)
    root = torch.where(undetermined, torch.ones_like(root), root)
    scale = weight.abs() * torch.sigmoid(gate)
    error = scale * (o.error / root_low + o.value.abs() * (1 / root_low - 1 / root))
    relative = 8 * u + sigmoid_relative_error(gate, 0.0, u)
    error = error + relative * out.abs() + TINY * size**0.5
    # No component exceeds sqrt(V) root mean squares; denormal squares may be off by half.
    limit = 1.5 * scale * size**0.5
    return torch.where(undetermined, limit, error), undetermined
