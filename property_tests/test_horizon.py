"""Long horizons: states over many rounds, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kda_verify.judging.verdict import Outcome
from kda_verify.serving import Schedule, our_kernels
from kda_verify.serving.engine import Kernels
from kda_verify.serving.horizon import Mark, drift, main
from kda_verify.serving.play import Failure

DIMS = Schedule(slots=3, layers=2, group=2, max_tokens=4, dtype="bfloat16", decay="slow")


def test_states_stay_within_budget(device: str) -> None:
    marks = list(drift(DIMS, our_kernels(), 24, device))
    assert [(m.tokens, m.rounds) for m in marks] == [(10, 3), (24, 7)]
    assert all(0 < m.worst <= 1 for m in marks)
    assert all(0 < m.error < m.budget < 1e-3 for m in marks)
    assert marks[0].budget < marks[1].budget


def spoilt(change: Callable[[int, dict[str, Any]], None]) -> Kernels:
    """Our kernels, with something done after the nth commit."""
    real, calls = our_kernels(), [0]

    def commit(**given: Any) -> None:
        calls[0] += 1
        real.commit(**given)
        change(calls[0], given)

    return replace(real, commit=commit)


def late(number: int, given: dict[str, Any]) -> None:
    """From the fifth commit on, one element of every written state gains a thousandth."""
    if number >= 5:
        given["checkpoint_state"][:, given["ssm_state_indices"].long(), 0, 3, 3] *= 1.001


def history(number: int, given: dict[str, Any]) -> None:
    """The verify after the fourth commit would read an older history."""
    if number >= 4:
        given["cs_q"][0, given["ssm_state_indices"].long()] = 7.0


def test_a_fault_that_comes_late_is_found_at_the_next_mark(device: str) -> None:
    marks: list[Mark] = []
    with pytest.raises(Failure) as failure:
        marks.extend(drift(DIMS, spoilt(late), 24, device))
    assert failure.value.outcome == Outcome.INCORRECT
    assert failure.value.where.startswith("recurrent_state[")
    assert "after 24 tokens" in str(failure.value)


def test_a_lost_history_is_found(device: str) -> None:
    real = our_kernels()
    calls = [0]

    def conv_commit(**given: Any) -> None:
        calls[0] += 1
        real.conv_commit(**given)
        history(calls[0], given)

    with pytest.raises(Failure, match="cs_q"):
        list(drift(DIMS, replace(real, conv_commit=conv_commit), 24, device))


def test_progress_counts_tokens() -> None:
    seen: list[int] = []
    list(drift(replace(DIMS, layers=1), our_kernels(), 6, progress=seen.append))
    assert seen == [4, 6]


@pytest.mark.parametrize(
    ("dims", "tokens", "message"),
    [
        (replace(DIMS, slots=1), 8, "`dims` must have 2 slots or more, got 1"),
        (DIMS, 0, "`tokens` must be at least 1, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(dims: Schedule, tokens: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(drift(dims, our_kernels(), tokens))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tokens", "3", "--draft", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["3", "2"]
    for words, text in (
        (["--tokens", "0"], "`tokens` must be at least 1"),
        (["--dtype", "int8"], "`dtype` must be one of float32, bfloat16"),
        (["--draft", "17"], "`max_tokens` must be a whole number in 1 to 16"),
    ):
        assert main(words) == 2
        assert text in capsys.readouterr().err


def test_the_state_is_not_the_kernels(device: str) -> None:
    """The oracle folds from an empty state; what the pool holds is only compared."""

    def forget(number: int, given: dict[str, Any]) -> None:
        given["checkpoint_state"].zero_()

    with pytest.raises(Failure):
        next(drift(DIMS, spoilt(forget), 10, device))
