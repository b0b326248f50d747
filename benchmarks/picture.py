"""The record as a picture: time against N, one panel per operation and head count."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .record import Record, Result
from .rows import OPERATIONS

FORMATS = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Refuse a picture that cannot be drawn, before anything is measured.

    Raises:
        ValueError: matplotlib is missing, or the name has no known ending.
    """
    if path.suffix not in FORMATS:
        raise ValueError(f"`picture` must end in {', '.join(FORMATS)}, got {str(path)!r}")
    if find_spec("matplotlib") is None:
        raise ValueError(
            "`picture` must have matplotlib to be drawn, got none: pip install 'kda-verify[bench]'"
        )


def draw(record: Record, path: Path) -> None:
    """Draw time against N on logarithmic axes: ours, the best peer and the limit, per L.

    Args:
        record: of one run.
        path: where the picture goes; its ending decides the format.

    Raises:
        ValueError: as `check`, or a record without rows.
    """
    check(path)
    if not record.results:
        raise ValueError("`record` must hold rows to be drawn, got none")
    from matplotlib.figure import Figure

    operations = [o for o in OPERATIONS if any(r.row.operation == o for r in record.results)]
    heads = sorted({r.row.heads for r in record.results})
    size = (4 * len(heads), 3 * len(operations) + 1)
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(len(operations), len(heads), squeeze=False)
    for i, operation in enumerate(operations):
        for j, count in enumerate(heads):
            mine = [
                r for r in record.results if (r.row.operation, r.row.heads) == (operation, count)
            ]
            _panel(axes[i][j], mine, f"{operation}, H = {count}")
    run = record.run
    figure.suptitle(
        f"{run['device']}, {run['date']}, commit {run['commit']}: microseconds against N"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


LINES: tuple[tuple[str, str, Callable[[Result], float | None]], ...] = (
    ("ours", "o-", lambda r: r.ours.timing.median if r.ours.timing else None),
    ("best peer", "s--", lambda r: b.timing.median if (b := r.best()) and b.timing else None),
    ("limit", ":", lambda r: r.limit),
)


def _panel(axes: Any, results: list[Result], title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_title(title, fontsize="medium")
    if not results:
        axes.set_axis_off()
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    requests = sorted({r.row.requests for r in results})
    axes.set_xticks(requests, [f"N={n}" for n in requests])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    for colour, tokens in enumerate(sorted({r.row.tokens for r in results})):
        row = sorted((r for r in results if r.row.tokens == tokens), key=lambda r: r.row.requests)
        for name, style, read in LINES:
            points = [(r.row.requests, y) for r in row if (y := read(r)) is not None]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    style,
                    color=f"C{colour}",
                    label=f"{name}, L = {tokens}",
                    ms=4,
                )
    axes.legend(fontsize="xx-small")
