"""Operations: everything that differs from one kind of call to another, stated once.

The record of an operation has two storeys, because cases are below what judges them:

- its `Facts`, data alone, one module per operation. Cases, layouts and laws read them here, by
  name or by what an operation can do;
- the functions that make and judge its calls, attached to the facts in `registry`. They are
  defined beside their like, in `cases`, `judging` and `laws`, none of which imports the registry
  for its definitions: only the entrances do (`cases.build`, `judging.expect`, `laws.calls`).

To add an operation, write its facts, its functions and its entry in the registry. Nothing else
asks for an operation by name, except where a law or a region means that one alone.
"""

from __future__ import annotations

from collections.abc import Callable

from . import commit, conv_commit, recurrent, verify
from .facts import Facts

FACTS = (verify.FACTS, commit.FACTS, conv_commit.FACTS, recurrent.FACTS)
NAMES = tuple(f.name for f in FACTS)

_BY_NAME = {f.name: f for f in FACTS}


def facts(name: str) -> Facts:
    """Return the facts of an operation.

    Raises:
        ValueError: no operation has that name.
    """
    if name not in _BY_NAME:
        raise ValueError(f"`operation` must be one of {', '.join(NAMES)}, got {name!r}")
    return _BY_NAME[name]


def having(holds: Callable[[Facts], bool]) -> tuple[str, ...]:
    """Name the operations that can do something, in order."""
    return tuple(f.name for f in FACTS if holds(f))


__all__ = ["FACTS", "NAMES", "Facts", "facts", "having"]
