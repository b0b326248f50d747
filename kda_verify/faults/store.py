"""Stores of long runs: one JSON object a line, added as results come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Entry = TypeVar("Entry")


def add(entry: Mapping[str, Any], store: Path) -> None:
    """Add an entry on a line of its own, also after a line that an interruption cut short."""
    store.parent.mkdir(parents=True, exist_ok=True)
    old = store.read_text(encoding="utf-8") if store.exists() else ""
    with store.open("a", encoding="utf-8") as file:
        file.write("\n" * (old != "" and not old.endswith("\n")) + json.dumps(entry) + "\n")


def load(store: Path | None, make: Callable[..., Entry]) -> list[Entry]:
    """Read stored entries in order; a line cut short or of other fields is left out."""
    if store is None or not store.exists():
        return []
    found = []
    for line in store.read_text(encoding="utf-8").splitlines():
        try:
            found.append(make(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found
