"""Every kind of check can fail: it finds planted kernels on the cases it is meant for.

The kinds here are budget, exact family, frame and stored fixtures; the laws have their own file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import kda_kernels
from kda_verify import fixtures
from kda_verify.cases.case import Case
from kda_verify.faults.catalogue import find as find_fault
from kda_verify.faults.planted import FAULTS, Plant, Planted, planted
from kda_verify.faults.plants import PLANTS
from kda_verify.judging.judge import judge
from kda_verify.judging.verdict import Outcome
from kda_verify.operations import having, registry
from kda_verify.subjects import Subject, find, ours

SUBJECT_OF = {**ours.GENERAL, "recurrent": "fla.fused_recurrent_kda"}
WRAPPED = having(lambda f: f.stateful)
SIZES = (16, 24, 17)

# The families in which all four planted kernels are wrong in every live request.
TELLING: dict[str, Any] = {
    "gates": "mild",
    "states": "asymmetric",
    "values": "unit",
    "betas": "random",
    "padding": (),
    "spare_slots": 2,
}


def drawn(strategy: st.SearchStrategy[Case], count: int, start: int = 0) -> Iterator[Case]:
    """Draw distinct cases, the same ones each time, a few from every seed."""
    cases: dict[Case, None] = {}
    for number in range(start, start + count):

        @seed(number)
        @settings(
            max_examples=6,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def collect(case: Case) -> None:
            cases[case] = None

        collect()
    return iter(cases)


@cache
def telling(operation: str, kind: str, count: int) -> tuple[Case, ...]:
    """Return cases of the budget or of the exact family on which every fault shows."""
    record = registry.operation(operation)
    make = record.exact_cases if kind == "exact" else record.cases
    assert make is not None
    # A scale of zero leaves no output to be wrong; exact cases have scales of their own.
    rest: dict[str, Any] = (
        {} if kind == "exact" else {"keys": "random", "taps": "random", "scale": None}
    )
    cases = (replace(c, **TELLING, **rest) for c in drawn(make(sizes=SIZES, most=2), 4))
    chosen = [c for c in cases if c.busy and (kind != "exact" or c.gate_form != "lower_bound")]
    return tuple(dict.fromkeys(chosen))[:count]


def subject_for(operation: str) -> Subject:
    """Return the subject of an operation; skip where it cannot run."""
    subject = find(SUBJECT_OF[operation])
    if reason := subject.unavailable():
        pytest.skip(reason)
    return subject


@pytest.mark.parametrize("kind", ["budget", "exact"])
@pytest.mark.parametrize("operation", WRAPPED)
def test_real_kernels_pass_the_same_cases(operation: str, kind: str, device: str) -> None:
    cases = telling(operation, kind, 3)
    assert len(cases) == 3
    for case in cases:
        verdict = judge(case, subject_for(operation), device)
        assert verdict.outcome == Outcome.PASS, str(verdict)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", WRAPPED)
def test_budget_finds(operation: str, fault: str, device: str) -> None:
    subject = Planted(subject_for(operation), fault)
    for case in telling(operation, "budget", 3):
        verdict = judge(case, subject, device)
        assert verdict.outcome in (Outcome.INCORRECT, Outcome.NON_FINITE), str(verdict)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", WRAPPED)
def test_exact_family_finds(operation: str, fault: str, device: str) -> None:
    subject = Planted(subject_for(operation), fault)
    verdicts = [judge(case, subject, device) for case in telling(operation, "exact", 3)]
    failed = [v.outcome in (Outcome.INCORRECT, Outcome.NON_FINITE) for v in verdicts]
    # A gate of the exact family forgets now and then, not in every case.
    assert any(failed) if fault == "decay left out" else all(failed), "\n".join(map(str, verdicts))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", WRAPPED)
def test_frame_finds(operation: str, fault: str, device: str) -> None:
    if (operation, fault) == ("commit", "identity"):
        pytest.skip("a commit that leaves every state as it was trespasses nowhere")
    subject = Planted(subject_for(operation), fault, tidy=False)
    for case in telling(operation, "budget", 2):
        verdict = judge(case, subject, device)
        assert verdict.outcome in (Outcome.WROTE_OUTSIDE, Outcome.ALIASED), str(verdict)


@pytest.mark.parametrize("folder", [fixtures.REGRESSIONS, fixtures.EXACT], ids=lambda p: p.name)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("operation", WRAPPED)
def test_fixtures_find(operation: str, fault: str, folder: Path, device: str) -> None:
    subject = Planted(subject_for(operation), fault)
    stored = [fixtures.load(path) for path in sorted(folder.glob("*.json"))]
    mine = [f for f in stored if f.subject == SUBJECT_OF[operation]]
    assert any(fixtures.mismatch(f, subject, device) for f in mine)


@pytest.mark.parametrize("fault", FAULTS[:2])
def test_copies_are_judged_too(fault: str, device: str) -> None:
    subject = Planted(find("kda_conv_commit"), fault)
    assert judge(Case(operation="conv_commit"), subject, device).failed


def test_refuses_faults_that_mean_nothing() -> None:
    with pytest.raises(ValueError, match="`fault` must be one of zeros, identity"):
        Planted(find("kda_mtp_verify"), "ones")
    with pytest.raises(ValueError, match="`fault` must be zeros or identity for a conv_commit"):
        Planted(find("kda_conv_commit"), "no carry")


@cache
def small_cases(operation: str) -> tuple[Case, ...]:
    """Draw the fixed small set of cases on which every plant is found."""
    make = registry.operation(operation).cases
    return tuple(drawn(make(sizes=SIZES, most=2), 80))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.name)
def test_finds_every_plant(plant: Plant, device: str) -> None:
    name = SUBJECT_OF[plant.operation]
    with planted(plant) as package:
        copy = ours.subject(name, package)
        verdicts = (judge(case, copy, device) for case in small_cases(plant.operation))
        found = next((v for v in verdicts if v.failed), None)
    assert found is not None, plant.description
    assert judge(found.case, find(name), device).outcome == Outcome.PASS


def test_names_are_distinct() -> None:
    assert len({p.name for p in PLANTS}) == len(PLANTS)
    assert len({(p.module, p.replacement) for p in PLANTS}) == len(PLANTS)
    assert find_fault(PLANTS[0].name) is PLANTS[0]
    with pytest.raises(ValueError, match="`name` must be one of tf32-state-product"):
        find_fault("none")


@pytest.mark.parametrize(
    ("anchor", "times"), [("no such line", 0), ("tl.store(", 9)], ids=["missing", "repeated"]
)
def test_refuses_a_plant_that_does_not_fit(anchor: str, times: int) -> None:
    plant = Plant("misfit", "prepare", anchor, "pass", "nothing")
    with pytest.raises(ValueError, match="must occur exactly once in prepare.py, got") as refusal:
        plant.apply("tl.store(\n" * 9)
    assert f"`anchor` of plant misfit must occur exactly once in prepare.py, got {times}" in str(
        refusal.value
    )
    with pytest.raises(ValueError, match="`anchor` of plant misfit"), planted(plant):
        pass


def test_indents_like_the_anchor() -> None:
    plant = Plant("two", "x", "a = 1", "a = 1\nb = 2", "")
    assert plant.apply("if c:\n    a = 1\n    d = 3\n") == (
        "if c:\n    a = 1\n    b = 2\n    d = 3\n"
    )


def test_a_copy_stands_beside_the_real_package_and_goes() -> None:
    plant = find_fault("scale-dropped")
    names = []
    for _ in range(2):
        with planted(plant) as name:
            copy = importlib.import_module(name)
            assert copy.kda_mtp_verify is not kda_kernels.kda_mtp_verify
            assert copy.__file__ is not None
            folder = Path(copy.__file__).parent
            assert folder.is_dir()
        assert not folder.exists()
        assert name not in sys.modules
        assert str(folder.parent) not in sys.path
        names.append(name)
    assert len(set(names)) == 2
    assert importlib.import_module("kda_kernels") is kda_kernels
