"""Non-vacuity: the cases of the standard run reach every region that is meant to be tried."""

from __future__ import annotations

from functools import cache

import pytest

from kda_verify import stages
from kda_verify.cases.case import Case
from kda_verify.cases.regions import REGIONS, Region, asked, coverage
from kda_verify.judging.verdict import Outcome, Verdict
from kda_verify.plan import OURS, PEERS, batches


@cache
def drawn(compiled: bool) -> tuple[Case, ...]:
    """Every case that `make verify` draws, unjudged."""
    shares = batches((*OURS, *PEERS), size=25, compiled=compiled)
    return tuple(case for batch in shares for case in batch.cases())


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_the_standard_run_reaches_every_region(compiled: bool) -> None:
    assert [name for name, count in coverage(drawn(compiled)).items() if not count] == []


def test_an_unreachable_region_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [Verdict(Outcome.PASS, "x", case) for case in drawn(False)]
    outcome, detail = stages.regions(verdicts)
    assert outcome == "pass"
    assert detail.startswith(f"{len(asked())} regions reached; ")
    monkeypatch.setitem(REGIONS, "K of 255", Region(("commit",), lambda c: c.size_k == 255))
    assert stages.regions(verdicts) == ("fail", "no judged case has: commit: K of 255")


def test_a_region_that_one_operation_leaves_out_is_noticed() -> None:
    """What verifies reach says nothing of commits."""
    kept = [c for c in drawn(False) if c.operation == "verify" or not c.padding]
    outcome, detail = stages.regions([Verdict(Outcome.PASS, "x", case) for case in kept])
    assert outcome == "fail"
    assert "commit: padding among live requests" in detail
    assert "verify: padding" not in detail


def test_a_case_that_was_not_judged_reaches_nothing() -> None:
    cases = drawn(False)
    verdicts = [Verdict(Outcome.RAISED, "x", cases[0])]
    verdicts += [Verdict(Outcome.NOT_SUPPORTED, "x", case) for case in cases]
    outcome, detail = stages.regions(verdicts)
    assert outcome == "fail"
    assert detail.count(", ") > len(asked()) - 40


def test_a_kernel_that_supports_no_case_fails_the_run() -> None:
    verdicts = [Verdict(Outcome.PASS, "x", case) for case in drawn(False)]
    verdicts += [Verdict(Outcome.NOT_SUPPORTED, "idle", case) for case in drawn(False)]
    assert stages.regions(verdicts) == (
        "fail", "no case of idle was judged: it supports none"
    )  # fmt: skip


def test_regions_of_a_kernel_that_cannot_run_are_not_asked_for() -> None:
    verdicts = [
        Verdict(Outcome.NOT_RUN if c.operation == "recurrent" else Outcome.PASS, "x", c)
        for c in drawn(False)
    ]
    outcome, detail = stages.regions(verdicts)
    assert outcome == "pass"
    assert " not run; " in detail
    nothing = [Verdict(Outcome.NOT_RUN, "x", case) for case in drawn(False)]
    assert stages.regions(nothing) == ("not-run", "no case was judged")
