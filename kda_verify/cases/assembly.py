"""Assembly: slots for the requests, and arenas that become the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arena import Arena, Frame, Placement
from .case import Case
from .draw import Draw
from .layout import Item, index, pools, weights


@dataclass(frozen=True)
class Built:
    """Hold one call, ready to make.

    Attributes:
        case: the recipe, as its operation means it.
        arguments: keywords of the case's operation (the oracle takes them as they are). Tensors
            are views of the frame's arenas; what the call leaves out is left out here.
        slots: the pool slot of every request, not positive for some or all padding.
        scratch_rows: the scratch row of every request; arbitrary for padding.
        frame: every arena, to find what a call had no right to change.
    """

    case: Case
    arguments: dict[str, Any]
    slots: list[int]
    scratch_rows: list[int]
    frame: Frame


@dataclass(frozen=True)
class Seats:
    """Say where every request sits.

    Attributes:
        slots, rows: per request; live ones are distinct, in two unrelated permutations.
        slot_count, row_count: of the pools and of the scratch.
        spare: slots that no request lists and no null block covers.
        live: positions of the requests that are not padding.
    """

    slots: list[int]
    rows: list[int]
    slot_count: int
    row_count: int
    spare: list[int]
    live: list[int]


def seat(case: Case, draw: Draw) -> Seats:
    """Seat the requests of a case.

    Padding lists a slot that the call must skip: negative, or up to the null block of a commit;
    its scratch row is -1, a live request's, or one past the end.
    """
    first = case.null_block + 1
    live = [n for n in range(case.requests) if n not in case.padding]
    seats = max(len(live) + case.spare_slots, 1)
    slot_order = (draw.permutation("slots", seats) + first).tolist()
    row_order = draw.permutation("scratch rows", seats).tolist()
    slots = draw.integers("padding slots", -2, first, case.requests).tolist()
    rows = []
    for n, kind in enumerate(draw.integers("padding rows", 0, 3, case.requests).tolist()):
        rows.append((-1, row_order[n % seats], seats)[kind])
    for i, n in enumerate(live):
        slots[n], rows[n] = slot_order[i], row_order[i]
    return Seats(slots, rows, first + seats, seats, slot_order[len(live) :], live)


class Assembly:
    """Collect arenas while a call is put together on the CPU.

    Args:
        case: decides poison, layers and layouts.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.arenas: list[Arena] = []

    def place(self, *together: Placement) -> list[Tensor]:
        """Make one arena of some operands and return their views, poisoned."""
        arena = Arena(together, self.case.poison)
        self.arenas.append(arena)
        return arena.views()

    def pools(self, items: Sequence[Item], slots: int) -> dict[str, list[Tensor]]:
        """Place pools and return, by name, the view of every layer."""
        placed: dict[str, list[Tensor]] = {}
        for together in pools(self.case, items, slots):
            for placement, view in zip(together, self.place(*together), strict=True):
                placed[placement.name] = self.layers(view)
        return placed

    def layers(self, view: Tensor) -> list[Tensor]:
        """Split a layer-stacked view into its layers; one layer where nothing is stacked."""
        return list(view.unbind(0)) if self.case.layers else [view]

    def index(self, name: str, values: Sequence[int]) -> None:
        """Place an index vector."""
        view = self.place(index(self.case, name, len(values)))[0]
        view.copy_(torch.tensor(values, dtype=torch.int32))

    def weight(self, name: str, value: Tensor | None) -> None:
        """Place an fp32 weight, unless it is None."""
        if value is not None:
            self.place(weights(self.case, name, tuple(value.shape)))[0].copy_(value)

    def offsets(self, name: str) -> None:
        """Place the row offsets of the packed requests."""
        lengths = self.case.lengths
        self.index(name, [sum(lengths[:n]) for n in range(len(lengths) + 1)])

    def fill_rows(self, view: Tensor, values: Tensor) -> None:
        """Write the rows of live requests; those of padding and slack stay poison.

        Args:
            view: row operand [1, T, ...] or [N, L, ...].
            values: [rows of all requests, ...].
        """
        lengths, padding = self.case.lengths, self.case.padding
        live = torch.tensor([n not in padding for n in range(len(lengths))])
        mine = live.repeat_interleave(torch.tensor(lengths)).nonzero()[:, 0]
        # Sequences of a batch may lie apart, so the two axes are not one.
        each = max(view.shape[1], 1)
        view[mine // each, mine % each] = values[mine].to(view.dtype)

    def finish(self, scalars: Mapping[str, Any], seats: Seats, device: torch.device | str) -> Built:
        """Move everything to the device and hand out the call."""
        frame = Frame(arena.to(device) for arena in self.arenas)
        arguments = {**frame.views(), **scalars}
        return Built(self.case, arguments, list(seats.slots), list(seats.rows), frame)
