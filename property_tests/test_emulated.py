"""Emulated kernels as subjects: right ones pass, and a wrong one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kda_verify import summary
from kda_verify.cases import strategies
from kda_verify.cases.case import Case
from kda_verify.emulation.classes import Emulation
from kda_verify.judging.judge import judge
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.plan import EMULATED, drawn
from kda_verify.subjects import find
from kda_verify.subjects.emulated import SUBJECTS, Emulated

NORM: dict[str, Any] = {"out_norm": True, "conv": False, "spare_slots": 0, "gate_bias": False}


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_they_pass_drawn_cases(subject: Emulated) -> None:
    assert find(subject.name) is subject
    for case in drawn(strategies.verify_cases(), 30, start=11):
        verdict = judge(case, subject)
        assert verdict.outcome in (Outcome.PASS, Outcome.OUT_OF_RANGE), str(verdict)
        assert verdict.kernels == ()


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_they_norm_rows_whose_squares_vanish(subject: Emulated) -> None:
    for seed in range(4):
        case = Case(gates="saturated", values="tiny", states="tiny", seed=seed, **NORM)
        for changed in (case, replace(case, gates="none", betas="zero")):
            assert judge(changed, subject).outcome == Outcome.PASS


def test_a_looser_one_that_claims_fp32_fails() -> None:
    tight = SUBJECTS[1].claims

    class Loose(Emulated):
        claims = tight

    loose = Loose("loose", Emulation("one-pass", "tf32"))
    cases = drawn(strategies.verify_cases(), 30, start=11)
    assert sum(judge(c, loose).outcome == Outcome.INCORRECT for c in cases) > 5


def test_they_are_drawn_when_named_and_only_then() -> None:
    from kda_verify.plan import draws_for
    from kda_verify.subjects import all_subjects

    assert {d.subject for d in EMULATED} == {s.name for s in SUBJECTS}
    assert not {d.subject for d in draws_for(s.name for s in all_subjects())} & {
        s.name for s in SUBJECTS
    }


def test_a_report_says_how_long_the_cases_were_and_what_they_reached() -> None:
    cases = [Case(lengths=(n, 1), capacity=8, seed=n) for n in (1, 4, 8)]
    verdicts = [Verdict(Outcome.PASS, "x", case) for case in (*cases, cases[0])]
    (entry,) = summary.report(summary.summarize(verdicts), "cpu")["subjects"]
    assert entry["median_tokens"] == 4.0
    assert entry["distinct_cases"] == 3
    assert entry["regions"]["verify: full capacity"] == 1
    assert "commit: single token" not in entry["regions"]
