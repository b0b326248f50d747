"""The judge refuses wrong subjects that a comparison of numbers alone would let through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import kda_ref
from kda_verify import fixtures, stages
from kda_verify.cases import strategies
from kda_verify.cases.build import Built, build
from kda_verify.cases.case import Case
from kda_verify.determinism import in_any_order, other_contents, repeat
from kda_verify.judging.expect import expect
from kda_verify.judging.judge import judge
from kda_verify.judging.verdict import Outcome
from kda_verify.plan import drawn
from kda_verify.subjects import Claims, Subject, find
from kda_verify.subjects.base import effective_precision

VERIFY = Case(lengths=(2, 1), capacity=2, records=("rings", "snapshots"), heads=2, size_k=32)
RECURRENT = Case(operation="recurrent", conv=False, lengths=(2, 3), capacity=3)
Change = Callable[[Built, dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Altered:
    """A real subject whose result is changed afterwards."""

    inner: Subject
    change: Change

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def operation(self) -> str:
        return self.inner.operation

    @property
    def claims(self) -> Claims:
        return self.inner.claims

    def unavailable(self) -> str:
        return self.inner.unavailable()

    def call(self, built: Built) -> dict[str, Tensor]:
        return self.change(built, self.inner.call(built))


def outcome(case: Case, change: Change, device: str) -> Outcome:
    name = "fla.fused_recurrent_kda" if case.operation == "recurrent" else "kda_mtp_verify"
    assert judge(case, find(name), device).outcome in (Outcome.PASS, Outcome.NOT_RUN)
    return judge(case, Altered(find(name), change), device).outcome


@pytest.mark.parametrize("out_given", [False, True])
def test_a_subject_must_return_what_its_operation_returns(out_given: bool, device: str) -> None:
    case = replace(VERIFY, out_given=out_given)
    assert outcome(case, lambda _, returned: {}, device) == Outcome.WRONG_SHAPE
    nothing: Change = lambda _, returned: {"out": None}  # type: ignore[dict-item]  # noqa: E731
    assert outcome(case, nothing, device) == Outcome.WRONG_SHAPE


@pytest.mark.parametrize("spoil", ["nan", "inf"])
@pytest.mark.parametrize("case", [VERIFY, RECURRENT], ids=lambda c: c.operation)
def test_a_non_finite_input_may_not_be_swallowed(case: Case, spoil: str, device: str) -> None:
    def swallow(_: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: x.nan_to_num(7.0, 7.0, 7.0) for n, x in returned.items()}

    assert outcome(replace(case, spoil=spoil), swallow, device) == Outcome.NON_FINITE


@pytest.mark.parametrize("case", [VERIFY, RECURRENT], ids=lambda c: c.operation)
def test_a_non_finite_input_may_not_reach_another_request(case: Case, device: str) -> None:
    def spread(built: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        for x in returned.values():
            x.view(-1)[-1] = torch.nan  # The last request is not the spoiled one.
        return returned

    assert outcome(replace(case, spoil="nan"), spread, device) == Outcome.NON_FINITE


def test_a_drawn_case_without_spoilt_input_expects_finite_values_only() -> None:
    for case in drawn(strategies.verify_cases(), 30, start=3):
        answer = expect(build(case), effective_precision(find("kda_mtp_verify").claims))
        finite = all(bool(torch.isfinite(e.want.value).all()) for e in answer.expectations)
        assert finite or case.spoil != "none" or not answer.in_range


def test_snapshots_are_judged_by_column_norm(device: str) -> None:
    """An error of 0.9 of the bound in every element exceeds it as a column."""
    answer = expect(build(VERIFY), effective_precision(find("kda_mtp_verify").claims))
    bounds = [e for e in answer.expectations if e.operand == "intermediate_ssm"]

    def shift(built: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        snapshots = built.arguments["intermediate_ssm"]
        for e in bounds:
            snapshots[e.index] += (0.9 * e.want.error).to(snapshots)
        return returned

    assert outcome(VERIFY, shift, device) == Outcome.INCORRECT


def test_memory_a_kernel_allocates_is_poisoned(device: str) -> None:
    seen: list[Tensor] = []

    def allocate(_: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(torch.empty(64, device=device))
        return returned

    judge(VERIFY, Altered(find("kda_mtp_verify"), allocate), device)
    assert bool(seen[0].isnan().all())


def test_a_kernel_that_kills_its_process_gets_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch goes again alone; where that dies too, the case under way is blamed."""
    from concurrent.futures.process import BrokenProcessPool
    from pathlib import Path

    from kda_verify import run
    from kda_verify.plan import Batch, Draws

    class Dead:
        """A pool whose process dies on the second case."""

        def __enter__(self) -> Dead:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, _: object, batch: Batch, device: str, trail: Path) -> Dead:
            trail.write_text(Case(heads=2).to_json())
            return self

        def result(self) -> None:
            raise BrokenProcessPool("a process ended abruptly")

    monkeypatch.setattr(run, "worker_pool", lambda workers: Dead())
    batch = Batch(Draws("kda_mtp_verify", "verify_cases", 2), seed=0)
    (verdict,) = run._alone(batch, "cpu")
    assert verdict.outcome == Outcome.RAISED
    assert verdict.case == Case(heads=2)
    assert "process died" in verdict.detail


def test_other_bits_at_a_repeat_are_noticed(device: str) -> None:
    calls: list[None] = []

    def drift(_: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(None)
        if len(calls) == 3:
            returned["out"].view(torch.int32).view(-1)[5] ^= 1
        return returned

    found = repeat(VERIFY, Altered(find("kda_mtp_verify"), drift), device)
    assert (found.outcome, found.where) == (Outcome.INCORRECT, "out")
    assert "call 3 of 3 gave other bits, element 5" in found.detail
    assert repeat(VERIFY, find("kda_mtp_verify"), device).outcome == Outcome.PASS


def test_an_answer_kept_by_address_is_noticed(device: str) -> None:
    # It holds what it has seen: a freed address would be given to other operands.
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def keep(built: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        x_v, out = built.arguments["x_v"], returned["out"]
        _, first = kept.setdefault(x_v.data_ptr(), (x_v, out.clone()))
        return {"out": out.copy_(first)}

    cached = Altered(find("kda_mtp_verify"), keep)
    assert repeat(VERIFY, cached, device).outcome == Outcome.PASS
    found = in_any_order(VERIFY, cached, device)
    assert (found.outcome, found.where) == (Outcome.INCORRECT, "out")
    assert "new contents at old addresses gave other bits" in found.detail
    assert found.case == other_contents(VERIFY)
    assert in_any_order(VERIFY, find("kda_mtp_verify"), device).outcome == Outcome.PASS


def test_a_scale_kept_by_address_is_noticed(device: str) -> None:
    # The contents move on and are noticed as new; a scale is a number, and is not.
    kept: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}

    def keep(built: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        x_v, out = built.arguments["x_v"], returned["out"]
        key = (x_v.data_ptr(), float(x_v.double().nansum()))
        _, first = kept.setdefault(key, (x_v, out.clone()))
        return {"out": out.copy_(first)}

    found = in_any_order(VERIFY, Altered(find("kda_mtp_verify"), keep), device)
    assert (found.outcome, found.where) == (Outcome.INCORRECT, "out")
    assert "new numbers at old addresses gave other bits" in found.detail


def test_an_answer_that_depends_on_earlier_calls_is_noticed(device: str) -> None:
    dtypes: set[torch.dtype] = set()

    def remember(built: Built, returned: dict[str, Tensor]) -> dict[str, Tensor]:
        dtypes.add(built.arguments["x_v"].dtype)
        if len(dtypes) > 1 and built.arguments["x_v"].dtype == torch.float32:
            returned["out"].view(torch.int32).view(-1)[5] ^= 1
        return returned

    found = in_any_order(VERIFY, Altered(find("kda_mtp_verify"), remember), device)
    assert (found.outcome, found.where, found.case) == (Outcome.INCORRECT, "out", VERIFY)
    assert "the call after others gave other bits, element 5" in found.detail


@dataclass(frozen=True)
class Fallback(Altered):
    """A subject that the oracle answers, to the last bit, and no kernel."""

    def call(self, built: Built) -> dict[str, Tensor]:
        answer = kda_ref.kda_mtp_verify(**built.arguments)
        return {"out": answer.out.value.to(built.arguments["x_v"])}


def test_an_answer_without_a_kernel_is_refused(device: str) -> None:
    case = replace(VERIFY, records=())
    fallback = Fallback(find("kda_mtp_verify"), lambda built, returned: returned)
    assert judge(case, fallback, device).outcome == Outcome.NO_KERNEL
    idle = replace(case, lengths=(0, 1), padding=(1,))
    assert judge(idle, fallback, device).outcome == Outcome.PASS


def test_a_stage_that_checks_nothing_or_breaks_does_not_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "DETERMINISM", ())
    monkeypatch.setattr(fixtures, "load_all", lambda: [])
    assert stages.determinism("cpu")[0] == "not-run"
    assert stages.regressions("cpu")[0] == "not-run"
    assert stages.tests("test_of_nothing_*.py")[0] == "not-run"
    broken = stages.timed("broken", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert (broken.outcome, broken.detail) == ("fail", "ZeroDivisionError: division by zero")
