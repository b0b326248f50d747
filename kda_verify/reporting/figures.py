"""Figures of a page, as SVG that takes its colours from the page and loads nothing."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Figure = Any
Axes = Any
"""Both of matplotlib, which is an extra and imported only to draw."""

WIDTH, HEIGHT = 4.6, 2.7
"""Inches at 72 px: a figure is drawn for a phone and set beside others on a wide screen."""

NEAR = 0.01
"""Ratios below this are near nothing: zero is shown with them."""

INK, FAINT = "#010203", "#010204"
SERIES = tuple(f"#0102{n:02x}" for n in range(16, 24))
"""Stand-ins for the colours of the page, which know light from dark."""

_COLOURS = {
    INK: "currentColor", FAINT: "var(--rule)",
    **{colour: f"var(--c{n})" for n, colour in enumerate(SERIES, 1)},
}  # fmt: skip
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif",
    "font.size": 10, "axes.edgecolor": FAINT, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.unicode_minus": False,
    "legend.frameon": False, "legend.fontsize": 9, "grid.color": FAINT, "grid.linewidth": 0.6,
}  # fmt: skip

Output = Mapping[str, Any]


def histogram(outputs: Sequence[Output]) -> Figure | None:
    """Draw how the worst ratios of the cases are spread, stacked by output; None without any."""
    drawn = [o for o in outputs if o.get("bins")]
    if not drawn:
        return None
    figure, axes = _blank("worst ratio of a case", "cases")
    below: dict[int, int] = {}
    for output, colour in zip(drawn, _colours(len(drawn)), strict=True):
        per, bins = output["bins_per_decade"], {int(b): n for b, n in output["bins"].items()}
        axes.bar(
            [10 ** (b / per) for b in bins], list(bins.values()), align="edge", color=colour,
            width=[10 ** ((b + 0.9) / per) - 10 ** (b / per) for b in bins],
            bottom=[below.get(b, 0) for b in bins], label=output["operand"],
        )  # fmt: skip
        for b, n in bins.items():
            below[b] = below.get(b, 0) + n
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.xaxis.set_minor_formatter("")
    ends = [10 ** (b / drawn[0]["bins_per_decade"]) for b in (min(below), max(below) + 1)]
    axes.set_xlim(min(ends[0], 1) / 1.5, max(ends[1], 1) * 2.5)
    axes.yaxis.set_major_locator(_whole())
    axes.axvline(1, color=INK, linewidth=1, linestyle="--")
    axes.annotate(
        "budget", (1, 1), (3, -2), xycoords=("data", "axes fraction"), va="top",
        textcoords="offset points", fontsize=9,
    )  # fmt: skip
    _legend(figure, len(drawn))
    return figure


def by_position(outputs: Sequence[Output]) -> Figure | None:
    """Draw the worst ratio at every token of a request; None where no output has tokens."""
    lines = {o["operand"]: list(enumerate(o["by_position"])) for o in outputs
             if any(r is None or r > 0 for r in o.get("by_position", ()))}  # fmt: skip
    return _ratios(lines, "token of its request", line="-") if lines else None


def by_longest(outputs: Sequence[Output]) -> Figure | None:
    """Draw the worst ratio of states against the longest request of their case."""
    lines = {
        o["operand"]: [(int(n), r) for n, r in o["by_longest_request"].items()]
        for o in outputs
        if not o.get("by_position")
        and any(r is None or r > 0 for r in o.get("by_longest_request", {}).values())
    }
    return _ratios(lines, "tokens of the longest request", line="") if lines else None


def _ratios(
    lines: Mapping[str, Sequence[tuple[int, float | None]]], label: str, line: str
) -> Figure:
    """Draw ratios against whole numbers, by powers of ten down to `NEAR` and evenly below it."""
    figure, axes = _blank(label, "worst ratio")
    seen = [r for points in lines.values() for _, r in points if r is not None]
    # What has no finite ratio lies above all that has one.
    top = 10 ** (math.floor(math.log10(max([*seen, 1]))) + 1)
    for (name, points), colour in zip(lines.items(), _colours(len(lines)), strict=True):
        axes.plot(
            [x for x, _ in points], [top if r is None else r for _, r in points],
            linestyle=line, marker="o", markersize=3.5, linewidth=1.2, color=colour, label=name,
        )  # fmt: skip
    axes.set_yscale("symlog", linthresh=NEAR, linscale=0.5)
    axes.set_ylim(
        -NEAR / 4, 1.5 * (top if len(seen) < sum(map(len, lines.values())) else max([*seen, 1]))
    )
    axes.yaxis.set_major_formatter(_plain)
    places = [x for points in lines.values() for x, _ in points]
    axes.set_xlim(min(places) - 0.5, max(places) + 0.5)
    axes.xaxis.set_major_locator(_whole())
    if len(seen) < len(places):
        axes.axhline(top, color=INK, linewidth=1, linestyle=":")
        _mark(axes, "infinite", top)
    axes.axhline(1, color=INK, linewidth=1, linestyle="--")
    _mark(axes, "budget", 1)
    _legend(figure, len(lines))
    return figure


def svg(figure: Figure, name: str) -> str:
    """Return a figure as an element of a page: no prolog, no addresses, identifiers of its own.

    Args:
        figure: what to draw.
        name: prefix of its identifiers, which a page must hold once.
    """
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    drawn = re.sub(r' (width|height)="[\d.]+pt"', "", drawn, count=2)
    for stand_in, colour in _COLOURS.items():
        drawn = drawn.replace(stand_in, colour)
    return drawn


def _blank(x: str, y: str) -> tuple[Figure, Axes]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
    return figure, axes


def _mark(axes: Axes, text: str, ratio: float) -> None:
    axes.annotate(
        text, (1, ratio), (0, 2), xycoords=("axes fraction", "data"), ha="right", va="bottom",
        textcoords="offset points", fontsize=9,
    )  # fmt: skip


def _whole() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator("auto", integer=True, min_n_ticks=1)


def _plain(value: float, _: float = 0) -> str:
    """Write a tick without the markup that only a typesetter reads."""
    return f"{value:g}"


def _legend(figure: Figure, entries: int) -> None:
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        rows = math.ceil(entries / 2)
        figure.set_size_inches(WIDTH, HEIGHT + 0.2 * rows)
        figure.legend(loc="outside upper left", ncols=2, handlelength=1.2, columnspacing=1.0)


def _colours(count: int) -> list[str]:
    return [SERIES[n % len(SERIES)] for n in range(count)]
