"""The record of an operation: complete, of names that are there, and asked for in one place."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kda_ref import Precision
from kda_verify.cases.build import Built, build
from kda_verify.cases.case import Case
from kda_verify.judging.expect import expect
from kda_verify.operations import FACTS, NAMES, Facts, facts, having
from kda_verify.operations.registry import OPERATIONS, Operation, operation
from kda_verify.subjects import find

from .any_case import SMALL, cases

FIELDS = {f.name for f in fields(Case)}


def full(mine: Facts) -> Built:
    """Build a call of an operation with every operand it may have."""
    case = Case(
        operation=mine.name, lengths=(2, 0, 1), capacity=2, padding=(1,), out_norm=True,
        records=("rings", "snapshots", "windows"), out_given=True, layers=2, track=True,
        pool="pitched", initial="pool",
    )  # fmt: skip
    return build(case)


def test_every_operation_has_one_record() -> None:
    assert tuple(record.facts for record in OPERATIONS) == FACTS
    assert all(operation(name).facts is facts(name) for name in NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("ask", [facts, operation, lambda name: Case(operation=name)])
def test_an_unknown_operation_is_refused(ask: object) -> None:
    with pytest.raises(ValueError) as refusal:
        ask("decode")  # type: ignore[operator]
    expected = f"`operation` must be one of {', '.join(NAMES)}, got 'decode'"
    assert str(refusal.value) == expected


@pytest.mark.parametrize("mine", FACTS, ids=lambda f: f.name)
def test_fields_are_those_of_cases(mine: Facts) -> None:
    assert mine.fields <= FIELDS
    assert set(mine.fixed) <= FIELDS - mine.fields


def test_every_field_means_something_somewhere() -> None:
    assert {name for mine in FACTS for name in mine.fields} == FIELDS - {"operation"}


@SMALL
@given(cases())
def test_a_case_at_rest_stays_so(case: Case) -> None:
    meant = case.meant()
    assert meant.meant() == meant
    for name in facts(case.operation).fields:
        assert getattr(meant, name) == getattr(case, name)


@pytest.mark.parametrize("mine", FACTS, ids=lambda f: f.name)
def test_operands_are_there(mine: Facts) -> None:
    given_ = full(mine).arguments
    for names in (mine.written, mine.slot_pools, mine.row_pools, mine.carried, mine.axes):
        assert set(names) <= set(given_)
    assert set(mine.states) <= set(mine.carried)
    assert {mine.queries, mine.keys, mine.values} - {None} <= set(given_)
    assert set(mine.rows) <= set(mine.axes)


@pytest.mark.parametrize("mine", FACTS, ids=lambda f: f.name)
def test_every_input_has_its_axes(mine: Facts) -> None:
    built = full(mine)
    layered = int(built.case.layers > 0)
    inputs = {
        name: value
        for name, value in built.arguments.items()
        if isinstance(value, Tensor) and value.dtype != torch.int32
    }
    outputs = set(mine.written) - set(mine.carried) - set(mine.axes)
    assert set(inputs) - outputs == set(mine.axes)
    for name, axes in mine.axes.items():
        per_layer = inputs[name].ndim - len(axes.split())
        assert per_layer == layered, name


@pytest.mark.parametrize("mine", FACTS, ids=lambda f: f.name)
def test_what_is_judged_is_what_is_written_or_returned(mine: Facts) -> None:
    built, record = full(mine), operation(mine.name)
    judged = {e.operand for e in expect(built, Precision()).expectations}
    assert judged == {*mine.written, *record.returns(built)}


@pytest.mark.parametrize("record", OPERATIONS, ids=lambda r: r.facts.name)
@SMALL
@given(data=st.data())
def test_strategies_draw_its_cases(record: Operation, data: st.DataObject) -> None:
    for strategy in (record.cases, record.exact_cases):
        if strategy is not None:
            case = data.draw(strategy(sizes=(16,), most=2))
            assert case.operation == record.facts.name
            assert case.exact == (strategy is record.exact_cases)


def test_capabilities() -> None:
    assert having(lambda f: f.pooled) == ("verify", "commit", "conv_commit")
    assert having(lambda f: f.stateful) == ("verify", "commit", "recurrent")
    assert having(lambda f: f.sequences) == ("verify", "recurrent")
    assert having(lambda f: f.layered) == ("commit", "conv_commit")


@pytest.mark.parametrize("mine", [f for f in FACTS if f.kernel], ids=lambda f: f.name)
def test_its_kernel_takes_every_case(mine: Facts) -> None:
    claims = find(str(mine.kernel)).claims
    assert set(claims.choices) <= {"state_dtype"}
    assert not claims.conditions
    assert claims.refusal(replace(Case(operation=mine.name), heads=3)) == ""
