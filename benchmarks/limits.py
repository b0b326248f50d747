"""The physical limit: what this device moves, measured in the same run with the same clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .timing import Timing, replay_time

BUFFER_BYTES = 1 << 30
SMALL_CALLS = 256


@dataclass(frozen=True)
class Limits:
    """What a row is compared with.

    Attributes:
        bandwidth: bytes per second read and written by an operation in place.
        in_place: time of that operation on `BUFFER_BYTES`.
        smallest: time of a kernel that adds one to one number, in a graph.
    """

    bandwidth: float
    in_place: Timing
    smallest: Timing

    def microseconds(self, moved: int) -> float:
        """Return the time below which no kernel can move so many bytes."""
        return moved / self.bandwidth * 1e6

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the record."""
        return {
            "bandwidth_bytes_per_second": self.bandwidth,
            "in_place": {"bytes": 2 * BUFFER_BYTES, **self.in_place.to_dict()},
            "smallest_kernel": self.smallest.to_dict(),
        }


def measure(device: str) -> Limits:
    """Measure the limits of a device.

    The bandwidth is that of scaling a gigabyte of random numbers in place: every byte is read
    once and written once, as a state is by a commit.

    Args:
        device: a CUDA device.
    """
    large = torch.randn(BUFFER_BYTES // 4, device=device)
    small = [torch.zeros(1, device=device) for _ in range(SMALL_CALLS)]

    def scale() -> None:
        # A factor of one would leave the same bytes, and a larger one would grow without end.
        large.mul_(-1.0)

    def add(one: torch.Tensor) -> Callable[[], object]:
        return lambda: one.add_(1.0)

    in_place = replay_time([scale], 2 * BUFFER_BYTES, _nothing)
    smallest = replay_time([add(one) for one in small], BUFFER_BYTES, _nothing)
    return Limits(2 * BUFFER_BYTES / (in_place.median * 1e-6), in_place, smallest)


def _nothing() -> None:
    """Nothing to restore."""
