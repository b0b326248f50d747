"""Tables of a calibration: on the terminal, and in the document between two markers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ..markers import replace_between
from .regimes import REGIMES

if TYPE_CHECKING:
    from .calibrate import Row

COMMAND = "python -m kda_verify.emulation.calibrate --write docs/tolerance.md"
BEGIN = f"<!-- calibration: begin ({COMMAND}) -->"
END = "<!-- calibration: end -->"
CLASSES = {"fp32": ("fp32", "tf32x3"), "tf32": ("tf32",), "bf16": ("bf16",)}


def number(x: float) -> str:
    """Show a ratio in as few characters as tell it."""
    if x >= 10:
        return f"{x:.0f}"
    return f"{x:.2g}" if x >= 1e-4 or x == 0 else f"{x:.0e}"


def span(values: Iterable[float]) -> str:
    """Show the range of several ratios."""
    found = sorted(values)
    low, high = number(found[0]), number(found[-1])
    return low if low == high else f"{low} to {high}"


def own_class(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Tabulate, per regime, the range over forms of error / budget in the own class."""
    head = ["regime", "what"]
    head += [f"{group} {result}" for group in CLASSES for result in ("out", "state")] + ["rings"]
    body = []
    for name in dict.fromkeys(row.regime for row in rows):
        line = [name, REGIMES[name].about]
        mine = [row for row in rows if row.regime == name]
        for kinds in CLASSES.values():
            for result in ("out", "state"):
                line.append(span(row.own[result] for row in mine if row.kind in kinds))
        line.append(number(max(row.own["rings"] for row in mine)))
        body.append(line)
    return head, body


def looser_classes(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Tabulate, per regime, how far looser products stick out of a tighter budget, at least."""
    pairs = [("tf32", "fp32"), ("bf16", "fp32"), ("bf16", "tf32")]
    head = ["regime"]
    head += [f"{kind} over {group}, {x}" for kind, group in pairs for x in ("out", "state")]
    body = []
    for name in dict.fromkeys(row.regime for row in rows):
        line = [name]
        for kind, group in pairs:
            mine = [row.over[group] for row in rows if row.regime == name and row.kind == kind]
            line += [number(min(over[x] for over in mine)) for x in ("out", "state")]
        body.append(line)
    return head, body


def explained(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Tabulate the regimes that leave the bands, with the reason."""
    names = dict.fromkeys(row.regime for row in rows if REGIMES[row.regime].reason)
    return ["regime", "why it leaves the band"], [[n, REGIMES[n].reason] for n in names]


TABLES = {
    "Each class in its own budget: smallest to largest over the forms": own_class,
    "Looser products against a tighter budget: smallest over the forms": looser_classes,
    "Regimes outside the bands": explained,
}


def print_tables(rows: Sequence[Row]) -> None:
    """Print every row, then the tables of the document."""
    console = Console(width=200)
    table = Table("regime", "form", "products", "out", "state", "rings", "over tighter budgets")
    for row in rows:
        over = (
            f"{group}: {number(x['out'])} / {number(x['state'])}" for group, x in row.over.items()
        )
        shown = (number(row.own[x]) for x in ("out", "state", "rings"))
        table.add_row(row.regime, row.form, row.kind, *shown, ", ".join(over))
    console.print(table)
    for title, tabulate in TABLES.items():
        head, body = tabulate(rows)
        if body:
            table = Table(*head, title=title)
            for line in body:
                table.add_row(*line)
            console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    """Render the tables of the document."""
    parts = []
    for title, tabulate in TABLES.items():
        head, body = tabulate(rows)
        lines = [f"**{title}**", "", *("| " + " | ".join(line) + " |" for line in [head, *body])]
        lines.insert(3, "|" + "---|" * len(head))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def write_tables(path: Path, rows: Sequence[Row]) -> None:
    """Replace what stands between the markers of a document.

    Raises:
        ValueError: the document lacks a marker.
    """
    replace_between(path, BEGIN, END, markdown(rows))
