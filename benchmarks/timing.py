"""Time of one call: replays of a CUDA graph of many calls, back to back, in batches.

A graph takes the host out of the measurement. Its calls rotate over sets of operands that no
cache holds, and replays follow one another without a pause, so that what one leaves in the cache,
dirty lines included, is paid for by the next. The median is over batches of replays.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

BATCHES = 11
BATCH_MILLISECONDS = 2.0
MAX_REPEATS = 20

GRAPH_BYTES, GRAPH_CALLS = 4_000_000_000, 512
"""A graph touches so much, about a millisecond of traffic, but makes at most so many calls."""


@dataclass(frozen=True)
class Timing:
    """How long a call takes.

    Attributes:
        median, low, high: microseconds of one call: median and quartiles over the batches.
        replays: in each batch.
        calls: in one replay.
        sets: of operands that they rotate over.
        samples: microseconds of one call in every batch, in the order measured.
    """

    median: float
    low: float
    high: float
    replays: int
    calls: int
    sets: int
    samples: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the record."""
        return asdict(self)


class Timer(Protocol):
    """Time calls that were bound to distinct sets of operands."""

    def __call__(
        self, calls: Sequence[Callable[[], object]], bytes_each: int, reset: Callable[[], None]
    ) -> Timing:
        """Return the time of one call; `reset` puts state back that calls change in place."""


def rounds(sets: int, bytes_each: int) -> int:
    """Return how often a graph passes over its sets."""
    by_traffic = math.ceil(GRAPH_BYTES / (sets * bytes_each))
    return max(1, min(by_traffic, GRAPH_CALLS // sets))


def replay_time(
    calls: Sequence[Callable[[], object]], bytes_each: int, reset: Callable[[], None]
) -> Timing:
    """Capture the calls in a graph and time its replays.

    Args:
        calls: one per set of operands.
        bytes_each: what a call must move, to size the graph.
        reset: run before every batch, untimed: restores what calls change in place.

    Returns:
        The time of one call.
    """
    order = list(calls) * rounds(len(calls), bytes_each)
    # Compiles, tunes and sizes workspaces before the capture, which allows none of it.
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in order:
            call()
    once = _milliseconds(graph, 1)
    repeats = max(1, min(MAX_REPEATS, math.ceil(BATCH_MILLISECONDS / once)))
    samples = []
    for _ in range(BATCHES):
        reset()
        samples.append(_milliseconds(graph, repeats) / (repeats * len(order)) * 1e3)
    low, _, high = statistics.quantiles(samples, n=4)
    median = statistics.median(samples)
    return Timing(median, low, high, repeats, len(order), len(calls), tuple(samples))


def _milliseconds(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Time of some replays, after one that warms up."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
