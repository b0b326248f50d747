"""Build: from a case to the tensors of one call."""

from __future__ import annotations

import torch

from . import build_commit, build_rows, exact_family, families
from .assembly import Built
from .case import Case
from .draw import Draw
from .tokens import Tokens

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
        The call and its frame. Recurrent cases pass a pool with slot indices where there is
        padding or a pool that is not dense; otherwise plain initial states (none for the zero
        family).

    Raises:
        ValueError: an exact case with a stage that rounds.
    """
    draw = Draw(case.seed)
    if case.operation == "verify":
        return spoiled(build_rows.verify(case, draw, tokens(case, draw), device))
    if case.operation == "recurrent":
        given = build_rows.without_conv(case)
        return spoiled(build_rows.recurrent(case, draw, tokens(given, draw), device))
    layers = [Draw(case.seed, f"layer {layer}") for layer in range(max(case.layers, 1))]
    if case.operation == "conv_commit":
        return build_commit.conv_commit(case, draw, layers, device)
    replayed = build_commit.as_replayed(case)
    return build_commit.commit(case, draw, [tokens(replayed, layer) for layer in layers], device)


def tokens(case: Case, draw: Draw) -> Tokens:
    """Draw one layer's numbers from the exact family or from the case's families."""
    source = exact_family if case.exact else families
    return source.tokens(case, draw)


def spoiled(built: Built) -> Built:
    """Plant the case's NaN or infinity in v: last token, first head, of the first live request."""
    case = built.case
    if case.spoil == "none" or not case.busy:
        return built
    n = case.busy[0]
    values = built.arguments["x_v" if case.operation == "verify" else "v"]
    last = case.lengths[n] - 1
    at = (n, last) if case.batched else (0, sum(case.lengths[:n]) + last)
    values[at][0, 0] = float(case.spoil)
    return built
