"""A schedule: the small frozen recipe of what an engine does, step after step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

ACTIONS = ("take", "round", "free", "poison", "resume")
CHOICES = {
    "dtype": ("float32", "bfloat16", "float16"),
    "gate_form": ("lower_bound", "softplus"),
    "decay": ("usual", "slow"),
    "poison": ("nan", "huge"),
}
RANGES = {
    "slots": (1, 64),
    "layers": (1, 8),
    "heads": (1, 16),
    "group": (1, 8),
    "size_k": (16, 256),
    "size_v": (16, 256),
    "max_tokens": (1, 16),
    "null_block": (-1, 62),
    "seed": (0, 2**31 - 1),
}
SWITCHES = ("norm", "snapshots")
MAX_STEPS, MAX_SEATS = 256, 64

FREE, LIVE, KEPT, RESERVED = "free", "live", "kept", "reserved"


@dataclass(frozen=True)
class Seat:
    """One request of a batch.

    Attributes:
        slot: its pool slot; -1 is padding, whose other fields must be ignored by the kernels.
        tokens: drafted tokens, 0 to max_tokens.
        accepted: how many of them are committed; 0 rejects all.
        track_slot: slot that receives the state and window after `track_step`, or -1.
        track_step: step of the draft, from 0; nothing is tracked where it is not accepted.
    """

    slot: int
    tokens: int = 1
    accepted: int = 0
    track_slot: int = -1
    track_step: int = -1

    @property
    def tracks(self) -> bool:
        """Whether a prefix boundary is written."""
        return self.slot >= 0 and self.track_slot >= 0 and 0 <= self.track_step < self.accepted


@dataclass(frozen=True)
class Step:
    """One action: take, free, poison or resume a slot, or a round of verify and commit.

    Attributes:
        action: "take" starts a request in a free slot, whatever that holds; "free" ends one and
            leaves the slot dirty; "poison" fills a slot that nobody holds; "resume" makes a request
            of a kept slot, one that was tracked; "round" verifies and commits a batch.
        slot: of the first four.
        seats: of a round, in the order of the call.
    """

    action: str
    slot: int = -1
    seats: tuple[Seat, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """Describe a run of an engine: dims, poison, seed and steps.

    Attributes:
        slots, layers: of the pools.
        heads, group, size_k, size_v, max_tokens: H, HV / H, K, V and the ring's depth.
        dtype: of activations, conv history and raw rings.
        gate_form: how gate logits become log decay.
        decay: how fast a state forgets, "usual" or "slow" (thousands of tokens).
        norm: the output is normed and gated in the call.
        snapshots: the verify records the state after every token too.
        null_block: slots up to this one belong to nobody; commits get them as padding.
        poison: what unowned memory holds, "nan" or "huge" (a large finite value).
        seed: decides all numbers, scratch rows and the order of each commit.
        steps: what happens.
    """

    slots: int = 3
    layers: int = 1
    heads: int = 1
    group: int = 1
    size_k: int = 16
    size_v: int = 16
    max_tokens: int = 3
    dtype: str = "float32"
    gate_form: str = "lower_bound"
    decay: str = "usual"
    norm: bool = False
    snapshots: bool = False
    null_block: int = -1
    poison: str = "nan"
    seed: int = 0
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            _whole(name, getattr(self, name), low, high)
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"`{name}` must be true or false, got {getattr(self, name)!r}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if not isinstance(self.steps, tuple) or len(self.steps) > MAX_STEPS:
            raise ValueError(f"`steps` must be at most {MAX_STEPS} steps, got {self.steps!r}")
        self.holders()

    def holders(self) -> tuple[str, ...]:
        """Say what each slot is after the last step: free, live, kept or reserved.

        Raises:
            ValueError: a step does what the slots do not allow then.
        """
        held = [RESERVED if slot <= self.null_block else FREE for slot in range(self.slots)]
        for number, step in enumerate(self.steps):
            try:
                _apply(self, held, step)
            except ValueError as problem:
                raise ValueError(f"step {number}: {problem}") from None
        return tuple(held)

    def then(self, step: Step) -> Schedule:
        """Return the schedule with one more step."""
        return replace(self, steps=(*self.steps, step))

    def to_json(self) -> str:
        """Return one line of JSON, fields at their defaults left out."""
        default = Schedule()
        data: dict[str, Any] = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name != "steps" and getattr(self, f.name) != getattr(default, f.name)
        }
        data["steps"] = [_step_to_plain(step) for step in self.steps]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Read a schedule, refusing what is not exactly one.

        Raises:
            ValueError: not JSON, an unknown field, a wrong type, or steps that do not fit.
        """
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as problem:
            raise ValueError(f"`schedule` must be JSON, got {problem}") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: object) -> Schedule:
        """Build a schedule from plain JSON values; see `from_json`."""
        values = _known_fields("schedule", data, {f.name for f in fields(cls)})
        steps = values.get("steps", [])
        if not isinstance(steps, list):
            raise ValueError(f"`steps` must be a list, got {steps!r}")
        return cls(**{**values, "steps": tuple(map(_step_from_plain, steps))})


def _apply(schedule: Schedule, held: list[str], step: Step) -> None:
    if step.action not in ACTIONS:
        raise ValueError(f"`action` must be one of {', '.join(ACTIONS)}, got {step.action!r}")
    if step.action == "round":
        return _apply_round(schedule, held, step.seats)
    slot = _whole(step.action, step.slot, 0, schedule.slots - 1)
    needed, after = {
        "take": ((FREE,), LIVE),
        "free": ((LIVE, KEPT), FREE),
        "poison": ((FREE,), FREE),
        "resume": ((KEPT,), LIVE),
    }[step.action]
    if held[slot] not in needed:
        raise ValueError(
            f"`{step.action}` must name a {' or '.join(needed)} slot, got {held[slot]} slot {slot}"
        )
    held[slot] = after


def _apply_round(schedule: Schedule, held: list[str], seats: tuple[Seat, ...]) -> None:
    if not 1 <= len(seats) <= MAX_SEATS:
        raise ValueError(f"`round` must have 1 to {MAX_SEATS} seats, got {len(seats)}")
    live, tracked = [], []
    for seat in seats:
        _whole("slot", seat.slot, -1, schedule.slots - 1)
        _whole("tokens", seat.tokens, 0, schedule.max_tokens)
        _whole("accepted", seat.accepted, 0, seat.tokens)
        _whole("track_slot", seat.track_slot, -1, schedule.slots - 1)
        _whole("track_step", seat.track_step, -1, schedule.max_tokens - 1)
        if seat.slot < 0:
            continue
        if held[seat.slot] != LIVE or seat.slot in live:
            raise ValueError(f"`slot` must name a live slot once, got slot {seat.slot}")
        live.append(seat.slot)
        if seat.track_slot >= 0:
            if held[seat.track_slot] in (LIVE, RESERVED) or seat.track_slot in tracked:
                raise ValueError(
                    f"`track_slot` must name a slot without a request once, got {seat.track_slot}"
                )
            tracked.append(seat.track_slot)
    for seat in seats:
        if seat.tracks:
            held[seat.track_slot] = KEPT


def _step_to_plain(step: Step) -> dict[str, Any]:
    if step.action != "round":
        return {step.action: step.slot}
    default = asdict(Seat(-2, tokens=-2, accepted=-2))
    seats = [
        {name: value for name, value in asdict(seat).items() if value != default[name]}
        for seat in step.seats
    ]
    return {"round": seats}


def _step_from_plain(data: object) -> Step:
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError(f"a step must be an object with one action, got {data!r}")
    ((action, value),) = data.items()
    if action != "round":
        return Step(action, value)
    if not isinstance(value, list):
        raise ValueError(f"`round` must be a list of seats, got {value!r}")
    known = {f.name for f in fields(Seat)}
    seats = []
    for seat in value:
        given = _known_fields("seat", seat, known)
        if "slot" not in given:
            raise ValueError(f"`seat` must have a slot, got {seat!r}")
        seats.append(Seat(**given))
    return Step("round", seats=tuple(seats))


def _known_fields(name: str, data: object, known: set[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"`{name}` must be a JSON object, got {type(data).__name__}")
    if unknown := sorted(set(data) - known):
        raise ValueError(f"`{name}` must have only known fields, got {', '.join(unknown)}")
    return data


def _whole(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"`{name}` must be a whole number in {low} to {high}, got {value!r}")
    return value
