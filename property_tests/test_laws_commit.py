"""The metamorphic laws on our commits."""

from __future__ import annotations

import pytest
from hypothesis import given

from kda_verify.cases.case import Case
from kda_verify.cases.strategies import commit_cases, conv_commit_cases
from kda_verify.laws.catalogue import Law

from .test_laws import EXAMPLES, SIZES, assert_holds, laws_of


@pytest.mark.parametrize("law", laws_of("commit"), ids=str)
@EXAMPLES
@given(case=commit_cases(sizes=SIZES, most=3))
def test_commit(law: Law, case: Case, device: str) -> None:
    assert_holds(law, case, device)


@pytest.mark.parametrize("law", laws_of("conv_commit"), ids=str)
@EXAMPLES
@given(case=conv_commit_cases(sizes=SIZES, most=3))
def test_conv_commit(law: Law, case: Case, device: str) -> None:
    assert_holds(law, case, device)
