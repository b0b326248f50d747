"""Laws of channels and heads: permutations, signs, powers of two, and sums."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from ..cases.assembly import Built
from ..cases.draw import Draw
from ..operations import facts
from .calls import Call
from .results import Arguments, Results
from .rows import NO_ROW, Pairs, Seat, reseat, seats, shuffled

# The letters are those of `operations.facts`, with l for layers.
RESULT_AXES = {
    "out": "t H v", "slack": "t H v", "snapshots": "t H v k", "state": "l H v k",
    "tracked": "l H v k", "window_q": "t h k w", "window_k": "t h k w", "window_v": "t H v w",
    "ring_v": "t H v", "ring_k": "t h k", "ring_g": "t H k", "ring_beta": "t H",
    "cs_q": "l C w", "cs_k": "l C w", "cs_v": "l C w",
}  # fmt: skip
Orders = Mapping[str, Tensor]


def axes_of(operation: str, arguments: Arguments) -> dict[str, str]:
    """Return the axes of the operands of a call that are present."""
    mine = facts(operation)
    axes = {n: a for n, a in mine.axes.items() if arguments.get(n) is not None}
    if arguments.get("state_layout") == "kv":
        axes |= dict.fromkeys([n for n in mine.states if n in axes], "s H k v")
    return axes


def sizes_of(operation: str, arguments: Arguments) -> dict[str, int]:
    """Return H, HV, K and V as the operands have them."""
    sizes: dict[str, int] = {}
    for name, axes in axes_of(operation, arguments).items():
        if "(" not in axes:
            letters = axes.split()
            sizes |= dict(zip(letters, arguments[name].shape[-len(letters) :], strict=True))
    return {letter: sizes[letter] for letter in "hHkv" if letter in sizes}


def reorder(tensor: Tensor, axes: str, orders: Orders, sizes: Mapping[str, int]) -> Tensor:
    """Permute the lettered axes of a tensor; its trailing axes are those named."""
    first = tensor.ndim - len(axes.split())
    for at, group in enumerate(axes.split(), first):
        letters = re.sub(r"[()]", "", group)
        split = tensor.unflatten(at, [sizes.get(x, tensor.shape[at]) for x in letters])
        for place, letter in enumerate(letters, at):
            if letter in orders:
                split = split.index_select(place, orders[letter].to(tensor.device))
        tensor = split.flatten(at, at + len(letters) - 1)
    return tensor


def permuted(built: Built, call: Call, orders: Orders) -> Pairs:
    """Permute every operand, and expect every result permuted alike."""
    operation, arguments = built.case.operation, built.arguments
    sizes = sizes_of(operation, arguments)
    other = dict(arguments)
    for name, axes in axes_of(operation, arguments).items():
        other[name] = reorder(arguments[name], axes, orders, sizes)
    first = call(operation, arguments)
    expected = {
        key: reorder(value, RESULT_AXES[key[0]], orders, sizes) for key, value in first.items()
    }
    yield expected, call(operation, other)


def permute_heads(built: Built, call: Call, draw: Draw) -> Pairs:
    """Head groups in another order, and value heads inside them, give the same results."""
    sizes = sizes_of(built.case.operation, built.arguments)
    group = sizes["H"] // sizes["h"]
    heads = shuffled(draw, "heads", sizes["h"])
    inside = torch.stack([shuffled(draw, f"group {h}", group) for h in heads.tolist()])
    orders = {"h": heads, "H": (heads[:, None] * group + inside).flatten()}
    yield from permuted(built, call, orders)


def permute_values(built: Built, call: Call, draw: Draw) -> Pairs:
    """Value columns in another order give the same results."""
    size = sizes_of(built.case.operation, built.arguments)["v"]
    yield from permuted(built, call, {"v": shuffled(draw, "columns", size)})


def permute_keys(built: Built, call: Call, draw: Draw) -> Pairs:
    """Key channels in another order give the same results."""
    size = sizes_of(built.case.operation, built.arguments)["k"]
    yield from permuted(built, call, {"k": shuffled(draw, "channels", size)})


def permute_channels(built: Built, call: Call, draw: Draw) -> Pairs:
    """Channels of the conv pools in another order are copied alike."""
    operation, arguments = built.case.operation, built.arguments
    orders = {x: shuffled(draw, x, arguments[f"cs_{x}"].shape[-2]) for x in "qkv"}
    other = {
        name: reorder(arguments[name], axes, {"C": orders[name[-1]]}, {})
        for name, axes in axes_of(operation, arguments).items()
    }
    first = call(operation, arguments)
    expected = {(n, i): value[:, orders[n[-1]]] for (n, i), value in first.items()}
    yield expected, call(operation, {**arguments, **other})


def multiplied(built: Built, call: Call, operands: dict[str, Tensor], results: dict[str, Tensor]
               ) -> Pairs:  # fmt: skip
    """Multiply operands by exact factors, and expect some results multiplied alike."""
    operation, arguments = built.case.operation, built.arguments
    other = dict(arguments)
    for name, factor in operands.items():
        if arguments.get(name) is not None:
            other[name] = (arguments[name] * factor.to(arguments[name])).to(arguments[name].dtype)
    first = call(operation, arguments)
    expected = {
        key: value * results[key[0]].to(value) if key[0] in results else value
        for key, value in first.items()
    }
    yield expected, call(operation, other)


def flip_channels(built: Built, call: Call, draw: Draw) -> Pairs:
    """Key channels of the other sign in q, k and S leave every output as it is."""
    size = sizes_of(built.case.operation, built.arguments)["k"]
    sign = draw.integers("sign", 0, 2, size) * 2.0 - 1.0
    sign[draw.integer("one", 0, size)] = -1.0
    of_state = sign[:, None] if built.arguments.get("state_layout") == "kv" else sign
    mine = facts(built.case.operation)
    operands = dict.fromkeys(_named(mine.queries, mine.keys), sign)
    operands |= dict.fromkeys(mine.states, of_state)
    results = dict.fromkeys(("snapshots", "state", "tracked", "ring_k"), sign)
    yield from multiplied(built, call, operands, results)


def negate_pairs(built: Built, call: Call, draw: Draw) -> Pairs:
    """(k, v) and (-k, -v) write the same."""
    minus = torch.tensor(-1.0)
    mine = facts(built.case.operation)
    operands = dict.fromkeys(_named(mine.keys, mine.values), minus)
    yield from multiplied(built, call, operands, {"ring_k": minus, "ring_v": minus})


def scale_values(built: Built, call: Call, draw: Draw) -> Pairs:
    """(v, S) times a power of two gives results times that power."""
    power = torch.tensor(2.0 ** (1, 2, 3, -1, -2)[draw.integer("power", 0, 5)])
    operands = dict.fromkeys(_linear_in(built), power)
    results = dict.fromkeys(("out", "snapshots", "state", "tracked", "ring_v"), power)
    yield from multiplied(built, call, operands, results)


def additivity(built: Built, call: Call, draw: Draw) -> Pairs:
    """Outputs and states of (v, S) are the sums of those of two halves of (v, S)."""
    operation, arguments = built.case.operation, built.arguments
    halves: tuple[Arguments, Arguments] = dict(arguments), dict(arguments)
    for name in _linear_in(built):
        if arguments.get(name) is not None:
            mine = (draw.uniform(name, *arguments[name].shape) < 0.5).to(arguments[name].device)
            # Poison stays poison in both halves: an idle slot must not come to life.
            halves[0][name] = arguments[name].masked_fill(mine, 0.0)
            halves[1][name] = arguments[name].masked_fill(~mine, 0.0)
    parts = [_linear(call(operation, half)) for half in halves]
    total = {key: value.double() + parts[1][key] for key, value in parts[0].items()}
    yield _linear(call(operation, arguments)), total


def _named(*operands: str | None) -> list[str]:
    return [name for name in operands if name is not None]


def _linear_in(built: Built) -> list[str]:
    """Name what outputs and states are linear in: values and states."""
    mine = facts(built.case.operation)
    return _named(mine.values, *mine.states)


def _linear(results: Results) -> Results:
    kept = ("out", "snapshots", "state", "tracked")
    return {key: value for key, value in results.items() if key[0] in kept}


def idle_token(built: Built, call: Call, draw: Draw) -> Pairs:
    """A token that neither forgets nor writes, put anywhere, changes no other result."""
    operation, given = built.case.operation, seats(built.arguments)
    new, places, added = [], {}, 0
    for seat in given:
        assert seat.source is not None
        room = built.arguments.get("max_tokens", len(seat.rows) + 1)
        if len(seat.rows) in range(1, room):
            place = draw.integer(f"place {seat.source}", 0, len(seat.rows) + 1)
            places[seat.source] = place
            rows = [*seat.rows[:place], NO_ROW, *seat.rows[place:]]
            seat, added = Seat(seat.source, rows), added + 1
        new.append(seat)
    other = reseat(built.arguments, new)
    idle = torch.tensor([r for seat in new for r in seat.rows]) == NO_ROW
    for name in [n for n in facts(operation).rows if n in other]:
        drawn = draw.normal(name, int(idle.sum()), *other[name].shape[2:])
        size = drawn.square().sum(-1, keepdim=True).sqrt()
        drawn = drawn * 0.0 if name in ("g", "beta") else drawn / size.clamp_min(1.0)
        other[name][:, idle] = drawn.to(other[name])
    padding = {n for n, s in enumerate(given) if s.source not in places}

    def without(results: Results) -> Results:
        kept: Results = {}
        for (name, n), value in results.items():
            if name == "state" or n in padding or name == "slack":
                kept[name, n] = value
                continue
            tokens = torch.arange(len(value)) != places[n]
            kept[name, n] = value[tokens]
        kept.pop(("slack", 0), None)
        return kept

    first = call(operation, built.arguments)
    first.pop(("slack", 0), None)
    yield first, without(call(operation, other))
