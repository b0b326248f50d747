"""Values that carry a bound on the error of the kernel that computes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

TINY = 2.0**-126
"""Smallest normal fp32 number: what flush-to-zero can cost in one operation."""


class Bounded(NamedTuple):
    """Pair an exact value with a bound on the error of a computed one.

    Attributes:
        value: float64, the oracle's value.
        error: float64, broadcastable to `value`; |computed - value| must not exceed it.
    """

    value: Tensor
    error: Tensor

    def at(self, index: Any) -> Bounded:
        """Index value and error alike; both must have the indexed axes in full."""
        return Bounded(self.value[index], self.error[index])


def exact(value: Tensor) -> Bounded:
    """Lift a tensor that reaches the kernel unrounded: error zero."""
    value = value.double()
    return Bounded(value, torch.zeros_like(value))


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at |magnitude| (float64), down to its denormals."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.abs())
    spacing = torch.ldexp(torch.full_like(magnitude, info.eps), exponent - 1)
    # frexp gives zero the exponent of numbers just below one.
    spacing = spacing.where(magnitude != 0, torch.zeros_like(spacing))
    return spacing.clamp_min(info.smallest_normal * info.eps)


def cast(value: Tensor, dtype: torch.dtype, *, truncate: bool = False) -> Tensor:
    """Round float64 to the grid of `dtype`, to nearest even or toward zero, and return float64.

    Triton's interpreter casts fp32 to bf16 by dropping bits (and to fp16 as it should);
    `truncate` reproduces that.
    """
    nearest = value.to(dtype).double()
    if not truncate or dtype != torch.bfloat16:
        return nearest
    overshoot = nearest.abs() > value.abs()
    toward_zero = nearest - torch.sign(value) * ulp(value, dtype)
    return torch.where(overshoot, toward_zero, nearest)


def round_to(x: Bounded, dtype: torch.dtype | None, *, truncate: bool = False) -> Bounded:
    """Apply a declared rounding point.

    Rounding is monotone, so a computed value in [value - error, value + error] lands between
    the rounded ends: the bound is zero where no rounding boundary lies within the error and
    whole steps of `dtype` where one does.
    """
    if dtype is None:
        return x
    centre = cast(x.value, dtype, truncate=truncate)
    above = cast(x.value + x.error, dtype, truncate=truncate) - centre
    below = centre - cast(x.value - x.error, dtype, truncate=truncate)
    return Bounded(centre, torch.maximum(above, below))


def stored(x: Bounded, dtype: torch.dtype, *, truncate: bool = False) -> Bounded:
    """Widen the bound by the one rounding of a store in `dtype`.

    A truncating cast errs toward zero only, so the centre moves half a step toward zero and
    the half-width stays half a step: still a one-sided bound.
    """
    half = 0.5 * ulp(x.value.abs() + x.error, dtype)
    if truncate and dtype == torch.bfloat16:
        return Bounded(x.value - torch.sign(x.value) * half, x.error + half)
    return Bounded(x.value, x.error + half)
