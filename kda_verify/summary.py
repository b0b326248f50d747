"""Count verdicts per subject, and render them as a table and as JSON."""

from __future__ import annotations

import math
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table

from .cases.case import Case
from .cases.regions import coverage
from .judging.sensitivity import FAULTS
from .judging.verdict import CLASSES, Outcome, Verdict
from .reporting.outputs import OutputRatios, gather
from .reporting.stored import finite, text
from .sealed import write
from .subjects.base import interpreted

FOUND_IN = 0.95


@dataclass
class SubjectSummary:
    """What a run found about one subject."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    distinct: dict[str, Case] = field(default_factory=dict)
    worst: Verdict | None = None
    loosest_class: str = ""
    classes: Counter[str] = field(default_factory=Counter)
    outputs: dict[str, OutputRatios] = field(default_factory=dict)
    kernels: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    smallest: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    failures: list[Verdict] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self.outcomes[str(verdict.outcome)] += 1
        self.seconds += verdict.seconds
        self.kernels.update(verdict.kernels)
        if not verdict.judged:
            self.reasons[verdict.detail] += 1
            return
        self.distinct[verdict.case.to_json()] = verdict.case
        for operand, kinds in verdict.sensitivity.items():
            for kind, size in kinds.items():
                self.smallest.setdefault((operand, kind), []).append(size)
        gather(self.outputs, verdict)
        if verdict.failed:
            self.failures.append(verdict)
        if self.worst is None or verdict.ratio > self.worst.ratio:
            self.worst = verdict
        if verdict.precision_class:
            self.classes[verdict.precision_class] += 1
            known = [c for c in (self.loosest_class, verdict.precision_class) if c]
            self.loosest_class = max(known, key=CLASSES.index)

    @property
    def median_tokens(self) -> float:
        """Median over the distinct cases of the tokens of their longest request; 0 without any."""
        longest = [max(case.lengths) for case in self.distinct.values()]
        return float(median(longest)) if longest else 0.0

    @property
    def verdict(self) -> str:
        """The word for the whole subject: the first failure found, pass, or not judged."""
        if self.failures:
            return str(self.failures[0].outcome)
        if self.distinct:
            return str(Outcome.PASS)
        return self.outcomes.most_common(1)[0][0]


def summarize(verdicts: Iterable[Verdict]) -> dict[str, SubjectSummary]:
    """Group verdicts by subject, in the order in which subjects first appear."""
    summaries: dict[str, SubjectSummary] = {}
    for verdict in verdicts:
        summaries.setdefault(verdict.subject, SubjectSummary(verdict.subject)).add(verdict)
    return summaries


def table(summaries: dict[str, SubjectSummary]) -> Table:
    """Render the verdict table."""
    rendered = Table(title="Verdicts", title_justify="left")
    for column, justify in (
        ("kernel", "left"), ("cases", "right"), ("verdict", "left"), ("worst ratio", "right"),
        ("at", "left"), ("class", "left"), ("s", "right"),
    ):  # fmt: skip
        rendered.add_column(
            column,
            justify=justify,  # type: ignore[arg-type]
            overflow="fold",
            no_wrap=column == "kernel",
        )
    for summary in summaries.values():
        worst = summary.worst
        colour = {"pass": "green", "not-run": "yellow", "not-supported": "yellow"}
        style = colour.get(summary.verdict, "red")
        rendered.add_row(
            summary.name,
            str(len(summary.distinct)),
            f"[{style}]{summary.verdict}[/]",
            f"{worst.ratio:.3f}" if worst else "",
            worst.where if worst else next(iter(summary.reasons), ""),
            summary.loosest_class,
            f"{summary.seconds:.0f}",
        )
    return rendered


def sensitivity_table(summaries: dict[str, SubjectSummary]) -> Table:
    """Render the smallest relative faults that at least `FOUND_IN` of the cases would show."""
    title = f"Smallest fault that {FOUND_IN:.0%} of the cases show, per operand judged"
    rendered = Table(title=title, title_justify="left")
    rendered.add_column("kernel", no_wrap=True)
    rendered.add_column("stored as")
    for kind in FAULTS:
        rendered.add_column(kind, justify="right")
    for summary in summaries.values():
        pooled: dict[tuple[str, str], list[float]] = {}
        for (operand, kind), sizes in summary.smallest.items():
            pooled.setdefault((operand.split()[1], kind), []).extend(sizes)
        for dtype in sorted({dtype for dtype, _ in pooled}):
            cells = [_size(found_in(pooled.get((dtype, kind), []))) for kind in FAULTS]
            rendered.add_row(summary.name, dtype, *cells)
    return rendered


def found_in(sizes: Sequence[float], share: float = FOUND_IN) -> float | None:
    """Return the size that at least a share of the cases show; None without cases."""
    if not sizes:
        return None
    return sorted(sizes)[max(0, math.ceil(share * len(sizes)) - 1)]


def _size(size: float | None) -> str:
    if size is None:
        return ""
    return f"{size:.0e}" if math.isfinite(size) else "> 1"


def _sensitivity(summary: SubjectSummary) -> list[dict[str, Any]]:
    rows = []
    for (operand, kind), sizes in sorted(summary.smallest.items()):
        row: dict[str, Any] = {"operand": operand, "fault": kind, "cases": len(sizes)}
        for name, share in (("median", 0.5), ("found_in_95_percent", FOUND_IN)):
            row[name] = found_in(sizes, share)
        rows.append(row)
    return rows


def report(summaries: dict[str, SubjectSummary], device: str) -> dict[str, Any]:
    """Return the JSON report: environment, then one entry per subject.

    JSON has no infinity: null stands for a ratio where an exact element was missed, and for a
    smallest fault where not even one of the value's own size shows.
    """
    subjects = []
    for summary in summaries.values():
        worst, cases = summary.worst, summary.distinct.values()
        covered, asked = coverage(cases), tuple({f"{case.operation}:" for case in cases})
        subjects.append(
            {
                "kernel": summary.name,
                "verdict": summary.verdict,
                "distinct_cases": len(summary.distinct),
                "median_tokens": summary.median_tokens,
                "regions": {n: k for n, k in covered.items() if k},
                "regions_missed": [n for n, k in covered.items() if not k and n.startswith(asked)],
                "outcomes": dict(summary.outcomes),
                "worst": worst.to_dict() if worst else None,
                "precision_class": summary.loosest_class,
                "precision_classes": dict(summary.classes),
                "outputs": [o.to_dict(name) for name, o in summary.outputs.items()],
                "kernels_that_ran": dict(summary.kernels),
                "not_judged": dict(summary.reasons),
                "smallest_fault": _sensitivity(summary),
                "failures": [v.to_dict() for v in summary.failures],
                "seconds": round(summary.seconds, 1),
            }
        )
    return finite({"environment": environment(device), "subjects": subjects})


def environment(device: str) -> dict[str, Any]:
    """Describe where a run took place."""
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": gpu or "cpu",
        "cuda": torch.version.cuda if gpu else None,
        "interpreted": interpreted(),
        "commit": _commit(),
        **{name: _version(name) for name in ("torch", "triton", "numpy", "hypothesis", "fla-core")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write a report whole or not at all."""
    write(path, text(data))
