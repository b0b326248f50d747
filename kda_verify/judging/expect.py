"""What a call must leave behind: expected elements of every operand, from the oracle."""

from __future__ import annotations

from kda_ref import Precision

from ..cases.assembly import Built
from ..operations.registry import operation
from .answer import Answer


def expect(built: Built, precision: Precision) -> Answer:
    """Ask the oracle what the call must leave behind, for a declared precision."""
    return operation(built.case.operation).answer(built, precision)
