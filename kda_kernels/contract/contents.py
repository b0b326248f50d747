"""Clauses on the elements of index vectors: offsets, slots, scratch rows, accepted counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .call import Call
from .clause import Clause

# Says which requests are live; the other entries of an index vector are never looked at.
Live = Callable[[Call], list[int]]


def nonnegative_slots(call: Call) -> list[int]:
    """Return the requests with slot >= 0."""
    return [n for n, slot in enumerate(call.values("ssm_state_indices")) if slot >= 0]


def slots_past_null(call: Call) -> list[int]:
    """Return the requests with slot > null_block_id."""
    null = call.argument("null_block_id")
    assert isinstance(null, int)
    return [n for n, slot in enumerate(call.values("ssm_state_indices")) if slot > null]


def clause(
    contract: str, name: str, aspect: str, wanted: str, predicate: Callable[[Call], str | None]
) -> Clause:
    """Return a clause on the elements of an operand, passed where it is None."""

    def checked(call: Call) -> str | None:
        return None if call.tensor(name) is None else predicate(call)

    return Clause(f"{contract}.{name}.{aspect}", name, "value", wanted, checked, reads="contents")


def offset_clauses(contract: str, capacity: str) -> list[Clause]:
    """Return the clauses on cu_seqlens; `capacity` is the dim that limits a request's rows."""
    name = "cu_seqlens"

    def start(call: Call) -> str | None:
        first = call.values(name)[0]
        return None if first == 0 else str(first)

    def order(call: Call) -> str | None:
        return _first(call, name, lambda before, after: after < before, "{1} after {0}")

    def end(call: Call) -> str | None:
        last, rows = call.values(name)[-1], call.dim("T")
        return None if rows is None or last <= rows else str(last)

    def length(call: Call) -> str | None:
        most = call.dim(capacity)
        if most is None:
            return None
        return _first(call, name, lambda before, after: after - before > most, "{2} rows")

    return [
        clause(contract, name, "start", "start at 0", start),
        clause(contract, name, "order", "never fall", order),
        clause(contract, name, "end", "end at most at {T}", end),
        clause(contract, name, "capacity", f"give a request at most {{{capacity}}} rows", length),
    ]


def slot_clauses(contract: str, live: Live) -> list[Clause]:
    """Return the clauses on the pool slots of live requests."""
    name = "ssm_state_indices"
    return [
        clause(contract, name, "range", "name slots below {slots}", in_range(name, "slots", live)),
        clause(contract, name, "unique", "name a live slot once", unique(name, live)),
    ]


def in_range(name: str, limit: str, live: Live, *, floor: int | None = None) -> Callable:
    """Return a predicate: elements of live requests lie in floor..limit-1."""

    def predicate(call: Call) -> str | None:
        values, end = call.values(name), call.dim(limit)
        for n in live(call):
            if (end is not None and values[n] >= end) or (floor is not None and values[n] < floor):
                return f"{values[n]} for request {n}"
        return None

    return predicate


def unique(name: str, live: Live) -> Callable[[Call], str | None]:
    """Return a predicate: no element of live requests occurs twice."""

    def predicate(call: Call) -> str | None:
        return repeated(call.values(name), live(call))

    return predicate


def repeated(values: Sequence[int], requests: Sequence[int]) -> str | None:
    """Describe the first value that two of the requests share."""
    seen: dict[int, int] = {}
    for n in requests:
        before = seen.setdefault(values[n], n)
        if before != n:
            return f"{values[n]} for requests {before} and {n}"
    return None


def _first(call: Call, name: str, wrong: Callable[[int, int], bool], text: str) -> str | None:
    offsets = call.values(name)
    for n, (before, after) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if wrong(before, after):
            return text.format(before, after, after - before) + f" for request {n}"
    return None
