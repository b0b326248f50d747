"""States that sequences leave in a pool are judged: a right kernel passes, a wrong one does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import kda_ref
from kda_verify.cases import strategies
from kda_verify.cases.build import Built
from kda_verify.cases.case import Case
from kda_verify.determinism import in_any_order, repeat
from kda_verify.faults.planted import FAULTS, Planted
from kda_verify.judging.judge import judge
from kda_verify.judging.verdict import Outcome
from kda_verify.laws.catalogue import LAWS, Law, check
from kda_verify.laws.results import lengths
from kda_verify.plan import drawn
from kda_verify.subjects.base import Claims

WRONG = (Outcome.INCORRECT, Outcome.NON_FINITE)
Fault = Callable[[Built, dict[str, Tensor]], None]


def nothing(built: Built, before: dict[str, Tensor]) -> None:
    """Leave a right answer as it is."""


@dataclass(frozen=True)
class InPlace:
    """A kernel that advances the slots of a pool: the oracle, token by token, states in fp32.

    Attributes:
        fault: done to the operands afterwards, given copies of those before.
    """

    fault: Fault = nothing
    name: str = "in-place"
    operation: str = "recurrent"
    claims: Claims = Claims(triton=False)

    def unavailable(self) -> str:
        """It runs everywhere."""
        return ""

    def call(self, built: Built) -> dict[str, Tensor]:
        """Advance every listed slot, and round its state to the pool's dtype once."""
        arguments = built.arguments
        before = {k: v.clone() for k, v in arguments.items() if isinstance(v, Tensor)}
        rows = {name: arguments[name].flatten(0, 1) for name in ("q", "k", "v", "g", "beta")}
        left_out = ("cu_seqlens", "ssm_state_indices", "initial_state", "update_pool", *rows)
        rest = {k: v for k, v in arguments.items() if k not in left_out}
        out, pool, start = torch.zeros_like(arguments["v"]), arguments["initial_state"], 0
        slots = arguments["ssm_state_indices"].tolist()
        for slot, length in zip(slots, lengths(arguments), strict=True):
            state = pool[slot].float()
            for t in range(start, start + length) if slot >= 0 else ():
                token = {name: row[t][None, None] for name, row in rows.items()}
                result = kda_ref.kda_recurrent(**token, **rest, initial_state=state[None])
                out.flatten(0, 1)[t] = result.out.value[0, 0].to(out.dtype)
                state = result.final_state.value[0].float()
            if slot >= 0:
                pool[slot] = state.to(pool.dtype)
            start += length
        self.fault(built, before)
        return {"out": out}


@cache
def telling(exact: bool = False) -> tuple[Case, ...]:
    """Draw cases in which every fault shows: tokens, padding, and a slot that nobody lists."""
    strategy = strategies.pooled_recurrent_cases(sizes=(16, 24), exact=exact)
    cases: list[Case] = drawn(strategy, 200, 1)
    # A scale of zero leaves no output to be wrong; a gate of the exact family forgets at times.
    rest: dict[str, Any] = {} if exact else {"keys": "random", "scale": None, "gates": "mild"}
    chosen = [
        replace(c, spare_slots=2, spoil="none", states="asymmetric", betas="random", **rest)
        for c in cases
        if c.busy and c.padding
    ]
    return tuple(dict.fromkeys(replace(c, values="unit") for c in chosen))[:6]


def slots_of(built: Built) -> list[int]:
    """List the slots that a call advances."""
    return [built.slots[n] for n in built.case.busy]


@pytest.mark.parametrize("exact", [False, True])
def test_a_right_kernel_passes(exact: bool, device: str) -> None:
    cases = telling(exact)
    assert len(cases) == 6
    for case in cases:
        verdict = judge(case, InPlace(), device, sensitivity=True)
        assert verdict.outcome == Outcome.PASS, str(verdict)
        assert "initial_state" in verdict.ratios
        assert any(name.startswith("initial_state ") for name in verdict.sensitivity)
        assert repeat(case, InPlace(), device).outcome == Outcome.PASS


def test_a_right_kernel_passes_among_other_calls(device: str) -> None:
    assert in_any_order(telling()[0], InPlace(), device).outcome == Outcome.PASS


@pytest.mark.parametrize("fault", FAULTS)
def test_wrapped_faults_are_found(fault: str, device: str) -> None:
    for case in telling():
        verdict = judge(case, Planted(InPlace(), fault), device)
        assert verdict.outcome in WRONG, str(verdict)


def unwritten(built: Built, before: dict[str, Tensor]) -> None:
    """States stay in registers."""
    built.arguments["initial_state"].copy_(before["initial_state"])


def a_token_late(built: Built, before: dict[str, Tensor]) -> None:
    """The last token is left out of the state."""
    arguments = dict(built.arguments)
    arguments["initial_state"] = before["initial_state"].clone()
    for name in ("k", "v"):
        arguments[name] = arguments[name].clone()
    last = [sum(built.case.lengths[: n + 1]) - 1 for n in built.case.busy]
    arguments["v"].flatten(0, 1)[last] = 0.0
    kda_ref.kda_recurrent(**arguments)
    built.arguments["initial_state"].copy_(arguments["initial_state"])


def exchanged(built: Built, before: dict[str, Tensor]) -> None:
    """States go one head on."""
    pool = built.arguments["initial_state"]
    for slot in slots_of(built):
        pool[slot] = pool[slot].clone().roll(1, -1)


def off_by_one(built: Built, before: dict[str, Tensor]) -> None:
    """States go into the slot after."""
    pool, after = built.arguments["initial_state"], built.arguments["initial_state"].clone()
    pool.copy_(before["initial_state"])
    for slot in slots_of(built):
        pool[(slot + 1) % len(pool)] = after[slot]


def padding_writes(built: Built, before: dict[str, Tensor]) -> None:
    """Padding writes the last slot, as a negative index does."""
    idle = set(range(len(built.arguments["initial_state"]))) - set(slots_of(built))
    built.arguments["initial_state"][max(idle)] = 0.0


def rounded_every_token(built: Built, before: dict[str, Tensor]) -> None:
    """A narrow state is stored, and read back, after every token."""
    arguments = {**built.arguments, "initial_state": before["initial_state"].clone()}
    for name in ("q", "k", "v", "g", "beta"):
        arguments[name] = arguments[name].flatten(0, 1)[None]
    ends = torch.tensor(lengths(built.arguments)).cumsum(0)
    starts = ends - torch.tensor(lengths(built.arguments))
    for t in range(max(built.case.lengths)):
        for n, slot in enumerate(built.slots):
            at = int(starts[n]) + t
            if slot >= 0 and at < int(ends[n]):
                one = {k: arguments[k][:, at : at + 1] for k in ("q", "k", "v", "g", "beta")}
                index = {"cu_seqlens": None, "ssm_state_indices": torch.tensor([slot])}
                kda_ref.kda_recurrent(**{**arguments, **one, **index})
    built.arguments["initial_state"].copy_(arguments["initial_state"])


def truncated(built: Built, before: dict[str, Tensor]) -> None:
    """A narrow state is stored without its lower bits, not rounded."""
    arguments = {**built.arguments, "initial_state": before["initial_state"].clone()}
    kda_ref.kda_recurrent(**arguments, precision=kda_ref.Precision(truncating_store=True))
    built.arguments["initial_state"].copy_(arguments["initial_state"])


NARROW = [(rounded_every_token, 6), (truncated, 1)]


@pytest.mark.parametrize(("fault", "tokens"), NARROW, ids=[f.__name__ for f, _ in NARROW])
def test_a_narrow_state_is_rounded_once(fault: Fault, tokens: int, device: str) -> None:
    """Roundings add up where little decays: enough of them leave what one rounding may do."""
    case = Case(
        operation="recurrent", lengths=(tokens, tokens), capacity=tokens, conv=False, size_k=64,
        gates="slow", initial="pool", state_dtype="bfloat16", dtype="bfloat16", seed=3,
    )  # fmt: skip
    assert judge(case, InPlace(), device).outcome == Outcome.PASS
    verdict = judge(case, InPlace(fault), device)
    assert verdict.outcome == Outcome.INCORRECT, str(verdict)
    assert verdict.where.startswith("initial_state[")


PLANTED: list[tuple[Fault, tuple[Outcome, ...]]] = [
    (unwritten, WRONG),
    (a_token_late, WRONG),
    (exchanged, WRONG),
    (off_by_one, (Outcome.WROTE_OUTSIDE,)),
    (padding_writes, (Outcome.WROTE_OUTSIDE,)),
]


@pytest.mark.parametrize(("fault", "outcomes"), PLANTED, ids=[f.__name__ for f, _ in PLANTED])
def test_planted_faults_are_found(
    fault: Fault, outcomes: tuple[Outcome, ...], device: str
) -> None:  # fmt: skip
    for case in telling():
        verdict = judge(case, InPlace(fault), device)
        assert verdict.outcome in outcomes, str(verdict)


@pytest.mark.parametrize("law", [x for x in LAWS if x.operation == "recurrent"], ids=str)
def test_laws_are_asked_of_a_pool(law: Law, device: str) -> None:
    for case in telling()[:3]:
        breach = check(law, case, {"recurrent": InPlace()}, device)
        assert breach is None, str(breach)


def test_laws_see_the_states_of_a_pool(device: str) -> None:
    law = next(x for x in LAWS if str(x) == "recurrent: split and resume")
    for case in telling()[:3]:
        assert check(law, case, {"recurrent": InPlace(unwritten)}, device) is not None
