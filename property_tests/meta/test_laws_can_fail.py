"""Every law notices a kernel that breaks it: a real one, spoiled just so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kda_verify.cases.build import Built
from kda_verify.cases.case import Case
from kda_verify.laws.catalogue import LAWS, Law, check
from kda_verify.operations import facts
from kda_verify.subjects import Subject, find

Operands = dict[str, Any]
Fault = Callable[[Operands], None]

SUBJECTS = {
    "verify": find("kda_mtp_verify"),
    "commit": find("kda_replay_commit"),
    "conv_commit": find("kda_conv_commit"),
    "recurrent": find("fla.fused_recurrent_kda"),
}
_DIMS: dict[str, Any] = dict(size_k=16, size_v=20, lengths=(3, 1, 2), capacity=3, seed=3)
_LAYOUT: dict[str, Any] = dict(pool="pitched", conv_pool="transposed", index_stride=2)
CASES = {
    "verify": Case(**_DIMS, **_LAYOUT, rows="packed", records=("windows",), out_norm=True),
    "commit": Case(operation="commit", **_DIMS, **_LAYOUT, conv=False, gate_form="given"),
    "conv_commit": Case(operation="conv_commit", **_DIMS, **_LAYOUT),
    "recurrent": Case(
        operation="recurrent", **_DIMS, rows="packed", conv=False, gate_form="softplus"
    ),
}


class Spoiled:
    """A subject that spoils, in place, what the kernel inside left behind."""

    def __init__(self, subject: Subject, fault: Fault) -> None:
        self.subject, self.fault = subject, fault
        self.name, self.operation, self.claims = subject.name, subject.operation, subject.claims

    def unavailable(self) -> str:
        return self.subject.unavailable()

    def call(self, built: Built) -> dict[str, Tensor]:
        returned = self.subject.call(built)
        self.fault({**built.arguments, **returned})
        return returned


def lengths(o: Operands) -> list[int]:
    if "accept_lens" in o:
        return o["accept_lens"].tolist()
    if "cu_seqlens" not in o:
        return [o["q"].shape[1]] * o["q"].shape[0]
    return o["cu_seqlens"].diff().tolist()


def parts(o: Operands) -> list[tuple[int, Tensor]]:
    """The main result of every live request, a view: rows of `out`, or its slot of a pool."""
    live = [True] * len(lengths(o))
    if "ssm_state_indices" in o:
        live = [slot >= 0 for slot in o["ssm_state_indices"].tolist()]
    if "accept_lens" not in o:
        split = o["out"].flatten(0, 1)[: sum(lengths(o))].split(lengths(o))
        return [(n, rows) for n, rows in enumerate(split) if live[n]]
    pool = o["checkpoint_state"] if "checkpoint_state" in o else o["cs_q"]
    layered = pool.ndim == (5 if "checkpoint_state" in o else 4)
    slots = o["ssm_state_indices"].tolist()
    accepted = [n for n, count in enumerate(lengths(o)) if live[n] and count]
    return [(n, pool[:, slots[n]] if layered else pool[slots[n]]) for n in accepted]


def nudge(x: Tensor) -> None:
    """Flip the last bit of every element."""
    width = {2: torch.int16, 4: torch.int32}[x.element_size()]
    x.view(width).bitwise_xor_(1)


def if_(condition: Callable[[Operands], bool]) -> Fault:
    """Nudge the main results of calls for which a condition holds."""

    def fault(o: Operands) -> None:
        for _, part in parts(o) if condition(o) else ():
            nudge(part)

    return fault


def ring_if(condition: Callable[[Operands], bool]) -> Fault:
    """Nudge a ring of calls for which a condition holds."""
    return lambda o: nudge(o["replayssm_g"]) if condition(o) else None


def at_request(chosen: Callable[[Operands, int], bool]) -> Fault:
    """Nudge the main results of some requests."""

    def fault(o: Operands) -> None:
        for n, part in parts(o):
            if chosen(o, n):
                nudge(part)

    return fault


def first_of(axis: int) -> Fault:
    """Nudge what lies at the start of an axis, counted from the last."""

    def fault(o: Operands) -> None:
        for _, part in parts(o):
            nudge(part.narrow(axis, 0, 1))

    return fault


def add(amount: Callable[[Operands, int], float | Tensor]) -> Fault:
    """Add an amount that may depend on the call to the main results."""

    def fault(o: Operands) -> None:
        for n, part in parts(o):
            part += amount(o, n)

    return fault


def every_other_call() -> Fault:
    calls = itertools.count()
    return if_(lambda o: next(calls) % 2 == 1)


def slot(o: Operands, n: int) -> int:
    return int(o["ssm_state_indices"][n])


def row(o: Operands, n: int) -> int:
    return int(o["intermediate_state_indices"][n])


def count(o: Operands) -> int:
    return len(lengths(o))


def last_token(o: Operands, n: int) -> float:
    x = o["x_v"] if "x_v" in o else o["v"]
    return float(x.flatten(0, 1)[sum(lengths(o)[: n + 1]) - 1].double().sum())


def channel(*names: str) -> Fault:
    """Add the first key channel of a live row to everything."""
    return add(lambda o, n: float(_entry(o, names)[..., 0].nan_to_num(0.0).double().sum()))


def channels(*names: str) -> Fault:
    """Add all the channels of an operand to everything."""
    return add(lambda o, n: float(_entry(o, names).nan_to_num(0.0).clamp(-9, 9).double().sum()))


def _entry(o: Operands, names: tuple[str, ...]) -> Tensor:
    return next(o[name] for name in names if name in o)


def late_padding(o: Operands) -> bool:
    """Whether padding stands before a live request."""
    slots = o["ssm_state_indices"].tolist()
    return any(a < 0 <= b for a, b in itertools.combinations(slots, 2))


def dirty_padding(o: Operands) -> None:
    o["out"][:] = torch.where(o["out"] == 0, 1.0, o["out"])


def dirty_slack(o: Operands) -> None:
    o["out"][:, sum(lengths(o)) :] = 1.0


def tracked_late(o: Operands) -> None:
    for index in o.get("mamba_track_indices", torch.empty(0)).tolist():
        nudge(o["checkpoint_state"][index])


def stale_window(o: Operands) -> None:
    for _, pool in parts(o):
        pool[..., 0] += 1.0


def nudge_snapshots(o: Operands) -> None:
    """The second half of a draft starts from a state that is off by one per cent."""
    o["intermediate_ssm"] *= 1.01


def single_token_window(o: Operands) -> None:
    if o.get("intermediate_conv_q") is not None:
        o["intermediate_conv_q"] *= 2.0


def has_gaps(o: Operands) -> bool:
    return any(not x.is_contiguous() for x in o.values() if isinstance(x, Tensor))


def has_infinity(o: Operands) -> bool:
    """Whether anything given is infinite: pools are poisoned with NaN, and no case draws any."""
    return any(bool(x.isinf().any()) for x in o.values() if isinstance(x, Tensor))


def is_stacked(o: Operands) -> bool:
    return o["gk"].ndim == 5 if "gk" in o else o["cs_q"].ndim == 4


def first_row(o: Operands) -> None:
    """The first token of a call is treated unlike the others."""
    for _, part in parts(o):
        part[:1] += 1.0


Q, K, V = ("x_q", "q", "rawk"), ("x_k", "k", "rawk"), ("x_v", "v", "rawv")
FAULTS: dict[str, dict[str, Fault]] = {
    "repeat": {"every other call": every_other_call()},
    "strides": {"gaps": if_(has_gaps)},
    "permute requests": {"first request": at_request(lambda o, n: n == 0)},
    "permute slots and rows": {"slot": add(slot)},
    "permute heads": {"first head": first_of(-2), "first state head": first_of(-3)},
    "padding position": {"late padding": if_(late_padding)},
    "packed = separate": {"in company": if_(lambda o: count(o) > 1)},
    "drop a request": {"three": if_(lambda o: count(o) == 3)},
    "causality": {"last token": add(last_token)},
    "containment of requests": {"infinity": if_(has_infinity)},
    "containment of slots": {"infinity": if_(has_infinity)},
    "containment of heads": {"infinity": if_(has_infinity)},
    "slack rows": {
        "slack": if_(lambda o: o["out"].shape[1] > sum(lengths(o))),
        "not cleared": dirty_slack,
    },
    "spare capacity": {"power of two": if_(lambda o: o["max_tokens"] == 4)},
    "next capacity": {"capacity": add(lambda o, n: o["max_tokens"])},
    "records alone": {
        "norm": ring_if(lambda o: "onorm_gate" in o),
        "alone": ring_if(lambda o: count(o) == 1),
        "state": ring_if(lambda o: bool(o["recurrent_state"].isnan().all())),
    },
    "silent snapshots": {"snapshots": if_(lambda o: o.get("intermediate_ssm") is not None)},
    "batched = packed": {"packed": add(lambda o, n: float("cu_seqlens" in o))},
    "all layers = each layer": {"stacked": if_(is_stacked)},
    "entries past the accepted": {"deep": if_(lambda o: o["gk"].shape[-2] > 3)},
    "tracked step": {"tracked": tracked_late},
    "permute value columns": {"first column": first_of(-1), "first state column": first_of(-2)},
    "permute normed columns": {"first column": add(lambda o, n: torch.eye(20)[0])},
    "permute key channels": {"first channel": channel(*K)},
    "permute conv channels": {"first channel": first_of(-2)},
    "flip key channels": {"sum of q": channels(*Q)},
    "negate k and v": {"sum of k": channels(*K), "sum of v": channels(*V)},
    "scale v and S": {"constant": add(lambda o, n: 1.0)},
    "additivity": {"constant": add(lambda o, n: 1.0)},
    "idle token": {"length": add(lambda o, n: lengths(o)[n])},
    "split and resume": {"first row": first_row, "once a call": add(lambda o, n: 1.0)},
    "verify then commit": {},
}  # fmt: skip
EXTRA: list[tuple[str, str, str, str, Fault]] = [
    ("verify", "permute slots and rows", "verify", "row", add(row)),
    ("verify", "padding position", "verify", "not cleared", dirty_padding),
    ("verify", "split and resume", "verify", "state", nudge_snapshots),
    ("verify", "split and resume", "conv_commit", "window", stale_window),
    ("verify", "verify then commit", "verify", "ring", lambda o: (
        o["replayssm_beta"].mul_(1.01) if "replayssm_beta" in o else None)),
    ("verify", "verify then commit", "verify", "windows of one token", lambda o: (
        single_token_window(o) if o["max_tokens"] == 1 else None)),
    ("verify", "verify then commit", "commit", "accepted", add(lambda o, n: 0.01)),
    ("verify", "verify then commit", "conv_commit", "some windows", at_request(
        lambda o, n: lengths(o)[n] == 2)),
]  # fmt: skip
NOT_FOR = {
    # A state has its head at -3 and its column at -2, a row has them at -2 and -1.
    ("verify", "first state head"), ("recurrent", "first state head"), ("commit", "first head"),
    ("verify", "first state column"), ("recurrent", "first state column"),
    ("commit", "first column"),
    # A state has no rows; a sum over calls is seen in states only.
    ("commit", "first row"), ("verify", "once a call"), ("recurrent", "once a call"),
}  # fmt: skip
TABLE = [
    (law.operation, law.name, law.operation, label, fault)
    for law in LAWS
    for label, fault in FAULTS[law.name].items()
    if (law.operation, label) not in NOT_FOR
] + EXTRA


def law_of(operation: str, name: str) -> Law:
    return next(law for law in LAWS if (law.operation, law.name) == (operation, name))


def require(operation: str) -> None:
    if operation == "recurrent":
        pytest.importorskip("fla", reason="fla-core is not installed")


@pytest.mark.parametrize(
    ("operation", "name", "spoiled", "fault"),
    [(operation, name, spoiled, fault) for operation, name, spoiled, _, fault in TABLE],
    ids=[f"{o}-{name}-{s}-{label}" for o, name, s, label, _ in TABLE],
)
def test_notices(operation: str, name: str, spoiled: str, fault: Fault, device: str) -> None:
    require(operation)
    subjects = {**SUBJECTS, spoiled: Spoiled(SUBJECTS[spoiled], fault)}
    breach = check(law_of(operation, name), CASES[operation], subjects, device)
    assert breach is not None
    assert str(breach).startswith(f"{operation}: {name} broken at pair ")
    assert Case.from_json(str(breach).rsplit("case: ", 1)[1]) == breach.case


def test_every_law_has_a_fault() -> None:
    covered = {(operation, name) for operation, name, *_ in TABLE}
    assert covered == {(law.operation, law.name) for law in LAWS}


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_fit_is_settled(law: Law) -> None:
    padding = (0,) if facts(law.operation).pooled else ()
    case = law.fit(replace(CASES[law.operation], padding=padding))
    assert law.fit(case) == case
    assert facts(law.operation).family in law.exactness
