"""Arithmetic that a kernel may be built from, imitated on a CPU: rounded operands, fp32 sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kda_ref import UNIT_ROUNDOFF

PRODUCTS = ("fp32", "tf32x3", "tf32", "tf32-cut", "bf16")
CLASS_OF = {"fp32": "fp32", "tf32x3": "fp32", "tf32": "tf32", "tf32-cut": "tf32", "bf16": "bf16"}
"""The precision class each kind of product belongs to."""

DROPPED_BITS = 13
BLUR = 2.0**-22
"""Two units in the last place, relative, at the bottom of a binade."""


def to_tf32(x: Tensor) -> Tensor:
    """Round fp32 to the ten stored significand bits of TF32, to nearest."""
    bits = x.contiguous().view(torch.int32)
    rounded = (bits + (1 << (DROPPED_BITS - 1))) & -(1 << DROPPED_BITS)
    return torch.where(torch.isfinite(x), rounded.view(torch.float32), x)


def cut_to_tf32(x: Tensor) -> Tensor:
    """Drop the bits that TF32 has no room for, as tensor cores do that are handed fp32."""
    cut = x.contiguous().view(torch.int32) & -(1 << DROPPED_BITS)
    return torch.where(torch.isfinite(x), cut.view(torch.float32), x)


def to_bf16(x: Tensor) -> Tensor:
    """Round fp32 to bf16 and back."""
    return x.bfloat16().float()


def three_products(x: Tensor, y: Tensor) -> Tensor:
    """x @ y from TF32 halves, smallest terms first: what `tf32x3` does."""
    x_high, y_high = to_tf32(x), to_tf32(y)
    x_low, y_low = to_tf32(x - x_high), to_tf32(y - y_high)
    return x_low @ y_high + x_high @ y_low + x_high @ y_high


_MATMUL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fp32": lambda x, y: x @ y,
    "tf32x3": three_products,
    "tf32": lambda x, y: to_tf32(x) @ to_tf32(y),
    "tf32-cut": lambda x, y: cut_to_tf32(x) @ cut_to_tf32(y),
    "bf16": lambda x, y: to_bf16(x) @ to_bf16(y),
}


@dataclass(frozen=True)
class Arithmetic:
    """Choose the arithmetic of every product of a form; sums stay in fp32.

    Attributes:
        keys: products of keys with keys, and what they multiply (the triangular part).
        state: products with the state: the prediction S k.
        update: outer products that write the state.
        output: products that yield o.
        approximate: exponentials, quotients and roots err by up to two units in the last place,
            as the approximate instructions of GPUs do.
    """

    keys: str = "fp32"
    state: str = "fp32"
    update: str = "fp32"
    output: str = "fp32"
    approximate: bool = False

    @classmethod
    def of(cls, kind: str, *, approximate: bool = False) -> Arithmetic:
        """Use one kind of product everywhere."""
        return cls(kind, kind, kind, kind, approximate)

    @property
    def precision_class(self) -> str:
        """The loosest class among the products."""
        kinds = {CLASS_OF[kind] for kind in (self.keys, self.state, self.update, self.output)}
        return max(kinds, key=lambda kind: UNIT_ROUNDOFF[kind])

    def exp(self, x: Tensor) -> Tensor:
        """Exponentiate elementwise."""
        return self._blur(torch.exp(x))

    def quotient(self, x: Tensor | float, y: Tensor) -> Tensor:
        """x / y elementwise."""
        return self._blur(x / y)

    def sqrt(self, x: Tensor) -> Tensor:
        """Root elementwise."""
        return self._blur(torch.sqrt(x))

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x)) as kernels spell it; where exp overflows the quotient is zero."""
        return self.quotient(1.0, 1 + self.exp(-x))

    def _blur(self, x: Tensor) -> Tensor:
        if not self.approximate:
            return x
        # Any fixed hash of the bits will do: the same argument must err the same way.
        hashed = (x.contiguous().view(torch.int32) * 0x9E3779B1) >> 8
        return x * (1 + BLUR * (hashed.remainder(2001) - 1000) / 1000)

    def matmul(self, site: str, x: Tensor, y: Tensor) -> Tensor:
        """x @ y in the arithmetic of the site."""
        return _MATMUL[getattr(self, site)](x, y)

    def apply(self, site: str, matrix: Tensor, vector: Tensor) -> Tensor:
        """Matrix times vector, batched over the leading axes."""
        return self.matmul(site, matrix, vector[..., None])[..., 0]

    def outer(self, x: Tensor, y: Tensor) -> Tensor:
        """Column times row, batched, in the arithmetic of the update."""
        return self.matmul("update", x[..., None], y[..., None, :])
