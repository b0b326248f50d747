"""Emulated kernels as subjects: right by construction, in forms that no kernel here has.

What the judge says against one of them is a false alarm.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..cases.assembly import Built
from ..emulation.classes import Emulation
from .base import Claims


@dataclass(frozen=True)
class Emulated:
    """A multi-token verify in plain torch, of a declared form and arithmetic."""

    name: str
    emulation: Emulation
    operation: str = "verify"

    @property
    def claims(self) -> Claims:
        """What the arithmetic declares; a product over tokens may spread a NaN over its head."""
        return Claims(self.emulation.precision, grain="head", triton=False)

    def unavailable(self) -> str:
        """It runs everywhere."""
        return ""

    def call(self, built: Built) -> dict[str, Tensor]:
        """Call the emulation with the built keywords."""
        return {"out": self.emulation(**built.arguments)}


SUBJECTS = (
    Emulated("emulated.token-order", Emulation("token")),
    Emulated("emulated.one-pass", Emulation("one-pass", "tf32x3")),
    Emulated("emulated.chunked", Emulation("chunk-16")),
)
