"""The metamorphic laws on our operations over rows and on FLA's recurrent kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings

from kda_verify.cases.case import Case
from kda_verify.cases.strategies import recurrent_cases, verify_cases
from kda_verify.laws.catalogue import LAWS, Law, OutOfRange, check
from kda_verify.subjects import find

SIZES = (16, 20, 17, 32)
SUBJECTS = {
    find(name).operation: find(name)
    for name in (
        "kda_mtp_verify",
        "kda_replay_commit",
        "kda_conv_commit",
        "fla.fused_recurrent_kda",
    )
}
EXAMPLES = settings(max_examples=max(2, (settings().max_examples + 1) // 4))


def smaller(case: Case) -> Case:
    """Keep a case small: a law makes up to ten calls."""
    capacity = min(case.capacity, 4)
    return replace(
        case,
        heads=min(case.heads, 2),
        group=min(case.group, 2),
        capacity=capacity,
        lengths=tuple(min(n, capacity) for n in case.lengths),
    )


def laws_of(operation: str) -> list[Law]:
    return [law for law in LAWS if law.operation == operation]


def assert_holds(law: Law, case: Case, device: str) -> None:
    try:
        breach = check(law, smaller(case), SUBJECTS, device)
    except OutOfRange:
        reject()
    assert breach is None, str(breach)


@pytest.mark.parametrize("law", laws_of("verify"), ids=str)
@EXAMPLES
@given(case=verify_cases(sizes=SIZES, most=3))
def test_verify(law: Law, case: Case, device: str) -> None:
    assert_holds(law, case, device)


@pytest.mark.parametrize("law", laws_of("recurrent"), ids=str)
@EXAMPLES
@given(case=recurrent_cases(sizes=SIZES))
def test_recurrent(law: Law, case: Case, device: str) -> None:
    pytest.importorskip("fla", reason="fla-core is not installed")
    assert_holds(law, case, device)
