"""Processes of their own: answers, deaths, and limits of processor time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from kda_verify.processes import Died, Late, alone


def _loaded(name: str) -> bool:
    return name in sys.modules


def _endless() -> None:
    while True:
        pass


def _sleeps(seconds: float) -> float:
    time.sleep(seconds)
    return time.process_time()


def _leaves_a_child() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return child.pid


def _wait_for_its_end(process: int) -> None:
    for _ in range(100):
        os.kill(process, 0)
        time.sleep(0.05)


def _raises() -> None:
    raise KeyError("no such clause")


def test_returns_the_answer_and_starts_with_what_is_slow_to_load() -> None:
    assert alone(_loaded, "torch")
    assert not alone(_loaded, "kda_kernels")


def test_raises_what_the_function_raised() -> None:
    with pytest.raises(KeyError, match="no such clause"):
        alone(_raises)


def test_what_a_process_started_goes_with_it() -> None:
    child = alone(_leaves_a_child)
    with pytest.raises(ProcessLookupError):
        _wait_for_its_end(child)


def test_a_process_that_ends_has_died() -> None:
    with pytest.raises(Died, match="the process died"):
        alone(os._exit, 3, limit=30.0)


def test_a_process_that_never_ends_is_late() -> None:
    start = time.perf_counter()
    with pytest.raises(Late, match="no answer in 2 s"):
        alone(_endless, limit=2.0)
    assert time.perf_counter() - start > 1.5


def test_the_limit_is_of_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting costs nothing, but not for ever."""
    assert alone(_sleeps, 3.0, limit=2.0) < 2.0
    monkeypatch.setattr("kda_verify.processes.WALL_SECONDS", 0.0)
    monkeypatch.setattr("kda_verify.processes.WALL_TIMES", 1.0)
    with pytest.raises(Late, match="no answer in 2 s"):
        alone(_sleeps, 30.0, limit=2.0)
