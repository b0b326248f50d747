"""Laws of containment: what is not finite stays with the request, the head or the slot it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..cases.assembly import Built
from ..cases.draw import Draw
from ..operations import facts
from ..operations.facts import SLOTS
from .axes import RESULT_AXES, axes_of, sizes_of
from .calls import Call, like
from .results import Arguments, Results, live
from .rows import ROWS, Pairs, of, seats

NOT_FINITE = (float("nan"), float("inf"))
Chosen = Mapping[str, Sequence[int]]


def requests(built: Built, call: Call, draw: Draw) -> Pairs:
    """All that one request holds, rows, slot and scratch row, may be NaN or infinite."""
    operation, arguments = built.case.operation, built.arguments
    alive = live(arguments)
    chosen = alive[draw.integer("request", 0, len(alive))]
    others = [seat.source for seat in seats(arguments) if seat.source not in (None, chosen)]
    first = call(operation, arguments)
    for value in NOT_FINITE:
        other = call(operation, _with_request(built, chosen, value))
        yield _kept(first, others), _kept(other, others)


def slots(built: Built, call: Call, draw: Draw) -> Pairs:
    """Slots and scratch rows that no live request lists may hold NaN or infinity."""
    operation, arguments = built.case.operation, built.arguments
    first = call(operation, arguments)
    for value in NOT_FINITE:
        other = dict(arguments)
        for names, index in _lists(operation, arguments):
            for name in _present(names, arguments):
                axis = int(built.case.layers > 0)
                listed = {_at(arguments[index], n) for n in live(arguments)}
                idle = [i for i in range(arguments[name].shape[axis]) if i not in listed]
                other[name] = _filled(arguments[name], axis, idle, value)
        yield first, call(operation, other)


def heads(built: Built, call: Call, draw: Draw) -> Pairs:
    """A query head and its value heads may be NaN or infinite in everything they hold."""
    operation, arguments = built.case.operation, built.arguments
    sizes = sizes_of(operation, arguments)
    group = sizes["H"] // sizes["h"]
    chosen = draw.integer("head", 0, sizes["h"])
    spoilt = {"h": [chosen], "H": range(chosen * group, (chosen + 1) * group)}
    kept = {x: [i for i in range(sizes[x]) if i not in spoilt[x]] for x in "hH"}
    first = _only_heads(call(operation, arguments), kept)
    for value in NOT_FINITE:
        other = dict(arguments)
        for name, axes in axes_of(operation, arguments).items():
            other[name] = _fill_heads(arguments[name], axes, spoilt, sizes, value)
        yield first, _only_heads(call(operation, other), kept)


def _with_request(built: Built, chosen: int, value: float) -> Arguments:
    operation, arguments = built.case.operation, built.arguments
    changed = dict(arguments)
    rows = seats(arguments)[chosen].rows
    for name in _present(ROWS if rows else (), arguments):
        if "accept_lens" not in arguments:
            changed[name] = _filled(arguments[name], 1, rows, value)
    if "initial_state" in arguments and "ssm_state_indices" not in arguments:
        changed["initial_state"] = _filled(arguments["initial_state"], 0, [chosen], value)
    for names, index in _lists(operation, arguments):
        for name in _present(names, arguments):
            held = [_at(arguments[index], chosen)]
            if held[0] >= 0:
                axis = int(built.case.layers > 0)
                changed[name] = _filled(arguments[name], axis, held, value)
    return changed


def _lists(operation: str, arguments: Arguments) -> list[tuple[Sequence[str], str]]:
    """Return pools by the operand that lists what a request holds of them."""
    mine = facts(operation)
    lists = [(mine.slot_pools, SLOTS), (mine.row_pools, "intermediate_state_indices")]
    return [(names, index) for names, index in lists if arguments.get(index) is not None]


def _present(names: Sequence[str], arguments: Arguments) -> list[str]:
    return [name for name in names if arguments.get(name) is not None]


def _at(index: Tensor, n: int) -> int:
    return int(index[n])


def _filled(tensor: Tensor, axis: int, at: Sequence[int], value: float) -> Tensor:
    copy = like(tensor)
    copy.movedim(axis, 0)[list(at)] = value
    return copy


def _fill_heads(
    tensor: Tensor, axes: str, spoilt: Chosen, sizes: Mapping[str, int], value: float
) -> Tensor:
    copy = like(tensor)
    first = copy.ndim - len(axes.split())
    for at, group in enumerate(axes.split(), first):
        letter = group.strip("()")[0]
        if letter in spoilt:
            # One axis of heads times channels is spoilt in whole heads.
            inner = copy.shape[at] // sizes[letter]
            lanes = torch.tensor(list(spoilt[letter]))[:, None] * inner + torch.arange(inner)
            copy.index_fill_(at, lanes.flatten().to(copy.device), value)
    return copy


def _only_heads(results: Results, kept: Chosen) -> Results:
    found: Results = {}
    for key, value in results.items():
        letters = RESULT_AXES[key[0]].split()
        letter = next(x for x in letters if x in kept)
        lanes = torch.tensor(kept[letter], dtype=torch.int64, device=value.device)
        found[key] = value.index_select(letters.index(letter), lanes)
    return found


def _kept(results: Results, requests: Sequence[int | None]) -> Results:
    """Keep the results of some requests, and the rows that nobody owns."""
    slack = {key: value for key, value in results.items() if key[0] == "slack"}
    return {**of(results, [n for n in requests if n is not None]), **slack}
