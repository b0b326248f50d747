"""Every outcome of a comparison, on operands small enough to read."""

from __future__ import annotations

import math

import pytest
import torch

from kda_ref import Bounded
from kda_verify.judging.answer import Answer, Expectation
from kda_verify.judging.compare import Finding, check_aliasing, check_returned, compare, within
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
    for came in ((1, 1), (1, 3)):
        found = check_returned({"out": torch.zeros(came)}, shapes, dtypes)
        assert found is not None
        assert found.outcome == Outcome.WRONG_SHAPE
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
    for mine, other in ((pool[:2], pool[4:6]), (pool[4:6], pool[:2])):
        found = check_aliasing({"out": mine}, {"out": other}, [pool])
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


def test_what_is_missing_or_no_tensor_is_named() -> None:
    shapes, dtypes = {"out": (2,)}, {"out": torch.float32}
    wanted = "`out` must be returned, a tensor of shape (2,), got "
    for returned, got in (({}, "nothing"), ({"out": 3.0}, "float")):
        found = check_returned(returned, shapes, dtypes)  # type: ignore[arg-type]
        assert found is not None
        assert (found.outcome, found.ratio) == (Outcome.WRONG_SHAPE, 0.0)
        assert found.detail == wanted + got


def ratios_of(*errors: float, budget: float = 0.25) -> Finding:
    """Compare one operand per error with zero; the size of an operand without one is zero."""
    operands, expectations = {}, []
    for name, error in zip("abcd", errors, strict=False):
        value = torch.zeros(1, 0 if math.isnan(error) else 1, dtype=torch.float64)
        bounds = Bounded(value, torch.full_like(value, budget))
        operands[name] = torch.full_like(value, error)
        expectations.append(Expectation(name, (), bounds, torch.zeros_like(value)))
    return compare(operands, Answer(tuple(expectations), True), "token")


def test_the_worst_of_several_operands() -> None:
    found = ratios_of(0.0625, 0.125, 0.0625)
    assert (found.ratio, found.where) == (0.5, "b[0, 0]")
    assert found.ratios == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert ratios_of(0.125, 0.125).where == "a[0, 0]"
    assert ratios_of(0.0, 0.0).ratios == {"a": 0.0, "b": 0.0}


def test_an_operand_without_elements_ends_nothing() -> None:
    found = ratios_of(0.125, NAN, 0.75)
    assert (found.outcome, found.ratio, found.where) == (Outcome.INCORRECT, 3.0, "c[0, 0]")
    assert found.ratios == {"a": 0.5, "c": 3.0}


@pytest.mark.parametrize(
    ("got", "keeps"),
    [
        ([[1.0]], True),
        ([[1.125]], True),
        ([[1.25]], True),
        ([[1.375]], False),
        ([[2.0]], False),
        ([[NAN]], False),
        ([[1.0, 1.375]], False),
        ([[1.0, 1.25]], True),
        ([[]], True),
    ],
)
def test_within_says_what_a_comparison_says(got: list[list[float]], keeps: bool) -> None:
    wanted = expectation([[1.0] * len(got[0])])
    assert within(torch.tensor(got, dtype=torch.float64), wanted, "token") == keeps
    assert (outcome(got, wanted) == Outcome.PASS) == keeps


def found(got: list[list[float]], wanted: Expectation) -> Finding:
    operands = {"out": torch.tensor([[[9.0] * len(got[0])] * len(got), got])}
    return compare(operands, Answer((wanted,), True), "token")


def test_what_the_store_explains_has_ratio_zero() -> None:
    assert found([[1.25]], expectation([[1.0]], store=0.5)).ratio == 0.0
    assert found([[1.0]], expectation([[1.0]])).ratio == 0.0


def test_the_first_stray_value_is_named() -> None:
    stray = found([[1.0, NAN], [INF, 4.0]], expectation([[1.0, 2.0], [3.0, 4.0]]))
    assert stray.where == "out[1, 0, 1]"
    assert stray.detail == "expected 2, got nan"


def test_an_undetermined_element_has_no_ratio_until_it_leaves_its_limit() -> None:
    wanted = expectation([[0.0]], accept_nan=True)
    for inside in (0.0, 0.125, 0.25, NAN):
        assert found([[inside]], wanted).ratio == 0.0
    beyond = found([[0.375]], wanted)
    assert (beyond.outcome, beyond.ratio) == (Outcome.INCORRECT, 1.5)


def test_the_store_of_a_column_is_a_norm_too() -> None:
    value = torch.zeros(1, 1, 4, dtype=torch.float64)
    bounds, store = Bounded(value, torch.full_like(value, 0.5)), torch.full_like(value, 0.25)
    wanted = Expectation("state", (), bounds, store, column_axis=-1)

    def judged(*got: float) -> Finding:
        state = torch.tensor(got, dtype=torch.float64)[None, None]
        return compare({"state": state}, Answer((wanted,), True), "token")

    # |(0, 3, 4, 0) / 4| less |(1, 1, 1, 1) / 4|, in halves
    assert judged(0, 0.75, 1, 0).ratio == 1.5
    assert judged(0, 0.75, 1, 0).where == "state[0, 0, 2]"
    # Where no column has a ratio the first element is named.
    assert (judged(0, 0.25, 0, 0).ratio, judged(0, 0.25, 0, 0).where) == (0.0, "state[0, 0, 0]")


def test_a_spoilt_value_spoils_its_whole_row_of_a_head() -> None:
    value = torch.tensor([[[1.0, 1.0, 1.0], [NAN, 1.0, 1.0]]], dtype=torch.float64)
    bounds = Bounded(value, torch.full_like(value, 0.25))
    wanted = Expectation("out", (), bounds, torch.zeros_like(value), head_axis=1, token_axis=0)
    for row, expected in (([1.0, NAN, NAN], Outcome.NON_FINITE), ([1.0] * 3, Outcome.PASS)):
        got = torch.tensor([[row, [INF, 1.0, NAN]]])
        assert compare({"out": got}, Answer((wanted,), True), "token").outcome == expected
