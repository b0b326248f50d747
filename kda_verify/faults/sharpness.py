"""Sharpness: how surely the budget tells one product in TF32 from the real kernel.

    python -m kda_verify.faults.sharpness --cases 5000 --device cuda --workers 14

Every drawn case goes to the real kernel and to a copy of it with one product in TF32, under one
answer of the oracle. A case counts where the product has anything to round:

- it makes up at least `SHARE` of some judged column: where it has decayed away, is multiplied by a
  strength of zero or enters a sum of larger terms, its rounding is below that of the sum;
- the taps do not cancel: there the convolution loses more than TF32 does, as the calibration in
  docs/tolerance.md shows;
- the copy leaves other bits than the real kernel: narrow outputs can hide every difference.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor

import kda_ref

from ..cases.build import Built, build
from ..cases.case import Case
from ..judging.answer import Answer
from ..judging.compare import Finding, compare
from ..judging.expect import expect
from ..judging.verdict import Outcome
from ..operations import facts
from ..plan import Batch, Draws, batches
from ..processes import worker_pool
from ..subjects import Subject, ours
from ..subjects.base import effective_precision
from .planted import Plant, planted
from .plants import TF32_COMMIT_PRODUCT, TF32_STATE_PRODUCT

WORST_RATIO, LEAST_SHARE = 0.5, 0.95
"""What must hold: worst ratio of the real kernel, share of the counted copies that fail."""

CHANCE = 1e-3

SHARE = 0.01
VANISHED = 2.0**-100
"""Products below this may be lost to underflow of their terms."""


@dataclass(frozen=True)
class Sample:
    """Hold what one case said.

    Attributes:
        subject: name of the real kernel.
        case: the case.
        real: worst ratio of the real kernel; infinite where it failed without one.
        planted: worst ratio of the copy.
        counts: whether the product has anything to round.
        found: whether the copy failed.
    """

    subject: str
    case: Case
    real: float
    planted: float
    counts: bool
    found: bool


@dataclass(frozen=True)
class Sharpness:
    """Sum up the samples of one kernel.

    Attributes:
        subject: name of the real kernel.
        judged: distinct cases inside the fp32 range.
        counted: of these, where the product has anything to round.
        found: of the counted, where the copy fails.
        worst: worst ratio of the real kernel over every case judged, and its case.
        missed: counted cases that the copy passes.
    """

    subject: str
    judged: int
    counted: int
    found: int
    worst: float
    worst_case: str
    missed: tuple[str, ...]

    @property
    def share(self) -> float:
        """Share of the counted cases in which the copy fails."""
        return self.found / self.counted if self.counted else 0.0

    @property
    def holds(self) -> bool:
        """Whether both limits hold."""
        return self.worst <= WORST_RATIO and self.share >= LEAST_SHARE

    @property
    def refuted(self) -> bool:
        """Whether so few copies failed that the least share is out of the question.

        A small sample misses a share of 95 % by chance alone; at one in a thousand it does not.
        """
        missed, rest = self.counted - self.found, 1 - LEAST_SHARE
        fewer = sum(
            math.comb(self.counted, m) * rest**m * LEAST_SHARE ** (self.counted - m)
            for m in range(missed)
        )
        return self.worst > WORST_RATIO or 1 - fewer < CHANCE

    def __str__(self) -> str:
        return (
            f"{self.subject}: {self.judged} cases, worst ratio {self.worst:.3f}; with one product "
            f"in TF32 {self.found} of {self.counted} that count fail ({self.share:.1%})"
        )


def measure(subject: str, cases: int, *, seed: int = 0, device: str = "cpu") -> Sharpness:
    """Draw cases in this process and measure one kernel with them."""
    draws = Draws(subject, PROBES[subject].strategy, cases)
    shares = batches([draws], size=20, seed=seed, compiled=device != "cpu")
    return summarize(subject, [s for share in shares for s in sample_batch(share, device)])


def sample_batch(batch: Batch, device: str) -> list[Sample]:
    """Draw the cases of a batch and put each to the kernel and to its copy."""
    cases: dict[Case, None] = {}

    @seed(batch.seed)
    @settings(
        max_examples=batch.draws.examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(batch.strategy())
    def collect(case: Case) -> None:
        cases[replace(case, spoil="none")] = None

    collect()
    name = batch.draws.subject
    real, copy = ours.subject(name, "kda_kernels"), ours.subject(name, _copy_for(name))
    samples = (sample(case, real, copy, device) for case in cases)
    return [s for s in samples if s is not None]


def sample(case: Case, real: Subject, copy: Subject, device: str = "cpu") -> Sample | None:
    """Put a case to the kernel and to its copy; None where nothing can be judged."""
    drawn = build(case)
    answer = expect(drawn, effective_precision(real.claims))
    if not answer.in_range:
        return None
    finding, left = _run(case, real, answer, device)
    failed_otherwise = finding.outcome != Outcome.PASS and finding.ratio <= 1
    ratio = float("inf") if failed_otherwise else finding.ratio
    cancels = case.conv and case.taps == "cancelling"
    if cancels or product_share(drawn) < SHARE:
        return Sample(real.name, case, ratio, 0.0, counts=False, found=False)
    spoiled, left_by_copy = _run(case, copy, answer, device)
    differs = any(not _same_bits(left[name], left_by_copy[name]) for name in left)
    found = spoiled.outcome != Outcome.PASS
    return Sample(real.name, case, ratio, spoiled.ratio, counts=differs, found=differs and found)


def product_share(built: Built) -> float:
    """Return the largest share that the planted product has in a judged column.

    All operations are linear in (v, S0), so the oracle itself takes the product out.
    """
    kernel = facts(built.case.operation).kernel
    assert kernel is not None
    return PROBES[kernel].share(built.arguments)


def _of_verify(given: dict[str, Any]) -> float:
    """Take the product out by a verify without its state."""
    # The norm and its undetermined elements come later; any buffer asks for snapshots.
    asked = {**given, "intermediate_ssm": given["recurrent_state"]}
    empty = {**asked, "recurrent_state": torch.zeros_like(given["recurrent_state"])}
    traces = zip(
        kda_ref.kda_mtp_verify(**asked).requests,
        kda_ref.kda_mtp_verify(**empty).requests,
        strict=True,
    )
    return max((_carried_share(*pair) for pair in traces), default=0.0)


def _of_commit(given: dict[str, Any]) -> float:
    """Take the product out by a commit without values and with, or without, its strengths."""
    unwritten = {**given, "rawv": torch.zeros_like(given["rawv"])}
    uncorrected = {**unwritten, "beta": torch.zeros_like(given["beta"])}
    largest = 0.0
    runs = (kda_ref.kda_replay_commit(**arguments) for arguments in (given, unwritten, uncorrected))
    for full, carried, decayed in zip(*(run.layers for run in runs), strict=True):
        for slot, state in full.items():
            product = _columns(carried[slot].value - decayed[slot].value)
            largest = max(largest, _share(product, _columns(state.value)))
    return largest


@dataclass(frozen=True)
class Probe:
    """Say how a kernel is probed.

    Attributes:
        strategy: name of a strategy in `kda_verify.cases.strategies`.
        plant: the fault of its copy: one product in TF32.
        share: largest share of that product in a judged column, from the arguments of a call.
    """

    strategy: str
    plant: Plant
    share: Callable[[dict[str, Any]], float]


PROBES = {
    "kda_mtp_verify": Probe("verify_cases", TF32_STATE_PRODUCT, _of_verify),
    "kda_replay_commit": Probe("commit_cases", TF32_COMMIT_PRODUCT, _of_commit),
}
"""By kernel."""


def _carried_share(full: kda_ref.RequestTrace | None, empty: kda_ref.RequestTrace | None) -> float:
    if full is None or empty is None or full.snapshots is None or empty.snapshots is None:
        return 0.0
    product = (full.o.value - empty.o.value).abs()
    kept = _columns(full.snapshots.value - empty.snapshots.value)
    left = kept >= SHARE * _columns(full.snapshots.value)
    return _share(product * (left & ~full.undetermined), empty.o.value.abs())


def _share(product: Tensor, rest: Tensor) -> float:
    share = torch.where(product > VANISHED, product / (product + rest), 0.0)
    return float(share.max()) if share.numel() else 0.0


def _columns(state: Tensor) -> Tensor:
    return torch.linalg.vector_norm(state, dim=-1)


def _run(
    case: Case, subject: Subject, answer: Answer, device: str
) -> tuple[Finding, dict[str, Tensor]]:
    built = build(case, device)
    returned = subject.call(built)
    operands = {k: v for k, v in built.arguments.items() if isinstance(v, Tensor)}
    operands |= returned
    judged = {e.operand for e in answer.expectations}
    return compare(operands, answer, subject.claims.grain), {n: operands[n] for n in judged}


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))


def summarize(subject: str, samples: Iterable[Sample]) -> Sharpness:
    """Sum up the distinct samples of one kernel."""
    judged = list({s.case: s for s in samples if s.subject == subject}.values())
    counted = [s for s in judged if s.counts]
    missed = [s for s in counted if not s.found]
    worst = max(judged, key=lambda s: s.real, default=None)
    return Sharpness(
        subject,
        judged=len(judged),
        counted=len(counted),
        found=len(counted) - len(missed),
        worst=0.0 if worst is None else worst.real,
        worst_case="" if worst is None else worst.case.to_json(),
        missed=tuple(s.case.to_json() for s in missed),
    )


_copies = ExitStack()
atexit.register(_copies.close)


@cache
def _copy_for(subject: str) -> str:
    """Import the planted copy once in a process: another copy would be compiled anew."""
    return _copies.enter_context(planted(PROBES[subject].plant))


def main() -> int:
    """Measure every kernel in worker processes; exit code 0 where all limits hold."""
    parser = argparse.ArgumentParser("kda_verify.faults.sharpness", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="cases per kernel, about [200]")
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--workers", type=int, default=1, help="processes [1]")
    parser.add_argument("--seed", type=int, default=0, help="which cases are drawn [0]")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    if options.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    draws = [Draws(name, probe.strategy, options.cases) for name, probe in PROBES.items()]
    shares = batches(draws, size=25, seed=options.seed, compiled=options.device != "cpu")
    with worker_pool(options.workers) as pool:
        results = pool.map(sample_batch, shares, [options.device] * len(shares))
        samples = [s for result in results for s in result]
    figures = [summarize(name, samples) for name in PROBES]
    for found in figures:
        print(found)
        for case in found.missed[:5]:
            print(f"  missed: {case}")
        if found.worst > WORST_RATIO:
            print(f"  worst: {found.worst_case}")
    if options.json is not None:
        data = [{**asdict(f), "share": f.share, "holds": f.holds} for f in figures]
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all(found.holds for found in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
