"""The serving machine can fail: it finds faults that show in schedules, on schedules that pass.

Faults are one wrong line of the kernels, a wrong call around them, or a wrong engine. Each is found
by the state machine; the very schedule it was found on passes without the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from torch import Tensor

from kda_verify import stages
from kda_verify.faults.catalogue import find as find_fault
from kda_verify.faults.planted import Plant, planted
from kda_verify.judging.verdict import Outcome
from kda_verify.serving import Engine, Failure, Kernels, Schedule, our_kernels, play
from kda_verify.serving.engine import Batch
from kda_verify.serving.explore import explore, keep
from kda_verify.serving.machine import ScheduleMachine, serving_machine
from kda_verify.serving.regions import REGIONS, regions
from kda_verify.serving.stored import SCHEDULES, load

LIMITS: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
    "report_multiple_bugs": False,
}

# Few heads: what is sought here lies between calls, and a small model finds it sooner.
SMALL = st.builds(
    Schedule,
    slots=st.integers(3, 4),
    layers=st.integers(1, 2),
    size_v=st.sampled_from((16, 20)),
    max_tokens=st.just(3),
    dtype=st.sampled_from(("float32", "bfloat16")),
    norm=st.booleans(),
    snapshots=st.booleans(),
    null_block=st.sampled_from((-1, 0)),
    poison=st.sampled_from(("nan", "huge")),
    seed=st.integers(0, 9),
)

REJECTED_COMMITS = Plant(
    "rejected-committed",
    "commit",
    "length = tl.where(is_live, accepted, 0)",
    "length = tl.where(is_live, tl.maximum(accepted, 1), 0)",
    "a request that rejected its whole draft commits the first token",
    "commit",
)
REJECTED_WINDOW = Plant(
    "rejected-window",
    "commit",
    """token = accepted - 1

    if is_live & has_window & (accepted > 0):""",
    """token = tl.maximum(accepted - 1, 0)

if is_live & has_window:""",
    "a request that rejected its whole draft gets the window of the first token",
    "conv_commit",
)


class DirtyState(Engine):
    """A new request starts from the state its slot held."""

    def take(self, slot: int) -> None:
        state = self.pools["recurrent_state"][:, slot].clone()
        super().take(slot)
        self.pools["recurrent_state"][:, slot] = torch.nan_to_num(state)


class DirtyWindow(Engine):
    """A new request starts from the conv history its slot held."""

    def take(self, slot: int) -> None:
        window = self.pools["cs_v"][:, slot].clone()
        super().take(slot)
        self.pools["cs_v"][:, slot] = torch.nan_to_num(window)


class StaleRings(Engine):
    """A commit replays the rings as they were before the verify."""

    def batch(self, *args: Any) -> Batch:
        names = ("replayssm_rawv", "replayssm_rawk")
        self.stale = {name: torch.nan_to_num(self.pools[name]) for name in names}
        return super().batch(*args)

    def commit(self, batch: Batch) -> None:
        fresh = {name: self.pools[name] for name in self.stale}
        self.pools.update(self.stale)
        super().commit(batch)
        self.pools.update(fresh)


class AcceptedInOrderOfVerify(Engine):
    """Slots go to the commit in its own order, accepted counts in that of the verify."""

    def commit(self, batch: Batch) -> None:
        seats = list(batch.seats)
        for n, m in enumerate(batch.order):
            # As many as the batch allows, so that the counts stay lawful.
            accepted = min(batch.seats[n].accepted, batch.seats[m].tokens)
            seats[m] = replace(batch.seats[m], accepted=accepted)
        super().commit(replace(batch, seats=tuple(seats)))


class WindowLeftBehind(Engine):
    """A tracked slot gets the state at the boundary and keeps its old window."""

    def _commit_windows(self, scratch: list[int], slots: Tensor, accepted: Tensor) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 1:
            super()._commit_windows(scratch, slots, accepted)

    def commit(self, batch: Batch) -> None:
        self.calls = 0
        super().commit(batch)


def advancing(kernels: Kernels) -> Kernels:
    """A verify that leaves the state after its draft in the pool."""

    def verify(**given: Any) -> Tensor:
        out = kernels.verify(**given)
        lengths = given["cu_seqlens"].diff().to(torch.int32)
        kernels.commit(
            checkpoint_state=given["recurrent_state"],
            rawv=given["replayssm_rawv"],
            rawk=given["replayssm_rawk"],
            gk=given["replayssm_g"],
            beta=given["replayssm_beta"],
            ssm_state_indices=given["ssm_state_indices"],
            accept_lens=lengths,
            null_block_id=-1,
        )
        return out

    return replace(kernels, verify=verify)


def snapshots_early(kernels: Kernels) -> Kernels:
    """A verify whose snapshots land one token early."""

    def verify(**given: Any) -> Tensor:
        out = kernels.verify(**given)
        if given.get("intermediate_ssm") is not None:
            for row in given["intermediate_state_indices"].tolist():
                if row >= 0:
                    states = given["intermediate_ssm"][row]
                    states.copy_(states.roll(-1, 0))
        return out

    return replace(kernels, verify=verify)


def another_eps(kernels: Kernels) -> Kernels:
    """A verify that norms its output with another eps."""

    def verify(**given: Any) -> Tensor:
        if "onorm_eps" in given:
            given["onorm_eps"] *= 1.5
        return kernels.verify(**given)

    return replace(kernels, verify=verify)


def rows_by_number(kernels: Kernels) -> Kernels:
    """A conv commit that reads the scratch row of the request's number."""

    def conv_commit(**given: Any) -> None:
        rows = given["intermediate_state_indices"]
        given["intermediate_state_indices"] = torch.arange(len(rows), dtype=torch.int32)
        kernels.conv_commit(**given)

    return replace(kernels, conv_commit=conv_commit)


@dataclass(frozen=True)
class Fault:
    """One fault: a plant, a wrapper or an engine, and the words its failures may have."""

    name: str
    outcomes: tuple[Outcome, ...]
    plant: Plant | None = None
    wrap: Callable[[Kernels], Kernels] | None = None
    engine: type[Engine] = Engine

    @contextmanager
    def kernels(self) -> Iterator[Kernels]:
        """Provide the kernels with the fault."""
        with planted(self.plant) if self.plant else nullcontext("kda_kernels") as package:
            ours = our_kernels(package)
            yield self.wrap(ours) if self.wrap else ours


WRONG = (Outcome.INCORRECT, Outcome.NON_FINITE)
OUTSIDE = (Outcome.WROTE_OUTSIDE,)
FAULTS = (
    Fault("one-too-many", (*WRONG, *OUTSIDE), find_fault("commit-one-too-many")),
    Fault("rejected-committed", OUTSIDE, REJECTED_COMMITS),
    Fault("rejected-window", OUTSIDE, REJECTED_WINDOW),
    Fault("window-of-token-before", WRONG, find_fault("window-of-token-before")),
    Fault("track-step-late", (*WRONG, *OUTSIDE), find_fault("track-step-late")),
    Fault("null-slot-committed", (*WRONG, *OUTSIDE), find_fault("null-slot-committed")),
    Fault("first-layer-only", (*WRONG, *OUTSIDE), find_fault("first-layer-only")),
    Fault("stale-rings", WRONG, engine=StaleRings),
    Fault("dirty-state", WRONG, engine=DirtyState),
    Fault("dirty-window", WRONG, engine=DirtyWindow),
    Fault("accepted-in-order-of-verify", (*WRONG, *OUTSIDE), engine=AcceptedInOrderOfVerify),
    Fault("window-left-behind", WRONG, engine=WindowLeftBehind),
    Fault("verify-advances", OUTSIDE, wrap=advancing),
    Fault("rows-by-number", WRONG, wrap=rows_by_number),
    Fault("slot-zero-always-live", OUTSIDE, find_fault("slot-zero-always-live")),
    Fault("snapshots-early", (*WRONG, *OUTSIDE), wrap=snapshots_early),
    Fault("another-eps", WRONG, wrap=another_eps),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_found(fault: Fault) -> None:
    with fault.kernels() as kernels, pytest.raises(Failure) as found:
        run_state_machine_as_test(
            serving_machine(kernels, fault.engine, start_from=SMALL),
            settings=settings(max_examples=40, stateful_step_count=8, **LIMITS),
        )
    failure = found.value
    assert failure.outcome in fault.outcomes, str(failure)
    text = failure.schedule.to_json()
    assert f"python -m kda_verify.serving '{text}'" in str(failure)
    schedule = Schedule.from_json(text)
    # The control: without the fault, the very same schedule passes.
    assert play(schedule, our_kernels()).worst <= 1


def test_a_failure_shrinks_to_a_short_schedule() -> None:
    with pytest.raises(Failure) as found:
        run_state_machine_as_test(
            serving_machine(our_kernels(), DirtyWindow, start_from=SMALL),
            settings=settings(
                max_examples=40,
                stateful_step_count=12,
                **{**LIMITS, "phases": (Phase.generate, Phase.shrink)},
            ),
        )
    schedule = found.value.schedule
    # Take a slot, leave a window in it, free it, take it again.
    assert len(schedule.steps) <= 4, str(found.value)
    assert (schedule.layers, schedule.slots, schedule.size_v) == (1, 3, 16)


def test_drawn_schedules_are_the_same_and_one_that_fails_is_kept(tmp_path: Path) -> None:
    one, two = (explore(our_kernels(), 2, 3, start_from=SMALL) for _ in range(2))
    assert one == two
    assert one.schedules >= 2  # Hypothesis may play one that it then does not count.
    assert one.failure is None
    found = explore(our_kernels(), 40, engine=DirtyWindow, start_from=SMALL)
    assert found.failure is not None
    path = keep(found.failure.schedule, "a test", "a dirty window", tmp_path)
    assert load(path).schedule == found.failure.schedule
    assert keep(found.failure.schedule, "again", "", tmp_path) == path


def test_the_stage_of_make_verify_fails_with_a_failing_schedule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str
) -> None:
    monkeypatch.setattr(stages, "DRAWN_SCHEDULES", 1)
    outcome, detail = stages.serving(device)
    assert outcome == "pass"
    assert "1 drawn schedules" in detail
    wrong = replace(our_kernels(), conv_commit=lambda **given: None)
    monkeypatch.setattr("kda_verify.serving.our_kernels", lambda: wrong)
    outcome, detail = stages.serving(device)
    assert outcome == "fail"
    assert detail.startswith("schedule-")


@pytest.mark.parametrize("name", ["dirty-window", "track-step-late", "window-left-behind"])
def test_stored_schedules_find(name: str) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    caught = 0
    with fault.kernels() as kernels:
        for path in sorted(SCHEDULES.glob("*.json")):
            try:
                play(load(path).schedule, kernels, make=fault.engine)
            except Failure:
                caught += 1
    assert caught


def test_the_machine_reaches_every_region() -> None:
    reached: set[str] = set()

    class Recorder(ScheduleMachine):
        def teardown(self) -> None:
            reached.update(regions(self.schedule))

    run_state_machine_as_test(
        Recorder, settings=settings(max_examples=30, stateful_step_count=12, **LIMITS)
    )
    assert reached == set(REGIONS)
