"""Play a schedule on an engine and check everything it holds after every call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kda_ref import Bounded, stored

from ..judging.answer import Answer, Expectation, Index
from ..judging.compare import Finding, compare
from ..judging.verdict import Outcome
from ..subjects.base import effective_precision
from .engine import RINGS, Batch, Engine, Kernels
from .inputs import STREAMS, dtype_of
from .model import Model
from .schedule import Schedule, Step

Owned = Mapping[str, Iterable[Index]]


class Failure(AssertionError):
    """A step after which something is not as it must be.

    Attributes:
        schedule: the steps up to this one.
        outcome: what was found, in the words of a verdict.
        where: the operand, the layer and the index.
    """

    def __init__(self, schedule: Schedule, phase: str, finding: Finding) -> None:
        self.schedule, self.outcome, self.where = schedule, finding.outcome, finding.where
        self.ratio, self.detail, self.phase = finding.ratio, finding.detail, phase
        number = len(schedule.steps) - 1
        ratio = f", {finding.ratio:.3g} times the budget" if finding.ratio else ""
        text = schedule.to_json()
        super().__init__(
            f"step {number}, {phase}: {finding.outcome} at {finding.where}{ratio}\n"
            f"  {finding.detail}\n"
            f"  schedule: {readable(schedule)}\n"
            f"  replay: python -m kda_verify.serving '{text}'"
        )


def readable(schedule: Schedule) -> str:
    """Return the schedule as JSON with one step a line."""
    data = json.loads(schedule.to_json())
    steps = ",\n    ".join(json.dumps(step) for step in data.pop("steps"))
    head = "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in data.items())
    return f'{{{head}"steps": [\n    {steps}]}}'


class Player:
    """Run steps on an engine beside the model.

    Args:
        dims: a schedule without steps.
        kernels: whose calls the engine makes.
        device: where the pools live.
        make: builds the engine.

    Attributes:
        schedule: what has been played so far.
        worst: the largest error over its budget so far.
    """

    def __init__(
        self,
        dims: Schedule,
        kernels: Kernels,
        device: str = "cpu",
        make: Callable[[Schedule, Kernels, str], Engine] = Engine,
    ) -> None:
        self.schedule = replace(dims, steps=())
        self.kernels = kernels
        self.engine = make(self.schedule, kernels, device)
        self.precision = effective_precision(kernels.claims)
        self.model = Model(self.schedule, self.precision)
        self.worst = 0.0

    def step(self, step: Step) -> None:
        """Play one step.

        Raises:
            ValueError: the schedule does not allow it now.
            Failure: something is not as it must be afterwards.
        """
        before, self.schedule = self.schedule, self.schedule.then(step)
        number = len(before.steps)
        if step.action == "round":
            self._round(number, step)
        else:
            if step.action in ("take", "poison"):
                getattr(self.engine, step.action)(step.slot)
            self.model.apply(before, step, number)
        assert self.model.agrees_with(self.schedule)
        self._check_committed(step.action)

    def _round(self, number: int, step: Step) -> None:
        layers, model = range(self.schedule.layers), self.model
        drafts = [model.drafts(number, seat.slot, seat.tokens) for seat in step.seats]
        by_layer = [[drafts[n][layer] for n in range(len(drafts))] for layer in layers]
        batch = self.engine.batch(number, step.seats, by_layer)
        for layer in layers:
            self._verify(layer, batch)
        before = self._copied()
        self._called("commit", lambda: self.engine.commit(batch))
        model.apply(self.schedule, step, number)
        written: list[Index] = []
        for seat in step.seats:
            if seat.slot >= 0 and seat.accepted:
                written.append((slice(None), seat.slot))
            if seat.tracks:
                written.append((slice(None), seat.track_slot))
        pools = ("recurrent_state", *(f"cs_{x}" for x in STREAMS))
        self._check_frame("commit", before, {pool: written for pool in pools})

    def _verify(self, layer: int, batch: Batch) -> None:
        before, phase = self._copied(), f"verify of layer {layer}"
        out = self._called(phase, lambda: self.engine.verify(layer, batch))
        answer = Answer(tuple(self._expected(layer, batch)), in_range=True)
        owned: dict[str, list[Index]] = {}
        for expectation in answer.expectations:
            owned.setdefault(expectation.operand, []).append((layer, *expectation.index))
        self._check_frame(phase, before, owned)
        operands = {name: pool[layer] for name, pool in self.engine.pools.items()}
        self._compare(phase, {**operands, "out": out}, answer)

    def _expected(self, layer: int, batch: Batch) -> Iterable[Expectation]:
        dtype = dtype_of(self.schedule)
        slack = (batch.offsets[-1], batch.offsets[-1] + 1)
        spans = list(zip(batch.offsets, batch.offsets[1:], strict=False))
        heads, size = self.schedule.heads * self.schedule.group, self.schedule.size_v
        for n, (start, end) in enumerate([*spans, slack]):
            seat = batch.seats[n] if n < len(batch.seats) else None
            if seat is None or seat.slot < 0:
                yield exactly("out", (0, slice(start, end)), torch.zeros(end - start, heads, size))
                continue
            answer = self.model.replay(seat.slot, layer, batch.drafts[layer][n])
            accept = answer.undetermined.expand_as(answer.out.value)
            at = (0, slice(start, end))
            want = self.expectation("out", at, answer.out, dtype, heads=1, tokens=0)
            yield replace(want, accept_nan=accept)
            entries = (seat.slot, slice(None), slice(0, seat.tokens))
            for name in RINGS:
                operand = f"replayssm_{name}"
                ring = dtype if name.startswith("raw") else torch.float32
                yield self.expectation(operand, entries, answer.rings[operand], ring, tokens=1)
            recorded = (batch.scratch[n], slice(0, seat.tokens))
            for name in STREAMS:
                yield exactly(f"intermediate_conv_{name}", recorded, answer.windows[name])
            for t, state in enumerate(answer.snapshots):
                row: Index = (batch.scratch[n], t)
                yield self.expectation("intermediate_ssm", row, state, torch.float32, column=-1)

    def expectation(
        self,
        operand: str,
        index: Index,
        x: Bounded,
        dtype: torch.dtype,
        heads: int = 0,
        tokens: int | None = None,
        column: int | None = None,
    ) -> Expectation:
        """Expect a stored tensor, by the oracle's value and bound; see `Expectation`."""
        full = Bounded(x.value, x.error.expand_as(x.value))
        wide = stored(full, dtype, truncate=self.precision.truncating_store)
        want = Bounded(wide.value, full.error)
        store = wide.error - full.error
        return Expectation(operand, index, want, store, None, heads, tokens, column)

    def _check_committed(self, phase: str) -> None:
        """Ask every slot with a request or a kept prefix for its state and conv history."""
        expectations = []
        for slot in self.model.owned():
            for layer in range(self.schedule.layers):
                state, windows = self.model.committed(slot, layer)
                at: Index = (layer, slot)
                expectations.append(
                    self.expectation("recurrent_state", at, state, torch.float32, column=-1)
                )
                expectations += [exactly(f"cs_{x}", at, windows[x]) for x in STREAMS]
        self._compare(f"after {phase}", self.engine.pools, Answer(tuple(expectations), True))

    def _called(self, phase: str, call: Callable[[], Tensor | None]) -> Tensor:
        try:
            result = call()
        except Exception as problem:  # whatever a kernel raises is its verdict
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            finding = Finding(Outcome.RAISED, phase, detail=text)
            raise Failure(self.schedule, phase, finding) from problem
        return torch.empty(0) if result is None else result

    def _compare(self, phase: str, operands: Mapping[str, Tensor], answer: Answer) -> None:
        finding = compare(operands, answer, self.kernels.claims.grain)
        if finding.outcome != Outcome.PASS:
            raise Failure(self.schedule, phase, finding)
        self.worst = max(self.worst, finding.ratio)

    def _copied(self) -> dict[str, Tensor]:
        return {name: pool.clone() for name, pool in self.engine.pools.items()}

    def _check_frame(self, phase: str, before: Mapping[str, Tensor], owned: Owned) -> None:
        """Find a byte that changed and that the call does not own."""
        for name, pool in self.engine.pools.items():
            changed = _bits(pool) != _bits(before[name])
            for index in owned.get(name, ()):
                changed[index] = False
            if bool(changed.any()):
                place = changed.nonzero()[0].tolist()
                detail = f"{int(changed.sum())} elements the call does not own changed"
                finding = Finding(Outcome.WROTE_OUTSIDE, f"{name}{place}", detail=detail)
                raise Failure(self.schedule, phase, finding)


def play(
    schedule: Schedule,
    kernels: Kernels,
    device: str = "cpu",
    make: Callable[[Schedule, Kernels, str], Engine] = Engine,
) -> Player:
    """Play a whole schedule.

    Raises:
        Failure: at the first step after which something is not as it must be.
    """
    player = Player(schedule, kernels, device, make)
    for step in schedule.steps:
        player.step(step)
    return player


def exactly(operand: str, index: Index, value: Tensor) -> Expectation:
    """Expect exactly these values."""
    value = value.double()
    return Expectation(operand, index, Bounded(value, torch.zeros_like(value)), value * 0)


def _bits(pool: Tensor) -> Tensor:
    return pool.view(torch.int32 if pool.element_size() == 4 else torch.int16)
