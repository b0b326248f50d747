"""The stages of `kda-verify verify` beside the drawn cases: each passes, fails or says why not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import fixtures
from .cases.regions import coverage
from .determinism import in_any_order, repeat
from .judging.verdict import Outcome, Verdict
from .plan import DETERMINISM, Batch
from .subjects import find

ROOT = Path(__file__).resolve().parent.parent
DRAWN_SCHEDULES = 10


@dataclass(frozen=True)
class StageResult:
    """Say how a stage ended.

    Attributes:
        name: of the stage.
        outcome: "pass", "fail" or "not-run".
        detail: one line of figures, or what failed.
        seconds: wall time.
    """

    name: str
    outcome: str
    detail: str
    seconds: float


def timed(name: str, stage: Callable[[], tuple[str, str]]) -> StageResult:
    """Run a stage and time it."""
    start = time.perf_counter()
    try:
        outcome, detail = stage()
    except Exception as problem:  # a stage that breaks has failed, and the others still run
        outcome, detail = "fail", f"{type(problem).__name__}: {problem}".splitlines()[0]
    return StageResult(name, outcome, detail, time.perf_counter() - start)


def regions(verdicts: Sequence[Verdict]) -> tuple[str, str]:
    """Require a judged case of every kernel and in every region, but of those that cannot run."""
    judged = {verdict.subject for verdict in verdicts if verdict.judged}
    refused = {v.subject for v in verdicts if v.outcome == Outcome.NOT_SUPPORTED}
    if idle := sorted(refused - judged):
        return "fail", f"no case of {', '.join(idle)} was judged: it supports none"
    counts = coverage(verdict.case for verdict in verdicts if verdict.judged)
    not_run = coverage(v.case for v in verdicts if v.outcome == Outcome.NOT_RUN)
    empty = [name for name, count in counts.items() if not count and not not_run[name]]
    if empty:
        return "fail", f"no judged case has: {', '.join(empty)}"
    reached = {name: count for name, count in counts.items() if count}
    if not reached:
        return "not-run", "no case was judged"
    fewest = min(reached, key=lambda name: reached[name])
    left = f", {len(counts) - len(reached)} not run" if len(reached) < len(counts) else ""
    return "pass", f"{len(reached)} regions reached{left}; fewest by {fewest}: {reached[fewest]}"


def tests(*patterns: str) -> tuple[str, str]:
    """Run test modules of the suite in a process of their own."""
    folder = ROOT / "property_tests"
    files = sorted(str(p) for pattern in patterns for p in folder.glob(pattern))
    if not files:
        return "not-run", f"no {' or '.join(patterns)} beside the package"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    if _has("xdist"):
        command += ["-n", str(min(os.cpu_count() or 1, 4))]
    if not _has("pytest"):
        return "not-run", "pytest is not installed: pip install 'kda-verify[test]'"
    done = subprocess.run([*command, *files], capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    if done.returncode == 0:
        return "pass", lines[-1]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return "fail", "; ".join(failed[:3]) or lines[-1]


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def determinism(device: str) -> tuple[str, str]:
    """Repeat a few drawn cases of every operation, alone and among others, and compare bits."""
    checked, found = 0, []
    for index, draws in enumerate(DETERMINISM):
        subject = find(draws.subject)
        if subject.unavailable():
            continue
        cases = Batch(draws, seed=index, compiled=device != "cpu").cases()
        for case in cases:
            if subject.claims.refusal(case):
                continue
            checked += 1
            for ask in (repeat, in_any_order):
                verdict = ask(case, subject, device)
                if verdict.outcome != Outcome.PASS:
                    found.append(str(verdict))
    if found:
        return "fail", found[0]
    if not checked:
        return "not-run", "no case could run here"
    return "pass", f"{checked} cases gave the same bits three times and after other calls"


def regressions(device: str) -> tuple[str, str]:
    """Replay every stored fixture."""
    stored = fixtures.load_all()
    problems, ran = [], 0
    for fixture in stored:
        if find(fixture.subject).unavailable():
            continue
        ran += 1
        if problem := fixtures.mismatch(fixture, device=device):
            problems.append(problem)
    if problems:
        return "fail", problems[0]
    if not ran:
        return "not-run", "no fixture could run here"
    return "pass", f"{ran} fixtures as stored, {len(stored) - ran} not run"


def serving(device: str) -> tuple[str, str]:
    """Replay the stored schedules and play drawn ones; a failing one is stored."""
    from .serving import Failure, our_kernels, play
    from .serving.explore import explore, keep
    from .serving.stored import SCHEDULES, load

    kernels, worst, files = our_kernels(), 0.0, sorted(SCHEDULES.glob("*.json"))
    for path in files:
        try:
            worst = max(worst, play(load(path).schedule, kernels, device).worst)
        except Failure as failure:
            return "fail", f"{path.name}: {failure}".splitlines()[0]
    found = explore(kernels, DRAWN_SCHEDULES, device=device)
    if found.failure is not None:
        first = str(found.failure).splitlines()[0]
        return "fail", f"{first}; stored as {keep(found.failure.schedule, 'verify', first)}"
    worst = max(worst, found.worst)
    return "pass", (
        f"{len(files)} stored and {found.schedules} drawn schedules, {found.steps} steps, "
        f"at most {worst:.2g} times the budget"
    )


def offline() -> tuple[str, str]:
    """Compile every kernel for every target and compare with the committed table."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    table = ROOT / "fixtures" / "resources.json"
    done = subprocess.run(
        [sys.executable, "-m", "kda_kernels.offline", "--check", str(table)],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
    return ("pass" if done.returncode == 0 else "fail"), lines[-1]
