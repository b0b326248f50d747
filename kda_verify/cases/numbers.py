"""The numbers of a case: of the exact family, or of the families it names."""

from __future__ import annotations

from . import exact_family, families
from .case import Case
from .draw import Draw
from .tokens import Tokens


def tokens(case: Case, draw: Draw) -> Tokens:
    """Draw the numbers of one layer.

    Raises:
        ValueError: an exact case with a stage that rounds.
    """
    source = exact_family if case.exact else families
    return source.tokens(case, draw)
