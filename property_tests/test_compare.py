"""Every outcome of a comparison, on operands small enough to read."""

from __future__ import annotations

import math

import pytest
import torch

from kda_ref import Bounded
from kda_verify.judging.compare import check_aliasing, check_returned, compare
from kda_verify.judging.expect import Answer, Expectation
from kda_verify.judging.verdict import Outcome

NAN, INF = math.nan, math.inf


def expectation(
    want: list[list[float]],
    error: float = 0.25,
    store: float = 0.0,
    accept_nan: bool = False,
) -> Expectation:
    """Expect a [token, head] operand `out` at row 1 of two."""
    value = torch.tensor(want, dtype=torch.float64)
    accept = torch.full(value.shape, True) if accept_nan else None
    bounds = Bounded(value, torch.full_like(value, error))
    slack = torch.full_like(value, store)
    return Expectation("out", (1,), bounds, slack, accept, head_axis=1, token_axis=0)


def outcome(got: list[list[float]], wanted: Expectation, grain: str = "token") -> Outcome:
    operands = {"out": torch.tensor([[[9.0] * len(got[0])] * len(got), got])}
    return compare(operands, Answer((wanted,), True), grain).outcome


def test_ratio_index_and_detail_of_the_worst_element() -> None:
    operands = {"out": torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.125], [3.0, 4.0]]])}
    found = compare(operands, Answer((expectation([[1.0, 2.0], [3.0, 4.0]]),), True), "token")
    assert found.outcome == Outcome.PASS
    assert found.ratio == 0.5
    assert found.where == "out[1, 0, 1]"
    assert "expected 2 within 0.25" in found.detail
    assert "got 2.125" in found.detail


@pytest.mark.parametrize(
    ("got", "store", "expected"),
    [(1.25, 0.0, "pass"), (1.26, 0.0, "incorrect"), (1.74, 0.5, "pass"), (1.76, 0.5, "incorrect")],
)
def test_budget_boundary(got: float, store: float, expected: str) -> None:
    assert outcome([[got]], expectation([[1.0]], store=store)) == expected


def test_zero_budget_accepts_equality_only() -> None:
    assert outcome([[1.0]], expectation([[1.0]], error=0.0)) == Outcome.PASS
    assert outcome([[1.0 + 2**-20]], expectation([[1.0]], error=0.0)) == Outcome.INCORRECT
    assert outcome([[-0.0]], expectation([[0.0]], error=0.0)) == Outcome.PASS


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_stray_non_finite_values_come_before_the_budget(bad: float) -> None:
    assert outcome([[99.0, bad]], expectation([[1.0, 2.0]])) == Outcome.NON_FINITE


def test_accepted_nan() -> None:
    assert outcome([[NAN]], expectation([[0.0]], accept_nan=True)) == Outcome.PASS
    assert outcome([[7.0]], expectation([[0.0]], accept_nan=True)) == Outcome.INCORRECT


def test_grain_of_an_expected_non_finite_value() -> None:
    wanted = expectation([[1.0, 2.0], [NAN, 4.0]])
    spread = [[NAN, 2.0], [INF, 4.0]]
    assert outcome(spread, wanted, "head") == Outcome.PASS
    assert outcome(spread, wanted, "token") == Outcome.NON_FINITE
    assert outcome([[1.0, NAN], [NAN, 4.0]], wanted, "head") == Outcome.NON_FINITE
    assert outcome([[1.0, 2.0], [5.0, 4.0]], wanted, "token") == Outcome.NON_FINITE
    assert outcome([[1.0, 3.0], [NAN, 4.0]], wanted, "head") == Outcome.INCORRECT


def test_wrong_shape_is_named_before_wrong_dtype() -> None:
    shapes, dtypes = {"out": (1, 2)}, {"out": torch.float32}
    found = check_returned({"out": torch.zeros(2, 1, dtype=torch.float16)}, shapes, dtypes)
    assert found is not None
    assert found.outcome == Outcome.WRONG_SHAPE
    assert found.detail == "`out` must have shape (1, 2), got (2, 1)"
    found = check_returned({"out": torch.zeros(1, 2, dtype=torch.float16)}, shapes, dtypes)
    assert found is not None
    assert found.outcome == Outcome.WRONG_DTYPE
    assert check_returned({"out": torch.zeros(1, 2)}, shapes, dtypes) is None


def test_aliasing() -> None:
    pool = torch.zeros(8)
    found = check_aliasing({"out": pool[2:4]}, {}, [pool])
    assert found is not None
    assert found.outcome == Outcome.ALIASED
    given = torch.zeros(2)
    assert check_aliasing({"out": given}, {"out": given}, [pool, given]) is None
    found = check_aliasing({"out": torch.zeros(2)}, {"out": given}, [pool, given])
    assert found is not None
    assert found.outcome == Outcome.ALIASED
    assert check_aliasing({"out": torch.zeros(2)}, {}, [pool]) is None


def test_nothing_expected_is_a_pass_with_ratio_zero() -> None:
    found = compare({}, Answer((), True), "token")
    assert (found.outcome, found.ratio) == (Outcome.PASS, 0.0)


def test_a_state_is_judged_by_the_norm_of_its_columns() -> None:
    value = torch.zeros(1, 2, 4, dtype=torch.float64)
    bounds = Bounded(value, torch.full_like(value, 0.5))
    wanted = Expectation("state", (), bounds, torch.zeros_like(value), column_axis=-1)
    got = torch.zeros(1, 2, 4)
    got[0, 1] = torch.tensor([0.0, 0.375, 0.25, 0.125])
    found = compare({"state": got}, Answer((wanted,), True), "token")
    assert found.outcome == Outcome.PASS
    assert 0.9 < found.ratio < 1
    assert found.where == "state[0, 1, 1]"
    # Each element alone is within the bound; the column is not.
    got[0, 1] = 0.26
    assert compare({"state": got}, Answer((wanted,), True), "token").outcome == Outcome.INCORRECT
