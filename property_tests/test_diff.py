"""What changed between two runs, and which way."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_verify.reporting.diff import FACTOR, changes, unjudged
from property_tests.any_run import runs
from property_tests.test_page import example

Run = dict[str, Any]
Edit = Callable[[Run], object]


def kinds(a: Run, b: Run, factor: float = FACTOR) -> list[str]:
    return [change.kind for change in changes(a, b, factor)]


@given(runs())
def test_a_run_does_not_differ_from_itself(run: Run) -> None:
    assert changes(run, copy.deepcopy(run)) == []


@given(runs(), runs())
def test_what_is_better_one_way_is_not_better_the_other(a: Run, b: Run) -> None:
    """A kernel, region or ratio that only one run has is worse to lose, and no gain to have."""
    there = {c.text.split(" ")[0] for c in changes(a, b) if c.kind == "better"}
    back = changes(b, a)
    assert bool(changes(a, b)) == bool(back)
    worse = {c.text.split(" ")[0] for c in back if c.kind == "worse"}
    assert there <= worse


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1.01, 100))
def test_a_ratio_may_move_by_the_factor(was: float, now: float, factor: float) -> None:
    a, b = example(), example()
    for run, ratio in ((a, was), (b, now)):
        run["subjects"][1]["outputs"][0]["worst"] = ratio
    over = now > factor * was or now > 1 >= was
    under = was > factor * now or was > 1 >= now
    assert kinds(a, b, factor) == (["worse"] if over else ["better"] if under else [])


def at(*keys: Any) -> Callable[[Any], Edit]:
    """Return what sets a value of a run."""

    def setter(value: Any) -> Edit:
        def edit(run: Run) -> None:
            holder: Any = run
            for key in keys[:-1]:
                holder = holder[key]
            holder[keys[-1]] = value

        return edit

    return setter


def verdict(n: int, word: str) -> Edit:
    return at("subjects", n, "verdict")(word)


def without_outputs(run: Run) -> None:
    """Leave only the worst ratio of the kernel, as older runs do, and make it infinite."""
    del run["subjects"][0]["outputs"]
    at("subjects", 0, "worst", "ratio")(None)(run)


STAGES = [{"name": "oracle", "outcome": "pass", "detail": "", "seconds": 1.0}]

EDITS: dict[str, tuple[Edit, str, str]] = {
    "a pass that fails": (verdict(0, "incorrect"), "worse", "verdict pass -> incorrect"),
    "a pass not judged": (verdict(0, "not-run"), "worse", "verdict pass -> not-run"),
    "a failure that passes": (verdict(1, "pass"), "better", "verdict incorrect -> pass"),
    "a failure not judged": (verdict(1, "not-run"), "other", "verdict incorrect -> not-run"),
    "another failure": (verdict(1, "raised"), "other", "verdict incorrect -> raised"),
    "one that now runs": (verdict(2, "pass"), "better", "verdict not-run -> pass"),
    "a looser class": (at("subjects", 0, "precision_class")("bf16"), "worse", "fp32 -> bf16"),
    "a tighter class": (at("subjects", 1, "precision_class")("fp32"), "better", "none -> fp32"),
    "a worst ratio": (without_outputs, "worse", "worst ratio 0.5 -> infinite"),
    "an output's ratio": (at("subjects", 0, "outputs", 0, "worst")(0.1), "better", "out, worst"),
    "an output gone": (at("subjects", 1, "outputs")([]), "worse", "out, worst ratio 4.1e+03 ->"),
    "no outputs": (lambda run: run["subjects"][0].pop("outputs"), "other", "second run"),
    "a region lost": (
        lambda run: run["subjects"][0]["regions"].pop("verify: bf16"), "worse", "lost: verify: bf16"
    ),
    "a region gained": (at("subjects", 0, "regions", "verify: new")(1), "better", "gained: verify"),
    "more cases": (at("subjects", 0, "distinct_cases")(9), "other", "cases 1 -> 9"),
    "a kernel gone": (lambda run: run["subjects"].pop(0), "worse", "no longer in the run"),
    "another torch": (at("environment", "torch")("9.9"), "other", "-> 9.9"),
    "another seed": (at("seed")(8), "other", "seed: 7 -> 8"),
    "a check that is new": (at("stages")(STAGES), "other", "check oracle: absent -> pass"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_is_named_with_its_kind(edit: str) -> None:
    change, kind, text = EDITS[edit]
    b = example()
    change(b)
    found = [c for c in changes(example(), b) if text in c.text]
    assert [c.kind for c in found] == [kind], list(map(str, changes(example(), b)))


def test_a_check_that_fails_or_goes_is_worse() -> None:
    a, b, c = ({**example(), "stages": copy.deepcopy(STAGES)} for _ in range(3))
    b["stages"][0]["outcome"] = "fail"
    c["stages"] = []
    assert kinds(a, b) == ["worse"] == kinds(a, c)
    assert kinds(b, a) == ["better"]


def test_the_date_is_no_change_and_a_new_kernel_that_fails_is_worse() -> None:
    a, b = example(), example()
    b["environment"]["date"] = "another day"
    assert changes(a, b) == []
    del a["subjects"][1]
    assert kinds(a, b) == ["worse"]


def test_nothing_judged() -> None:
    run = example()
    assert not unjudged(run)
    assert unjudged({**run, "subjects": run["subjects"][2:]})
    assert math.isfinite(FACTOR)
