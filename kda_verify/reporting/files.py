"""Where a run is written: refused early where it cannot be, and never half."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import sealed
from . import junit, page, stored


def check(paths: Mapping[str, Path | None]) -> None:
    """Refuse, before anything is judged, what could not be written afterwards.

    Args:
        paths: by option; None where it was not given.

    Raises:
        ValueError: not a place for a file, one place for two, or a package that is missing.
    """
    given = {option: path for option, path in paths.items() if path is not None}
    for option, path in given.items():
        parent = next(p for p in path.absolute().parents if p.exists())
        if path.is_dir() or not parent.is_dir():
            what = "a directory" if path.is_dir() else f"{parent}, a file, as its folder"
            raise ValueError(f"`{option}` must name a file, got {path}: {what}")
    if len({path.absolute() for path in given.values()}) < len(given):
        raise ValueError(
            f"{' and '.join(f'`{o}`' for o in given)} must name different files, "
            f"got {', '.join(map(str, given.values()))}"
        )
    if "--html" in given:
        page.refuse_without_packages("--html")


def write(run: dict[str, Any], paths: Mapping[str, Path | None], title: str) -> list[Path]:
    """Write a run in every form asked for, each file whole or not at all.

    Args:
        run: as `stored.load` or `summary.report` return it.
        paths: as `check` took them: "--json", "--html", "--junit".
        title: names the run on its page.

    Returns:
        What was written.

    Raises:
        ValueError: a file could not be written.
    """
    forms = {
        "--json": lambda: stored.text(run),
        "--html": lambda: page.render(run, title),
        "--junit": lambda: junit.render(run),
    }
    written = []
    for option, path in paths.items():
        if path is None:
            continue
        text = forms[option]()
        try:
            sealed.write(path, text)
        except OSError as problem:
            raise ValueError(
                f"`{option}` must be writable, got {path}: {problem.strerror}"
            ) from None
        written.append(path)
    return written
