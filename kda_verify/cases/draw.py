"""Seeded randomness: one independent stream per name, drawn on the CPU whatever the device."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Draw:
    """Draw reproducible values by name.

    Streams are independent, so adding an operand or changing a layout leaves every other value as
    it was: two cases that differ in layout alone hold the same numbers.

    Attributes:
        seed: of the case.
        scope: prefix of every name ("layer 1", say).
    """

    seed: int
    scope: str = ""

    def generator(self, name: str) -> torch.Generator:
        """Return a fresh CPU generator of the named stream."""
        key = zlib.crc32(f"{self.seed}/{self.scope}/{name}".encode())
        return torch.Generator().manual_seed(key)

    def normal(self, name: str, *shape: int) -> Tensor:
        """Return fp32 standard normal values."""
        return torch.randn(shape, generator=self.generator(name))

    def uniform(self, name: str, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return fp32 values uniform in [low, high)."""
        return torch.rand(shape, generator=self.generator(name)) * (high - low) + low

    def integers(self, name: str, low: int, high: int, *shape: int) -> Tensor:
        """Return int64 values uniform in low..high-1."""
        return torch.randint(low, high, shape, generator=self.generator(name))

    def integer(self, name: str, low: int, high: int) -> int:
        """Return one integer of low..high-1."""
        return int(self.integers(name, low, high, 1))

    def permutation(self, name: str, size: int) -> Tensor:
        """Return a random permutation of 0..size-1."""
        return torch.randperm(size, generator=self.generator(name))
