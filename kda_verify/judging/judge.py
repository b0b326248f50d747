"""Judge one case for one subject: build, ask the oracle, call, compare."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kda_ref import UNIT_ROUNDOFF, Precision

from ..cases.build import Built, build
from ..cases.case import Case
from ..operations.registry import operation
from ..subjects.base import Subject, effective_precision, poisoned_allocations, recorded_kernels
from .answer import Answer
from .compare import Finding, check_aliasing, check_returned, compare
from .expect import expect
from .sensitivity import smallest
from .verdict import Outcome, Verdict


def judge(
    case: Case, subject: Subject, device: str = "cpu", *, sensitivity: bool = False
) -> Verdict:
    """Put a subject to a case and return the verdict.

    The order is that of `Outcome`: support, range, exceptions, launches, shape, dtype, aliasing,
    frame, non-finite values, budget.

    Args:
        case: what to run.
        subject: whose kernel.
        device: where the operands live; the oracle always computes on the CPU.
        sensitivity: also find the smallest fault that a passing case would have shown.
    """
    start = time.perf_counter()
    smallest_faults: dict[str, dict[str, float]] = {}

    def verdict(finding: Finding, kernels: list[str], precision_class: str = "") -> Verdict:
        return Verdict(
            finding.outcome,
            subject.name,
            case,
            where=finding.where,
            ratio=finding.ratio,
            ratios=dict(finding.ratios or {}),
            positions={k: tuple(v) for k, v in (finding.positions or {}).items()},
            detail=finding.detail,
            precision_class=precision_class,
            sensitivity=smallest_faults,
            kernels=tuple(dict.fromkeys(kernels)),
            seconds=time.perf_counter() - start,
        )

    if subject.operation != case.operation:
        reason = f"it answers {subject.operation} cases"
        return verdict(Finding(Outcome.NOT_SUPPORTED, detail=reason), [])
    if reason := subject.claims.refusal(case):
        return verdict(Finding(Outcome.NOT_SUPPORTED, detail=reason), [])
    if reason := subject.unavailable():
        return verdict(Finding(Outcome.NOT_RUN, detail=reason), [])

    precision = effective_precision(subject.claims)
    answer = expect(build(case), precision)
    if case.spoil == "none" and not answer.finite:
        raise RuntimeError(
            f"the oracle is not finite on {case.to_json()}: the case was built wrong"
        )
    if case.spoil == "none" and not answer.in_range:
        return verdict(Finding(Outcome.OUT_OF_RANGE, detail="an intermediate leaves fp32"), [])

    built = build(case, device)
    built.frame.snapshot()
    with recorded_kernels() as kernels, poisoned_allocations():
        try:
            returned = subject.call(built)
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as problem:  # whatever a kernel raises is its verdict
            text = f"{type(problem).__name__}: {problem}"
            return verdict(Finding(Outcome.RAISED, detail=text.splitlines()[0]), kernels)
    if subject.claims.triton and case.busy and not kernels:
        reason = "there are tokens to advance, and no Triton kernel was launched"
        return verdict(Finding(Outcome.NO_KERNEL, detail=reason), [])
    finding = examine(built, returned, answer, subject)
    found = ""
    if finding.outcome in (Outcome.PASS, Outcome.INCORRECT) and not case.exact:
        found = _precision_class(finding, built, returned, subject, precision)
    if sensitivity and finding.outcome == Outcome.PASS:
        left = {**_tensors(built), **returned}
        smallest_faults = smallest(left, answer, subject.claims.grain, case.seed)
    return verdict(finding, kernels, found)


def examine(
    built: Built, returned: Mapping[str, Tensor], answer: Answer, subject: Subject
) -> Finding:
    """Compare what a call returned and left behind with the oracle's answer.

    Args:
        built: the call's operands, their frame remembered before it.
        returned: what the call returned.
        answer: of the oracle.
        subject: whose grain and claims hold.
    """
    arguments = built.arguments
    declared = operation(built.case.operation).returns(built)
    shapes = {name: shape for name, (shape, _) in declared.items()}
    dtypes = {name: dtype for name, (_, dtype) in declared.items()}
    finding = check_returned(returned, shapes, dtypes)
    if finding is None:
        given = _tensors(built)
        finding = check_aliasing(returned, given, given.values())
    if finding is None:
        trespasses = built.frame.trespasses(answer.owned(arguments))
        if trespasses:
            name, place = trespasses[0]
            more = f" and {len(trespasses) - 1} more" if len(trespasses) > 1 else ""
            detail = f"bytes the call does not own changed{more}"
            finding = Finding(Outcome.WROTE_OUTSIDE, f"{name} {place}", detail=detail)
    if finding is None:
        finding = compare({**_tensors(built), **returned}, answer, subject.claims.grain)
    return finding


def _tensors(built: Built) -> dict[str, Tensor]:
    return {name: value for name, value in built.arguments.items() if isinstance(value, Tensor)}


def _precision_class(
    finding: Finding,
    built: Built,
    returned: Mapping[str, Tensor],
    subject: Subject,
    precision: Precision,
) -> str:
    """Name the tightest class whose budget the result keeps."""
    passed = finding.outcome == Outcome.PASS
    for name, unit in UNIT_ROUNDOFF.items():
        if unit == precision.products:
            if passed:
                return name
            continue
        if (unit > precision.products) == passed:
            continue
        other = expect(build(built.case), replace(precision, products=unit))
        if (
            compare({**_tensors(built), **returned}, other, subject.claims.grain).outcome
            == Outcome.PASS
        ):
            return name
    return "declared" if passed else "none"
