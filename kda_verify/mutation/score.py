"""What the mutants came to: equivalent ones with their reasons, and the share noticed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from ..faults.gallery import Entry
from .mutants import GROUPS, ROOT, Mutant

SCORE = 0.97
"""Share of the mutants, equivalent ones aside, that must be noticed."""

EQUIVALENTS = Path(__file__).with_name("equivalents.json")


def equivalents(mutants: Sequence[Mutant], path: Path = EQUIVALENTS) -> dict[str, str]:
    """Read which mutants change nothing that can be observed, and why.

    Args:
        mutants: those of the sample.
        path: a list of objects with `path`, `before`, `after` and `reason`.

    Returns:
        The reason by name of a mutant of the sample.

    Raises:
        ValueError: an entry without a reason, or one whose line is not in its file any more.
    """
    reasons = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        if not entry["reason"]:
            raise ValueError(f"`reason` must say why {entry['before']!r} is equivalent, got none")
        source = (ROOT / entry["path"]).read_text(encoding="utf-8")
        lines = " ".join(line.strip() for line in source.splitlines())
        if entry["before"] not in lines:
            raise ValueError(f"`before` must be text of {entry['path']}, got {entry['before']!r}")
        for mutant in mutants:
            same = (mutant.path, mutant.before, mutant.after)
            if same == (entry["path"], entry["before"], entry["after"]):
                reasons[mutant.name] = entry["reason"]
    return reasons


def summary(
    mutants: Sequence[Mutant], entries: Mapping[str, Entry], reasons: Mapping[str, str]
) -> tuple[Table, float]:
    """Render what became of every group, and return the share noticed of all that could be."""
    table = Table(title="Mutants", title_justify="left")
    for column in (
        "group",
        "sampled",
        "noticed",
        "of them late",
        "equivalent",
        "survived",
        "score",
    ):
        table.add_column(column, justify="left" if column == "group" else "right")
    totals = [0] * 5
    for group in GROUPS:
        mine = [entries[m.name] for m in mutants if m.group == group and m.name in entries]
        noticed = [e for e in mine if e.found]
        late = [e for e in noticed if "no answer in" in e.says]
        same = [e for e in mine if not e.found and e.fault in reasons]
        counts = [
            len(mine),
            len(noticed),
            len(late),
            len(same),
            len(mine) - len(noticed) - len(same),
        ]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        table.add_row(group, *map(str, counts), _percent(counts))
    table.add_row("all", *map(str, totals), _percent(totals))
    able = totals[0] - totals[3]
    return table, totals[1] / able if able else 0.0


def _percent(counts: Sequence[int]) -> str:
    able = counts[0] - counts[3]
    return f"{100 * counts[1] / able:.1f} %" if able else ""
