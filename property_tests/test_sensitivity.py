"""The smallest fault that a passing case would show, and how runs report it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from kda_ref import Bounded
from kda_verify import summary
from kda_verify.cases.case import Case
from kda_verify.judging.answer import Answer, Expectation
from kda_verify.judging.judge import judge
from kda_verify.judging.sensitivity import FAULTS, SIZES, smallest
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.subjects import find


def answer(value: Tensor, error: Tensor) -> Answer:
    """Expect [tokens, heads, columns] of `out`, its store exact."""
    want = Bounded(value.double(), error.double())
    expectation = Expectation(
        "out", (0,), want, torch.zeros_like(want.value), head_axis=1, token_axis=0
    )
    return Answer((expectation,), in_range=True)


def found(value: Tensor, error: Tensor) -> dict[str, float]:
    sizes = smallest({"out": value[None]}, answer(value, error), "token", seed=0)
    return sizes.get(f"out {str(value.dtype).removeprefix('torch.')}", {})


@pytest.mark.parametrize("budget", [1.5e-6, 1.5e-4, 1.5e-2])
def test_finds_the_first_size_past_the_budget(budget: float) -> None:
    value = torch.full((3, 2, 4), 3.0)
    expected = min(size for size in SIZES if size > budget)
    sizes = found(value, torch.full((3, 2, 4), 3.0 * budget))
    assert sizes == dict.fromkeys(FAULTS, expected)


def test_one_loose_element_hides_only_faults_of_its_own() -> None:
    """A fault of everything shows in the others; a fault of one element may be in any."""
    error = torch.full((1, 1, 4), 1e-6)
    error[0, 0, 0] = 1e3
    value = torch.zeros(1, 1, 4)
    value[0, 0, 0] = 1.0
    sizes = found(value, error)
    assert math.isinf(sizes["gain"])
    assert math.isinf(sizes["element"])
    # An offset adds half the value of the only element to every other one.
    assert sizes["offset"] == 3e-6


def test_a_fault_below_the_store_does_not_show() -> None:
    """1 in bf16 has its next neighbour at 1.0078: a gain must pass half of that."""
    sizes = found(torch.ones(1, 1, 4, dtype=torch.bfloat16), torch.full((1, 1, 4), 1e-9))
    assert sizes["gain"] == min(size for size in SIZES if size > 2**-8)


@pytest.mark.parametrize("value", [torch.zeros(2, 1, 3), torch.full((2, 1, 3), torch.nan)])
def test_leaves_out_what_no_fault_can_change(value: Tensor) -> None:
    assert found(value, torch.ones(2, 1, 3)) == {}


def test_a_passing_case_says_what_it_could_find(device: str) -> None:
    case = Case(lengths=(2, 1), capacity=2, records=("rings", "snapshots"), seed=7)
    verdict = judge(case, find("kda_mtp_verify"), device, sensitivity=True)
    assert verdict.outcome == Outcome.PASS
    assert {name.split()[0] for name in verdict.sensitivity} == set(verdict.ratios)
    for operand, kinds in verdict.sensitivity.items():
        states = operand.startswith("intermediate_ssm")
        assert set(kinds) == set(FAULTS), operand
        assert kinds["gain"] <= (1e-5 if "float32" in operand or states else 5e-3), operand
    assert judge(case, find("kda_mtp_verify"), device).sensitivity == {}


def test_reports_what_most_cases_show() -> None:
    sizes = [1e-6] * 19 + [math.inf]
    assert summary.found_in(sizes) == 1e-6
    assert summary.found_in(sizes[1:]) == math.inf
    assert summary.found_in([]) is None
    verdicts = [
        Verdict(Outcome.PASS, "x", Case(seed=n), sensitivity={"out float32": {"gain": size}})
        for n, size in enumerate(sizes[1:])
    ]
    summaries = summary.summarize(verdicts)
    (row,) = summary.report(summaries, "cpu")["subjects"][0]["smallest_fault"]
    assert row == {
        "operand": "out float32", "fault": "gain", "cases": 19, "median": 1e-6,
        "found_in_95_percent": None,
    }  # fmt: skip
    json.dumps(row, allow_nan=False)
    table = summary.sensitivity_table(summaries)
    cells = [list(column.cells) for column in table.columns]
    assert cells[:3] == [["x"], ["float32"], ["> 1"]]
