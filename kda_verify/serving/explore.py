"""Draw schedules, play them, and store the one that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from ..sealed import Provenance
from .engine import Engine, Kernels
from .machine import ServingMachine, serving_machine
from .play import Failure
from .schedule import Schedule
from .stored import SCHEDULES, StoredSchedule, store

STEPS = 8
"""Steps drawn after the first requests are taken."""


@dataclass
class Explored:
    """What some schedules showed.

    Attributes:
        schedules, steps: played, also while a failure is shrunk.
        worst: largest error over its budget.
        failure: of the smallest schedule that failed, or None.
    """

    schedules: int = 0
    steps: int = 0
    worst: float = 0.0
    failure: Failure | None = None


def explore(
    kernels: Kernels,
    schedules: int,
    start: int = 0,
    device: str = "cpu",
    engine: type[Engine] = Engine,
    start_from: st.SearchStrategy[Schedule] | None = None,
    progress: Callable[[], None] | None = None,
) -> Explored:
    """Play drawn schedules, the same ones for the same seed; stop at a failure and shrink it.

    Args:
        kernels: whose calls are made.
        schedules: how many.
        start: Hypothesis's seed.
        device: where the pools live.
        engine: builds the engine.
        start_from: where the dims come from; all of them by default.
        progress: called after every schedule.
    """
    found = Explored()

    class Counted(serving_machine(kernels, engine, device, start_from)):  # type: ignore[misc]
        """Counts what is played; after a failure, what is played to shrink it too."""

        def teardown(self: ServingMachine) -> None:
            if hasattr(self, "player"):
                found.schedules += 1
                found.steps += len(self.schedule.steps)
                found.worst = max(found.worst, self.player.worst)
                if progress is not None:
                    progress()

    limits: dict[str, Any] = {
        "max_examples": schedules, "stateful_step_count": STEPS, "database": None,
        "deadline": None, "phases": (Phase.generate, Phase.shrink), "print_blob": False,
        "report_multiple_bugs": False, "suppress_health_check": list(HealthCheck),
    }  # fmt: skip
    try:
        run_state_machine_as_test(seed(start)(Counted), settings=settings(**limits))
    except Failure as failure:
        found.failure = failure
    return found


def keep(schedule: Schedule, by: str, note: str, folder: Path = SCHEDULES) -> Path:
    """Store a schedule that kernels must pass from now on; one that is stored stays as it is."""
    provenance = Provenance(date.today().isoformat(), by, note)
    return store(StoredSchedule(schedule, provenance), folder)
