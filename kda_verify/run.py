"""Judge batches of drawn cases, in several processes, with progress."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from .cases.case import Case
from .judging.judge import judge
from .judging.verdict import Outcome, Verdict
from .plan import Batch
from .processes import worker_pool
from .subjects import find

SHRINK_EXAMPLES = 400

Work = Callable[..., list[Verdict]]


class Failed(AssertionError):
    """Raised inside Hypothesis for a failing case, so that it shrinks it."""


def judge_batch(
    batch: Batch, device: str, trail: Path | None = None, *, sensitivity: bool = True
) -> list[Verdict]:
    """Judge every case of a batch; at a failure stop, shrink it and put it last.

    Hypothesis replays the smallest failing case last, so the last verdict is the one to report.

    Args:
        batch: what to draw and judge.
        device: where.
        trail: a file that always names the case under way, should the process die.
        sensitivity: also find the smallest fault that each passing case would have shown.
    """
    subject = find(batch.draws.subject)
    verdicts: list[Verdict] = []
    shrinking: list[Verdict] = []

    @seed(batch.seed)
    @settings(
        max_examples=batch.draws.examples,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(batch.strategy())
    def check(case: Case) -> None:
        if trail is not None:
            trail.write_text(case.to_json())
        verdict = judge(case, subject, device, sensitivity=sensitivity and not shrinking)
        if not shrinking:
            verdicts.append(verdict)
        # A case that fails otherwise is another fault: the shrink keeps to the first one.
        same = not shrinking or verdict.outcome == shrinking[0].outcome
        if verdict.failed and same and len(shrinking) < SHRINK_EXAMPLES:
            shrinking.append(verdict)
            # One line raises, for Hypothesis tells failures apart by where they come from.
            raise Failed(str(verdict))

    # Flaky is what Hypothesis calls a case that fails once and passes when replayed.
    with suppress(Failed, Flaky):
        check()
    if shrinking:
        verdicts[-1] = shrinking[-1]
    return verdicts


def judge_all(
    batches: Iterable[Batch],
    device: str,
    workers: int,
    progress: Callable[[Verdict], None] | None = None,
    keep_going: Callable[[], bool] = lambda: True,
    *,
    sensitivity: bool = True,
) -> Iterator[Verdict]:
    """Judge batches in worker processes and yield verdicts as they come.

    Args:
        batches: what to judge; taken lazily, so they may be endless.
        device: "cpu" or a CUDA device.
        workers: number of processes.
        progress: called with every verdict.
        keep_going: asked before a batch is started; False ends the run after those under way.
        sensitivity: also find the smallest fault that each passing case would have shown.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    source, more = iter(batches), True
    work = partial(judge_batch, sensitivity=sensitivity)
    running: dict[Future[list[Verdict]], Batch] = {}
    pool = worker_pool(workers)
    try:
        while more or running:
            while more and len(running) < 2 * workers:
                batch = next(source, None) if keep_going() else None
                if batch is None:
                    more = False
                    break
                running[pool.submit(work, batch, device)] = batch
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            found, lost = [], []
            for future in done:
                batch = running.pop(future)
                try:
                    found += future.result()
                except Exception as problem:
                    if not _died(problem):
                        raise
                    lost.append(batch)
            if lost:
                # A dead worker takes the others' work with it: each goes again, alone.
                pool.shutdown(cancel_futures=True)
                lost += running.values()
                running.clear()
                pool = worker_pool(workers)
                found += [verdict for batch in lost for verdict in _alone(batch, device, work)]
            for verdict in found:
                if progress is not None:
                    progress(verdict)
                yield verdict
    finally:
        pool.shutdown(cancel_futures=True)


def _died(problem: Exception) -> bool:
    """Whether the kernel took its process, or its device, with it."""
    return isinstance(problem, BrokenProcessPool) or "CUDA error" in str(problem)


def _alone(batch: Batch, device: str, work: Work = judge_batch) -> list[Verdict]:
    """Judge a batch in a process of its own; if that dies too, blame the case it died on."""
    with tempfile.TemporaryDirectory() as folder, worker_pool(1) as pool:
        trail = Path(folder) / "case.json"
        try:
            return pool.submit(work, batch, device, trail).result()
        except Exception as problem:
            if not _died(problem) or not trail.exists():
                raise
            case = Case.from_json(trail.read_text())
            detail = f"the process died: {problem}".splitlines()[0]
            return [Verdict(Outcome.RAISED, batch.draws.subject, case, detail=detail)]
