"""Cases: frozen recipes, JSON both ways, and refusal of what describes no call."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kda_verify.cases import strategies
from kda_verify.cases.case import Case

ANY_CASE = st.one_of(
    strategies.verify_cases(),
    strategies.exact_verify_cases(),
    strategies.dspark_cases(),
    strategies.commit_cases(),
    strategies.conv_commit_cases(),
    strategies.recurrent_cases(),
    strategies.pooled_recurrent_cases(),
)


@given(ANY_CASE)
def test_json_round_trip(case: Case) -> None:
    assert Case.from_json(case.to_json()) == case


def test_a_case_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Case().heads = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "`case` must be JSON"),
        ("[]", "`case` must be a JSON object, got list"),
        ('{"head": 1}', "`case` must have only known fields, got 'head'"),
        ('{"heads": "1"}', "`heads` must be a int, got '1'"),
        ('{"heads": true}', "`heads` must be a int, got True"),
        ('{"heads": 0}', "`heads` must be a positive integer, got 0"),
        ('{"size_k": 15}', "`size_k` must be in 16..256, got 15"),
        ('{"size_v": 257}', "`size_v` must be in 16..256, got 257"),
        ('{"lengths": []}', "`lengths` must be integers of at least 0"),
        ('{"lengths": [2]}', "`lengths` must be at most capacity 1, got 2"),
        ('{"lengths": 2}', "`lengths` must be a list, got 2"),
        ('{"padding": [1]}', "`padding` must be increasing positions below 1"),
        ('{"operation": "decode"}', "`operation` must be one of verify, commit, conv_commit"),
        ('{"operation": "recurrent", "padding": [0]}', "`padding` must be empty where no request"),
        ('{"operation": "recurrent", "state_dtype": "bfloat16"}', "`state_dtype` must be float32"),
        ('{"state_dtype": "float16"}', "`state_dtype` must be one of float32, bfloat16, got"),
        ('{"initial": "zeros"}', "`initial` must be one of given, none, pool, got 'zeros'"),
        ('{"records": ["ring"]}', "`records` must be distinct names"),
        ('{"records": ["windows"], "conv": false}', "`records` must leave out windows"),
        ('{"keys": "nice"}', "`keys` must be one of random, collinear"),
        ('{"scale": NaN}', "`scale` must be a finite number or null"),
        ('{"seed": -1}', "`seed` must be an integer of at least 0, got -1"),
        ('{"batched": true, "lengths": [1, 0]}', "`lengths` must be equal when batched"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Case.from_json(text)
    assert str(caught.value).startswith(message)


def test_defaults_are_left_out_of_the_json() -> None:
    assert json.loads(Case(heads=2).to_json()) == {"heads": 2}
