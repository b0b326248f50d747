"""Laws of requests and their rows: order, padding, neighbours, later tokens, capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cases.assembly import Built
from ..cases.draw import Draw
from ..operations import FACTS
from ..operations.facts import WINDOWS
from ..operations.verify import RINGS
from .calls import Call
from .results import Arguments, Results, lengths, live

Pairs = Iterator[tuple[Results, Results]]
ROWS = tuple(dict.fromkeys(name for each in FACTS for name in each.rows))
"""Operands with one entry per row; a commit has rings by the names of some."""
PER_REQUEST = (
    "ssm_state_indices",
    "intermediate_state_indices",
    "accept_lens",
    "mamba_track_indices",
    "mamba_steps_to_track",
)
NO_ROW = -1


@dataclass(frozen=True)
class Seat:
    """Say what stands at one position of a call.

    Attributes:
        source: position in the original call, or None for a padding request.
        rows: rows of the original call, `NO_ROW` for a row of NaN.
    """

    source: int | None
    rows: list[int]


def shuffled(draw: Draw, name: str, size: int) -> Tensor:
    """Draw a permutation that moves something, where there is something to move."""
    order = draw.permutation(name, size)
    return order.roll(1) if torch.equal(order, torch.arange(size)) else order


def seats(arguments: Arguments) -> list[Seat]:
    """Return the seats of a call as they are."""
    found, start = [], 0
    for n, length in enumerate(lengths(arguments)):
        rows = [] if "accept_lens" in arguments else list(range(start, start + length))
        found.append(Seat(n, rows))
        start += length
    return found


def reseat(arguments: Arguments, new: Sequence[Seat], slack: int = 0) -> Arguments:
    """Build the call that has these seats and some rows that nobody owns.

    Padding lists slot and scratch row -1; a request's own slot and scratch row stay its own.
    """
    rows = torch.tensor([r for seat in new for r in seat.rows] + [NO_ROW] * slack)
    changed = dict(arguments)
    if "out" in arguments:
        shape = list(arguments["out"].shape)
        shape[1] = len(rows)
        changed["out"] = arguments["out"].new_full(shape, torch.nan)
    is_commit = "accept_lens" in arguments
    for name in () if is_commit else [n for n in ROWS if n in arguments]:
        changed[name] = _take(arguments[name], rows)
    for name in PER_REQUEST:
        if name in arguments:
            given = arguments[name].tolist()
            values = [NO_ROW if s.source is None else given[s.source] for s in new]
            if name == "accept_lens":
                # Padding accepts as much as anyone, and is skipped by its slot.
                values = [max(given) if v == NO_ROW else v for v in values]
            changed[name] = _index(arguments[name], values)
    if "initial_state" in arguments and "ssm_state_indices" not in arguments:
        chosen = [s.source for s in new if s.source is not None]
        changed["initial_state"] = arguments["initial_state"][chosen]
    if not is_commit:
        offsets = [0]
        for seat in new:
            offsets.append(offsets[-1] + len(seat.rows))
        like = arguments.get("cu_seqlens", torch.empty(0, dtype=torch.int32))
        changed["cu_seqlens"] = _index(like, offsets).to(arguments["beta"].device)
    return changed


def back(results: Results, new: Sequence[Seat]) -> Results:
    """Name the results of a reseated call by the original positions; padding is left out."""
    sources = {i: seat.source for i, seat in enumerate(new)}
    return {
        (name, source): value
        for (name, i), value in results.items()
        if name != "slack" and (source := sources[i]) is not None
    }


def of(results: Results, requests: Sequence[int], *records: str) -> Results:
    """Keep the results of some requests, and of some records where they are named."""
    return {
        (name, n): value
        for (name, n), value in results.items()
        if n in requests and name != "slack" and (not records or name.startswith(records))
    }


def permute_requests(built: Built, call: Call, draw: Draw) -> Pairs:
    """Requests in another order give the same results."""
    operation, given = built.case.operation, seats(built.arguments)
    new = [given[i] for i in shuffled(draw, "order", len(given)).tolist()]
    everyone = range(len(given))
    first = call(operation, built.arguments)
    yield of(first, everyone), back(call(operation, reseat(built.arguments, new)), new)


def padding_position(built: Built, call: Call, draw: Draw) -> Pairs:
    """Padding inserted, moved, or all there is changes nothing for live requests."""
    operation, arguments = built.case.operation, built.arguments
    given, alive = seats(arguments), live(arguments)
    is_commit = "accept_lens" in arguments
    padding = [s for s in given if s.source not in alive]
    padding += [Seat(None, []), Seat(None, [] if is_commit else [NO_ROW])]
    first = call(operation, arguments)
    new = [given[n] for n in alive]
    # The first stands before a live request, where there is one; the others anywhere.
    new.insert(draw.integer("first place", 0, max(len(alive), 1)), padding[0])
    for place, seat in enumerate(padding[1:]):
        new.insert(draw.integer(f"place {place}", 0, len(new) + 1), seat)
    other = call(operation, reseat(arguments, new))
    yield of(first, alive), of(back(other, new), alive)
    yield _zeros_of_padding(other, [i for i, s in enumerate(new) if s in padding])
    nobody = [Seat(None, s.rows) for s in given]
    other = call(operation, reseat(arguments, nobody))
    yield _zeros_of_padding(other, range(len(given)))
    yield {}, {key: value for key, value in other.items() if key[0] not in ("out", "slack")}


def separate(built: Built, call: Call, draw: Draw) -> Pairs:
    """Each request alone gives what it gives in the batch."""
    operation, given = built.case.operation, seats(built.arguments)
    first = call(operation, built.arguments)
    for n in live(built.arguments):
        alone = [given[n]]
        slack = 0 if given[n].rows else 1
        other = call(operation, reseat(built.arguments, alone, slack))
        yield of(first, [n]), back(other, alone)


def drop_request(built: Built, call: Call, draw: Draw) -> Pairs:
    """A batch without one of its requests gives the others what they had."""
    operation, given = built.case.operation, seats(built.arguments)
    first = call(operation, built.arguments)
    gone = draw.integer("gone", 0, len(given))
    rest = [s for n, s in enumerate(given) if n != gone]
    kept = [n for n in range(len(given)) if n != gone]
    yield of(first, kept), back(call(operation, reseat(built.arguments, rest, slack=1)), rest)


def causality(built: Built, call: Call, draw: Draw) -> Pairs:
    """Other finite values in later tokens leave earlier results as they are."""
    arguments, operation = built.arguments, built.case.operation
    first = call(operation, arguments)
    edited, cuts = dict(arguments), {}
    later: list[int] = []
    for seat in seats(arguments):
        assert seat.source is not None
        cuts[seat.source] = draw.integer(f"cut {seat.source}", 1, max(len(seat.rows), 2))
        later += seat.rows[cuts[seat.source] :]
    for name in [n for n in ROWS if n in arguments]:
        edited[name] = arguments[name].clone()
        drawn = draw.normal(name, len(later), *arguments[name].shape[2:])
        # A given decay must not grow, a given strength stays in 0..1.
        drawn = -drawn.abs() if name == "g" else drawn.abs().clamp_max(1.0)
        edited[name][:, later] = drawn.to(arguments[name])
    other = call(operation, edited)

    def before(results: Results) -> Results:
        return {
            key: value[: cuts[key[1]]]
            for key, value in results.items()
            if key[0] not in ("slack", "state") and key[1] in live(arguments)
        }

    yield before(first), before(other)


def slack_rows(built: Built, call: Call, draw: Draw) -> Pairs:
    """Rows that nobody owns, after the last request, change nothing and come out as zeros."""
    given = seats(built.arguments)
    first = call("verify", built.arguments)
    other = call("verify", reseat(built.arguments, given, slack=3))
    yield of(first, range(len(given))), back(other, given)
    slack = other["slack", 0]
    yield {("slack", 0): torch.zeros_like(slack)}, {("slack", 0): slack}


def spare_capacity(built: Built, call: Call, draw: Draw) -> Pairs:
    """More room for tokens, within the power of two that is compiled, changes nothing."""
    tokens = built.arguments["max_tokens"]
    room = 1 << (tokens - 1).bit_length()
    yield call("verify", built.arguments), call("verify", deepen(built.arguments, room))


def next_capacity(built: Built, call: Call, draw: Draw) -> Pairs:
    """Room for twice the tokens, another compiled variant, keeps every result in its budget."""
    room = min(2 * built.arguments["max_tokens"], 16)
    yield call("verify", built.arguments), call("verify", deepen(built.arguments, room))


def deepen(arguments: Arguments, tokens: int) -> Arguments:
    """Raise `max_tokens`, and the depth of rings and scratch with it."""
    changed = {**arguments, "max_tokens": tokens}
    for name in ("intermediate_ssm", *WINDOWS, *RINGS.values()):
        axis = 2 if name in RINGS.values() else 1
        old = arguments.get(name)
        if old is not None and old.shape[axis] < tokens:
            shape = [*old.shape[:axis], tokens, *old.shape[axis + 1 :]]
            changed[name] = old.new_full(shape, torch.nan)
    return changed


def records_alone(built: Built, call: Call, draw: Draw) -> Pairs:
    """Rings and windows depend on neither the norm nor N nor what the state holds."""
    arguments, case = built.arguments, built.case
    given, alive = seats(arguments), live(arguments)

    def recorded(results: Results, requests: Sequence[int] = alive) -> Results:
        return of(results, requests, "ring", "window")

    first = recorded(call("verify", arguments))
    x_v, norm = arguments["x_v"], ("onorm_gate", "onorm_weight", "onorm_eps")
    if case.out_norm:
        other = {k: v for k, v in arguments.items() if k not in norm}
    else:
        weight = x_v.new_ones(x_v.shape[-1], dtype=torch.float32)
        gate = torch.ones_like(x_v, memory_format=torch.contiguous_format)
        other = {**arguments, **dict(zip(norm, (gate, weight, 1e-5), strict=True))}
    yield first, recorded(call("verify", other))
    state = arguments["recurrent_state"]
    for content in (torch.randn(state.shape), torch.full(state.shape, torch.nan)):
        stranger = {**arguments, "recurrent_state": content.to(state)}
        yield first, recorded(call("verify", stranger))
    alone = [given[alive[-1]]]
    results = back(call("verify", reseat(arguments, alone, slack=1)), alone)
    yield of(first, alive[-1:]), recorded(results, alive[-1:])


def snapshots_silent(built: Built, call: Call, draw: Draw) -> Pairs:
    """Recording the state after every token does not change a bit of anything else."""
    without = {k: v for k, v in built.arguments.items() if k != "intermediate_ssm"}
    first = call("verify", built.arguments)
    kept = {key: value for key, value in first.items() if key[0] != "snapshots"}
    yield kept, call("verify", without)


def _zeros_of_padding(results: Results, positions: Sequence[int]) -> tuple[Results, Results]:
    mine = {k: v for k, v in results.items() if k[0] == "out" and k[1] in positions}
    return {key: torch.zeros_like(value) for key, value in mine.items()}, mine


def _take(rows: Tensor, chosen: Tensor) -> Tensor:
    """Choose rows of [1, T, ...] or [N, L, ...]; a missing row is NaN."""
    flat = rows.flatten(0, 1)
    padded = torch.cat([flat, flat.new_full((1, *flat.shape[1:]), torch.nan)])
    return padded[chosen.to(rows.device, torch.int64)][None]


def _index(like: Tensor, values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=like.device)
