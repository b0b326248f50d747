"""The ratios of every output over the cases of a run, small enough to store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..judging.verdict import Verdict

BINS_PER_DECADE = 4
DIGITS = 4


@dataclass
class OutputRatios:
    """Worst ratios of one output, one for every case that compared it.

    Attributes:
        ratios: error over budget of the worst element of every case.
        positions: worst at each token of a request, over all cases; empty where the output has
            no tokens or is met exactly.
        longest: worst over the cases whose longest request has that many tokens.
    """

    ratios: list[float] = field(default_factory=list)
    positions: list[float] = field(default_factory=list)
    longest: dict[int, float] = field(default_factory=dict)

    def add(self, ratio: float, positions: Sequence[float], longest: int) -> None:
        """Count one case."""
        self.ratios.append(ratio)
        self.longest[longest] = max(self.longest.get(longest, 0.0), ratio)
        self.positions += [0.0] * (len(positions) - len(self.positions))
        for position, value in enumerate(positions):
            self.positions[position] = max(self.positions[position], value)

    def to_dict(self, operand: str) -> dict[str, Any]:
        """Return plain values; infinite where an element that must be exact was not."""
        return {
            "operand": operand,
            "cases": len(self.ratios),
            "worst": max(self.ratios),
            "median": median(self.ratios),
            "exact": self.ratios.count(0.0),
            "unbounded": sum(math.isinf(r) for r in self.ratios),
            "bins_per_decade": BINS_PER_DECADE,
            "bins": {str(b): n for b, n in sorted(self._bins().items())},
            "by_position": [_short(r) for r in self.positions],
            "by_longest_request": {str(n): _short(r) for n, r in sorted(self.longest.items())},
        }

    def _bins(self) -> Counter[int]:
        """Count the other ratios; bin b begins at 10 ** (b / BINS_PER_DECADE)."""
        inside = (r for r in self.ratios if 0 < r < math.inf)
        return Counter(math.floor(BINS_PER_DECADE * math.log10(r)) for r in inside)


def gather(outputs: dict[str, OutputRatios], verdict: Verdict) -> None:
    """Count the ratios of one verdict, by operand."""
    for operand, ratio in verdict.ratios.items():
        mine = outputs.setdefault(operand, OutputRatios())
        mine.add(ratio, verdict.positions.get(operand, ()), max(verdict.case.lengths))


def _short(ratio: float) -> float:
    return float(f"{ratio:.{DIGITS}g}")
