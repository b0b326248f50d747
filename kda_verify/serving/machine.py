"""The state machine: Hypothesis builds a schedule step by step and shrinks one that fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .engine import Engine, Kernels, our_kernels
from .play import Player
from .schedule import FREE, KEPT, LIVE, Schedule, Seat, Step


def dims(layers: int = 2) -> st.SearchStrategy[Schedule]:
    """Draw schedules without steps: small dims, K and V apart, every dtype, form and poison."""
    return st.builds(
        Schedule,
        slots=st.integers(3, 5),
        layers=st.integers(1, layers),
        heads=st.integers(1, 2),
        group=st.integers(1, 2),
        size_k=st.sampled_from((16, 17, 24)),
        size_v=st.sampled_from((16, 20, 24)),
        max_tokens=st.integers(2, 4),
        dtype=st.sampled_from(("float32", "bfloat16", "float16")),
        gate_form=st.sampled_from(("lower_bound", "softplus")),
        decay=st.sampled_from(("usual", "slow")),
        norm=st.booleans(),
        snapshots=st.booleans(),
        null_block=st.sampled_from((-1, 0)),
        poison=st.sampled_from(("nan", "huge")),
        seed=st.integers(0, 99),
    )


class ScheduleMachine(RuleBasedStateMachine):
    """Build schedules: what an engine may do next, whatever runs it.

    Attributes:
        start_from: where the dims come from.
        schedule: what has been done so far.
    """

    start_from: ClassVar[st.SearchStrategy[Schedule]] = dims()

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def begin(self, schedule: Schedule) -> None:
        """Start from dims."""
        self.schedule = schedule

    def do(self, step: Step) -> None:
        """Do one step."""
        self.schedule = self.schedule.then(step)

    def _slots(self, *held: str) -> list[int]:
        return [slot for slot, now in enumerate(self.schedule.holders()) if now in held]

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        """Draw the dims and take some slots, in any order."""
        self.begin(data.draw(self.start_from))
        for _ in range(data.draw(st.integers(1, len(self._slots(FREE)) - 1))):
            self._one(data, "take", FREE)

    @precondition(lambda self: self._slots(FREE))
    @rule(data=st.data())
    def take(self, data: Any) -> None:
        """Start a request in a slot, never used or dirty."""
        self._one(data, "take", FREE)

    @precondition(lambda self: self._slots(LIVE, KEPT))
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        """End a request or drop a prefix; its contents stay."""
        self._one(data, "free", LIVE, KEPT)

    @precondition(lambda self: self._slots(FREE))
    @rule(data=st.data())
    def poison(self, data: Any) -> None:
        """Fill a free slot with poison."""
        self._one(data, "poison", FREE)

    @precondition(lambda self: self._slots(KEPT))
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        """Make a request of a tracked prefix."""
        self._one(data, "resume", KEPT)

    @precondition(lambda self: self._slots(LIVE))
    @rule(data=st.data())
    def prefill(self, data: Any) -> None:
        """Feed one request, all of it accepted."""
        slot = data.draw(st.sampled_from(self._slots(LIVE)))
        tokens = data.draw(st.integers(1, self.schedule.max_tokens))
        self.do(Step("round", seats=(Seat(slot, tokens, tokens),)))

    @precondition(lambda self: self._slots(LIVE))
    @rule(data=st.data())
    def serve(self, data: Any) -> None:
        """Verify and commit a batch: any requests in any order, padding between them."""
        self.do(Step("round", seats=self._batch(data)))

    @precondition(lambda self: self._slots(LIVE) and self._slots(FREE, KEPT))
    @rule(data=st.data())
    def track(self, data: Any) -> None:
        """Track a boundary within what one request accepts."""
        accepted = data.draw(st.integers(1, self.schedule.max_tokens))
        seat = Seat(
            data.draw(st.sampled_from(self._slots(LIVE))),
            data.draw(st.integers(accepted, self.schedule.max_tokens)),
            accepted,
            data.draw(st.sampled_from(self._slots(FREE, KEPT))),
            data.draw(st.integers(0, accepted - 1)),
        )
        self.do(Step("round", seats=(seat,)))

    @precondition(lambda self: self._slots(LIVE))
    @rule(data=st.data())
    def reject_then_step(self, data: Any) -> None:
        """Reject a whole batch, then decode one token of each of its requests."""
        seats = [replace(s, accepted=0) for s in self._batch(data)]
        self.do(Step("round", seats=tuple(seats)))
        steps = tuple(Seat(seat.slot, 1, 1) for seat in reversed(seats))
        self.do(Step("round", seats=steps))

    def _one(self, data: Any, action: str, *held: str) -> None:
        self.do(Step(action, data.draw(st.sampled_from(self._slots(*held)))))

    def _batch(self, data: Any) -> tuple[Seat, ...]:
        slots = data.draw(st.permutations(self._slots(LIVE)))
        slots = slots[: data.draw(st.integers(1, len(slots)))]
        for _ in range(data.draw(st.integers(0, 2))):
            slots.insert(data.draw(st.integers(0, len(slots))), -1)
        tracks = data.draw(st.permutations(self._slots(FREE, KEPT)))
        seats = []
        for slot in slots:
            tokens = data.draw(st.integers(0, self.schedule.max_tokens))
            seat = Seat(slot, tokens, data.draw(st.integers(0, tokens)))
            if slot >= 0 and tracks and data.draw(st.booleans()):
                # Up to one step that is not accepted.
                most = min(seat.accepted, self.schedule.max_tokens - 1)
                step = data.draw(st.integers(0, most))
                seat = replace(seat, track_slot=tracks.pop(), track_step=step)
            seats.append(seat)
        return tuple(seats)


class ServingMachine(ScheduleMachine):
    """Play what is built, and check everything after every step.

    Attributes:
        kernels: whose calls are made; ours where None.
        engine: builds the engine.
        device: where the pools live.
    """

    kernels: ClassVar[Kernels | None] = None
    engine: ClassVar[type[Engine]] = Engine
    device: ClassVar[str] = "cpu"

    def begin(self, schedule: Schedule) -> None:
        """Start an engine."""
        super().begin(schedule)
        kernels = self.kernels or our_kernels()
        self.player = Player(schedule, kernels, self.device, self.engine)

    def do(self, step: Step) -> None:
        """Play one step; a `Failure` prints the schedule that shows it."""
        super().do(step)
        self.player.step(step)


def serving_machine(
    kernels: Kernels | None = None,
    engine: type[Engine] = Engine,
    device: str = "cpu",
    start_from: st.SearchStrategy[Schedule] | None = None,
) -> type[ServingMachine]:
    """Return the machine for some kernels and an engine, and perhaps dims of its own."""
    given = {
        "kernels": kernels,
        "engine": engine,
        "device": device,
        "start_from": dims() if start_from is None else start_from,
    }
    return type("ServingMachine", (ServingMachine,), given)
