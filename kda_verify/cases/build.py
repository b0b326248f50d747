"""Build: from a case to the tensors of one call."""

from __future__ import annotations

import torch

from ..operations.registry import operation
from .assembly import Built
from .case import Case
from .draw import Draw

__all__ = ["Built", "build"]


def build(case: Case, device: torch.device | str = "cpu") -> Built:
    """Build the call that a case describes, the same bits on every device.

    Every operand lies in a poisoned arena of its own, or in one it shares as the case says.
    Whatever a call must not read is poison: rows of padding requests and slack rows, slots that no
    request lists, gaps between pitches, ring entries past the accepted count, scratch and outputs.

    Args:
        case: the recipe; its seed decides all numbers and permutations.
        device: where the arenas go; they are drawn on the CPU.

    Returns:
        The call and its frame.

    Raises:
        ValueError: an exact case with a stage that rounds.
    """
    record = operation(case.operation)
    built = record.build(case.meant(), Draw(case.seed), device)
    if built.case.spoil != "none":
        spoil(built, built.arguments[str(record.facts.values)])
    return built


def spoil(built: Built, values: torch.Tensor) -> None:
    """Plant the case's NaN or infinity in v: last token, first head, of the first live request."""
    case = built.case
    if not case.busy:
        return
    n = case.busy[0]
    last = case.lengths[n] - 1
    at = (n, last) if case.batched else (0, sum(case.lengths[:n]) + last)
    values[at][0, 0] = float(case.spoil)
