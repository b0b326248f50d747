"""The terminal that tables go to."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """Print as wide as the terminal, or wide enough for the tables where there is none."""
    return Console(width=None if sys.stdout.isatty() else 120)
