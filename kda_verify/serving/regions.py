"""Regions: what a schedule contains that single calls cannot."""

from __future__ import annotations

from collections.abc import Iterator

from .schedule import Schedule, Seat, Step

REGIONS = (
    "output norm",
    "snapshots",
    "null block",
    "dirty slot taken",
    "poisoned slot taken",
    "prefix resumed",
    "prefix tracked",
    "prefix not reached",
    "padding",
    "only padding and rejects",
    "partly accepted",
    "wholly accepted",
    "wholly rejected",
    "plain step after a reject",
    "mixed lengths",
    "empty request",
    "requests in another order",
    "batch grown",
    "batch shrunk",
)


def regions(schedule: Schedule) -> set[str]:
    """Label a schedule with the regions it reaches."""
    return set(_regions(schedule))


def _regions(schedule: Schedule) -> Iterator[str]:
    dirty: dict[int, str] = {}
    rejected: set[int] = set()
    last: list[int] = []
    yield from _of_dims(schedule)
    for step in schedule.steps:
        if step.action == "take":
            if step.slot in dirty:
                yield dirty.pop(step.slot)
        elif step.action == "free":
            dirty[step.slot] = "dirty slot taken"
        elif step.action == "poison":
            dirty[step.slot] = "poisoned slot taken"
        elif step.action == "resume":
            yield "prefix resumed"
        else:
            live = [seat for seat in step.seats if seat.slot >= 0]
            yield from _of_round(step, live)
            for seat in live:
                if seat.slot in rejected and seat.tokens == seat.accepted == 1:
                    yield "plain step after a reject"
            rejected = {s.slot for s in live if s.tokens and not s.accepted}
            slots = [seat.slot for seat in live]
            yield from _order(last, slots)
            last = slots


def _of_dims(schedule: Schedule) -> Iterator[str]:
    if any(step.action == "round" for step in schedule.steps):
        if schedule.norm:
            yield "output norm"
        if schedule.snapshots:
            yield "snapshots"
    padded = any(seat.slot < 0 for step in schedule.steps for seat in step.seats)
    if schedule.null_block >= 0 and padded:
        yield "null block"


def _of_round(step: Step, live: list[Seat]) -> Iterator[str]:
    if len(live) < len(step.seats):
        yield "padding"
        if not any(seat.accepted for seat in live):
            yield "only padding and rejects"
    if len({seat.tokens for seat in live}) > 1:
        yield "mixed lengths"
    for seat in live:
        if not seat.tokens:
            yield "empty request"
        elif not seat.accepted:
            yield "wholly rejected"
        else:
            yield "wholly accepted" if seat.accepted == seat.tokens else "partly accepted"
        if seat.track_slot >= 0:
            yield "prefix tracked" if seat.tracks else "prefix not reached"


def _order(last: list[int], slots: list[int]) -> Iterator[str]:
    common = set(last) & set(slots)
    if [s for s in last if s in common] != [s for s in slots if s in common]:
        yield "requests in another order"
    if last and len(slots) > len(last):
        yield "batch grown"
    if len(slots) < len(last):
        yield "batch shrunk"
