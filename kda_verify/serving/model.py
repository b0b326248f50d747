"""The model: accepted tokens per slot, and what the oracle says they leave behind."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kda_ref import Bounded, Precision, ulp
from kda_ref.prepare import activate, log_decay, prepare, write_strength
from kda_ref.recurrence import initial, run
from kda_ref.verify import normed_output

from .inputs import EPS, LOWER_BOUND, STREAMS, Rows, draft, dtype_of, weights
from .schedule import FREE, RESERVED, Schedule, Step


@dataclass(frozen=True)
class Replay:
    """The oracle's run over the whole history of a request and a draft after it.

    Attributes:
        out: [L, HV, V], of the draft alone; normed where the schedule says so.
        undetermined: [L, HV, 1], rows whose norm rounding alone decides.
        rings: v, k, log decay and write strength of the draft, by ring operand, heads first.
        windows: by stream, [L, C, 3] of the draft.
        snapshots: [L, HV, V, K] after every token of the draft.
        state: [HV, V, K] after the draft.
    """

    out: Bounded
    undetermined: Tensor
    rings: dict[str, Bounded]
    windows: dict[str, Tensor]
    snapshots: list[Bounded]
    state: Bounded


class Model:
    """Remember the accepted raw inputs of every slot that holds a request or a kept prefix.

    Nothing else is carried from step to step: each answer is computed from an empty state over the
    whole history, in float64, with the error budget carried over the same tokens.

    Attributes:
        history: accepted rows of every layer, by slot.
    """

    def __init__(self, schedule: Schedule, precision: Precision) -> None:
        self.schedule, self.precision = schedule, precision
        self.history: dict[int, list[Rows]] = {}
        self.layers = [weights(schedule, layer) for layer in range(schedule.layers)]

    def apply(self, before: Schedule, step: Step, number: int) -> None:
        """Advance by a step of a schedule that allows it."""
        if step.action == "take":
            self.history[step.slot] = [
                draft(before, number, "nothing", layer, 0) for layer in range(before.layers)
            ]
        elif step.action == "free":
            del self.history[step.slot]
        elif step.action == "round":
            self._commit(step, number)

    def _commit(self, step: Step, number: int) -> None:
        before = dict(self.history)
        for seat in step.seats:
            if seat.slot < 0:
                continue
            rows = self.drafts(number, seat.slot, seat.tokens)
            if seat.tracks:
                self.history[seat.track_slot] = _extended(
                    before[seat.slot], rows, seat.track_step + 1
                )
            self.history[seat.slot] = _extended(before[seat.slot], rows, seat.accepted)

    def drafts(self, number: int, slot: int, tokens: int) -> list[Rows]:
        """Return what a step drafts for a slot, by layer."""
        layers = range(self.schedule.layers)
        return [draft(self.schedule, number, f"slot {slot}", layer, tokens) for layer in layers]

    def replay(self, slot: int, layer: int, rows: Rows) -> Replay:
        """Run history and draft from an empty state.

        Accepted tokens reached the state through rings of the dtype of the activations, so their
        k and v carry the rounding of that store; those of the draft do not.
        """
        past = self.history[slot][layer]
        return self._run(past, rows, layer, replayed=len(past))

    def committed(self, slot: int, layer: int) -> tuple[Bounded, dict[str, Tensor]]:
        """Return the state that a slot must hold, and its conv history by stream."""
        past = self.history[slot][layer]
        if not len(past):
            empty = past.x["v"].new_zeros(
                (past.x["v"].shape[1], past.x["v"].shape[2], self.schedule.size_k)
            )
            channels = {name: x.shape[1] * x.shape[2] for name, x in past.x.items()}
            return initial(empty), {name: torch.zeros(c, 3) for name, c in channels.items()}
        found = self._run(past.first(0), past, layer, replayed=len(past))
        return found.state, {name: w[-1] for name, w in found.windows.items()}

    def _run(self, past: Rows, rows: Rows, layer: int, replayed: int) -> Replay:
        weight, precision, s = self.layers[layer], self.precision, self.schedule
        every = past.joined(rows)
        streams: dict[str, Bounded] = {}
        windows: dict[str, Tensor] = {}
        for name in STREAMS:
            taps = weight.taps[name]
            y, window, _ = activate(every.x[name], taps, torch.zeros(len(taps), 3), precision)
            assert window is not None
            streams[name], windows[name] = y, window[len(past) :]
        bound = LOWER_BOUND if s.gate_form == "lower_bound" else None
        decay = log_decay(every.g, weight.a_log, weight.dt_bias, s.gate_form, bound, precision)
        strength = write_strength(every.beta, "sigmoid", precision)
        tokens = prepare(
            streams["q"],
            self._through_rings(streams["k"], replayed),
            self._through_rings(streams["v"], replayed),
            decay,
            strength,
            scale=s.size_k**-0.5,
            use_l2norm=True,
            precision=precision,
        )
        empty = torch.zeros(s.heads * s.group, s.size_v, s.size_k)
        snapshots: list[Bounded] = []

        def keep(t: int, after: Bounded) -> None:
            if s.snapshots and t >= len(past):
                snapshots.append(after)

        trace = run(tokens, initial(empty), precision, keep)
        new = slice(len(past), None)
        out = trace.o.at(new)
        undetermined = torch.zeros_like(out.value[..., :1], dtype=torch.bool)
        if s.norm:
            out, undetermined = normed_output(
                out, rows.z.double(), weight.norm.double(), EPS, precision
            )
        rings = {
            f"replayssm_{name}": Bounded(*(part[new].transpose(0, 1) for part in x))
            for name, x in (
                ("rawv", streams["v"]),
                ("rawk", streams["k"]),
                ("g", Bounded(decay.value, decay.error.expand_as(decay.value))),
                ("beta", strength),
            )
        }
        return Replay(out, undetermined, rings, windows, snapshots, trace.state)

    def _through_rings(self, y: Bounded, count: int) -> Bounded:
        """Widen the first tokens by the rounding of a ring narrower than fp32."""
        dtype = dtype_of(self.schedule)
        if dtype == torch.float32:
            return y
        error = y.error.expand_as(y.value).clone()
        error[:count] += ulp(y.value[:count].abs() + error[:count], dtype)
        return Bounded(y.value, error)

    def owned(self) -> list[int]:
        """Slots whose contents are known."""
        return sorted(self.history)

    def agrees_with(self, schedule: Schedule) -> bool:
        """Whether the slots that hold something are those the schedule says."""
        held = [
            slot for slot, holder in enumerate(schedule.holders()) if holder not in (FREE, RESERVED)
        ]
        return held == self.owned()


def _extended(past: list[Rows], rows: list[Rows], count: int) -> list[Rows]:
    return [a.joined(b.first(count)) for a, b in zip(past, rows, strict=True)]
