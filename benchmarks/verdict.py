"""The verdict on a row: the project's judge, on the very operands that are timed next.

The oracle runs where the operands live, in slices of requests, and every element that the call
must write is compared; see `kda_verify.judging`. A contender that does not pass is not timed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import kda_ref
from kda_ref import Precision
from kda_verify.cases.assembly import Built
from kda_verify.judging.answer import Answer, verify_expectations
from kda_verify.judging.compare import Finding, compare
from kda_verify.judging.expect import expect
from kda_verify.judging.verdict import Outcome
from kda_verify.production import SLICE_BYTES
from kda_verify.subjects.base import interpreted, poisoned_allocations

from .contenders import Contender
from .inputs import SPARE, Inputs
from .rows import SIZE

FEW = 8
"""Requests that peers are judged on, and that each judged layer of many is."""

JUDGED_LAYERS = 3
LARGEST = sys.float_info.max
"""What an infinite ratio is recorded as: JSON has no infinity."""


@dataclass(frozen=True)
class RowVerdict:
    """What judging a contender on a row found.

    Attributes:
        outcome: as `kda_verify.judging.verdict.Outcome`.
        ratio: worst error over budget.
        where: the element it is at.
        detail: what was expected there, or what failed.
        judged: how much of the call the oracle was asked for.
        tolerance: how many times the budget the contender may err by and still pass.
        launches: the kernels that ran.
    """

    outcome: str
    ratio: float = 0.0
    where: str = ""
    detail: str = ""
    judged: str = ""
    tolerance: float = 1.0
    launches: tuple[dict[str, Any], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the contender may be timed."""
        return self.outcome == str(Outcome.PASS)

    @property
    def reason(self) -> str:
        """Say in one line why the contender is not timed."""
        over = f", {self.ratio:.3g} times the budget" if self.ratio else ""
        place = f" at {self.where}" if self.where else ""
        return f"{self.outcome}{place}{over}" + (f": {self.detail}" if self.detail else "")


class Judge:
    """Judge contenders on one set of operands, which it leaves as it found it.

    Args:
        inputs: the set; the oracle's answers on it are kept while few requests are asked for.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.before = {name: t.clone() for name, t in inputs.inputs().items()}
        self._answers: dict[Any, Answer] = {}

    def judge(self, contender: Contender) -> RowVerdict:
        """Poison the outputs, call once, compare, and put the operands back."""
        inputs = self.inputs
        inputs.poison()
        # What a contender allocates may not hold the answer of the one before.
        with contender.observed() as launches, poisoned_allocations():
            try:
                elsewhere = contender.bind(inputs)()
                if inputs.built.arguments["ssm_state_indices"].is_cuda:
                    torch.cuda.synchronize()
            except Exception as problem:  # whatever a kernel raises is its verdict
                text = f"{type(problem).__name__}: {problem}".splitlines()[0]
                self._restore()
                return RowVerdict(str(Outcome.RAISED), detail=text)
        if not launches:
            self._restore()
            return RowVerdict(str(Outcome.NO_KERNEL), detail="no Triton kernel was launched")
        held = {**inputs.tensors(), **elsewhere}
        found, judged = self._trespass(contender, elsewhere), ""
        if found is None:
            found, judged = self._compare(contender, held)
        self._restore()
        outcome = found.outcome
        if outcome == Outcome.INCORRECT and found.ratio <= contender.tolerance:
            outcome = Outcome.PASS
        return RowVerdict(
            str(outcome), min(found.ratio, LARGEST), found.where, found.detail, judged,
            contender.tolerance, tuple(launches),
        )  # fmt: skip

    def _compare(self, contender: Contender, held: Mapping[str, Tensor]) -> tuple[Finding, str]:
        precision = replace(contender.precision, truncating_store=interpreted())
        question = contender.question(self.inputs)
        ask = self._verify if self.inputs.row.is_verify else self._commit
        requests = _spread(self.inputs.row.requests, contender.judged_requests)
        worst = Finding(Outcome.PASS)
        for answer, tensors in ask(question, held, precision, requests):
            if not answer.in_range:
                return Finding(Outcome.OUT_OF_RANGE, detail="an intermediate leaves fp32"), ""
            worst = _worse(worst, compare(tensors, answer, contender.grain))
        return worst, self._judged(requests)

    def _judged(self, requests: Sequence[int]) -> str:
        row = self.inputs.row
        if row.layers > 1:
            few = len(_spread(row.requests, FEW))
            layers = len(_spread(row.layers, JUDGED_LAYERS))
            return f"{few} of {row.requests} requests in {layers} of {row.layers} layers"
        return f"{len(requests)} of {row.requests} requests"

    def _verify(
        self,
        question: Built,
        held: Mapping[str, Tensor],
        precision: Precision,
        requests: Sequence[int],
    ) -> Iterator[tuple[Answer, Mapping[str, Tensor]]]:
        row = self.inputs.row
        asked = {**question.arguments, **self._originals(question)}
        step = max(1, SLICE_BYTES // (row.tokens * row.heads * SIZE * SIZE * 8))
        for first in range(0, len(requests), step):
            part = tuple(requests[first : first + step])
            key = (question.case, precision, part)
            answer = self._answers.get(key)
            if answer is None:
                oracle = kda_ref.kda_mtp_verify(
                    **asked, max_tokens=row.tokens, precision=precision, only=part
                )
                wanted = verify_expectations(question, oracle, precision, part)
                answer = Answer(tuple(wanted), oracle.in_range)
                if len(requests) <= FEW:
                    self._answers[key] = answer
            yield answer, held

    def _commit(
        self,
        question: Built,
        held: Mapping[str, Tensor],
        precision: Precision,
        requests: Sequence[int],
    ) -> Iterator[tuple[Answer, Mapping[str, Tensor]]]:
        row, arguments = self.inputs.row, {**question.arguments, **self._originals(question)}
        if row.layers > 1:
            requests = _spread(row.requests, FEW)
        some = torch.tensor(requests, device=arguments["ssm_state_indices"].device)
        for name in ("ssm_state_indices", "accept_lens"):
            arguments[name] = arguments[name][some]
        buffers = ("checkpoint_state", "rawv", "rawk", "gk", "beta")
        case = replace(question.case, layers=0)
        for layer in _spread(row.layers, JUDGED_LAYERS):
            one = dict(arguments)
            state = held["checkpoint_state"]
            if row.layers > 1:
                one |= {name: arguments[name][layer] for name in buffers}
                state = state[layer]
            answer = expect(replace(question, case=case, arguments=one), precision)
            yield answer, {"checkpoint_state": state}

    def _originals(self, question: Built) -> dict[str, Tensor]:
        """Operands as they were before the call, of those the question shares with the row."""
        mine = self.inputs.built.arguments
        return {
            name: self.before[name]
            for name, tensor in question.arguments.items()
            if name in self.before and tensor is mine[name]
        }

    def _trespass(self, contender: Contender, elsewhere: Mapping[str, Tensor]) -> Finding | None:
        """Find a changed operand or a written slot that no request lists."""
        arguments, row = self.inputs.built.arguments, self.inputs.row
        for name, before in self.before.items():
            now = arguments[name]
            if name == "checkpoint_state":
                axis, accepted = now.ndim - 4, self.before["accept_lens"] > 0
                written = self.before["ssm_state_indices"][accepted]
                spare = _unlisted(written, row.requests + SPARE)
                before, now = (x.index_select(axis, spare) for x in (before, now))
            if name not in contender.also_writes and not torch.equal(before, now):
                return Finding(Outcome.WROTE_OUTSIDE, name, detail="bytes it does not own changed")
        for name in self.inputs.outputs:
            if name == "out" or name in elsewhere:
                continue
            is_ring = name.startswith("replayssm")
            listed = "ssm_state_indices" if is_ring else "intermediate_state_indices"
            spare = _unlisted(arguments[listed], row.requests + SPARE)
            if not bool(torch.isnan(arguments[name][spare]).all()):
                detail = "a slot or row that no request lists was written"
                return Finding(Outcome.WROTE_OUTSIDE, name, detail=detail)
        return None

    def _restore(self) -> None:
        for name, before in self.before.items():
            self.inputs.built.arguments[name].copy_(before)


def _spread(count: int, most: int | None) -> tuple[int, ...]:
    """At most so many positions of a range, the first and the last among them."""
    if most is None or count <= most:
        return tuple(range(count))
    return tuple(i * (count - 1) // (most - 1) for i in range(most))


def _unlisted(indices: Tensor, slots: int) -> Tensor:
    listed = set(indices.tolist())
    free = [slot for slot in range(slots) if slot not in listed]
    return torch.tensor(free, device=indices.device)


def _worse(a: Finding, b: Finding) -> Finding:
    return max(a, b, key=lambda found: (found.outcome != Outcome.PASS, found.ratio))
