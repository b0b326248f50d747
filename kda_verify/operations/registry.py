"""The record of every operation: its facts, with the functions that make and judge its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import kda_ref
from kda_ref import Precision

from ..cases import build_commit, build_rows, strategies
from ..cases.assembly import Built
from ..cases.case import Case
from ..cases.draw import Draw
from ..judging import answer
from ..judging.answer import Answer, Returned
from ..laws import results
from ..laws.results import Arguments, Results
from . import Facts, commit, conv_commit, facts, recurrent, verify


@dataclass(frozen=True)
class Operation:
    """Hold everything that differs from one kind of call to another.

    Attributes:
        facts: its data.
        cases: strategy of its cases; takes `sizes` of K and V and the `most` requests.
        exact_cases: strategy of cases for which no algorithm rounds, or None: it computes nothing.
        build: makes the call of a case, with the fields that mean nothing to it at rest.
        oracle: called with the built keywords.
        answer: what a call must leave behind, from the oracle, for a declared precision.
        returns: shape and dtype of every tensor that a call returns.
        read: what each request owns, from the operands of a call and what it returned.
        bounds: error bounds of the same; raises `OutOfRange`.
    """

    facts: Facts
    cases: Callable[..., st.SearchStrategy[Case]]
    exact_cases: Callable[..., st.SearchStrategy[Case]] | None
    build: Callable[[Case, Draw, torch.device | str], Built]
    oracle: Callable[..., Any]
    answer: Callable[[Built, Precision], Answer]
    returns: Callable[[Built], Returned]
    read: Callable[[Mapping[str, Any]], Results]
    bounds: Callable[[Arguments, Precision], Results]


OPERATIONS = (
    Operation(
        facts=verify.FACTS,
        cases=strategies.verify_cases,
        exact_cases=strategies.exact_verify_cases,
        build=build_rows.verify,
        oracle=kda_ref.kda_mtp_verify,
        answer=answer.verify,
        returns=answer.verify_returns,
        read=results.read_verify,
        bounds=results.bound_verify,
    ),
    Operation(
        facts=commit.FACTS,
        cases=strategies.commit_cases,
        exact_cases=strategies.exact_commit_cases,
        build=build_commit.commit,
        oracle=kda_ref.kda_replay_commit,
        answer=answer.commit,
        returns=answer.nothing,
        read=results.read_commit,
        bounds=results.bound_commit,
    ),
    Operation(
        facts=conv_commit.FACTS,
        cases=strategies.conv_commit_cases,
        exact_cases=None,
        build=build_commit.conv_commit,
        oracle=kda_ref.kda_conv_commit,
        answer=answer.conv_commit,
        returns=answer.nothing,
        read=results.read_conv_commit,
        bounds=results.bound_conv_commit,
    ),
    Operation(
        facts=recurrent.FACTS,
        cases=strategies.recurrent_cases,
        exact_cases=strategies.exact_recurrent_cases,
        build=build_rows.recurrent,
        oracle=kda_ref.kda_recurrent,
        answer=answer.recurrent,
        returns=answer.recurrent_returns,
        read=results.read_recurrent,
        bounds=results.bound_recurrent,
    ),
)

_BY_NAME = {record.facts.name: record for record in OPERATIONS}


def operation(name: str) -> Operation:
    """Return the record of an operation.

    Raises:
        ValueError: no operation has that name.
    """
    return _BY_NAME[facts(name).name]
