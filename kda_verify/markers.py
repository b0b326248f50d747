"""Generated parts of a document, between two lines that mark them."""

from __future__ import annotations

from pathlib import Path


def replace_between(document: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the markers of a document.

    Raises:
        ValueError: the document lacks a marker; it stays as it is.
    """
    whole = document.read_text(encoding="utf-8")
    before, first, rest = whole.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"`{document}` must hold the markers {begin} and {end}")
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
