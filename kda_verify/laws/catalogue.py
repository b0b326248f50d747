"""Metamorphic laws: two calls that must agree, without asking the oracle what either returns.

A law is bitwise where every algorithm of a family does the same arithmetic in the same order,
and within budget where it does not: then both sides may be as far from the truth as the oracle's
error bound allows, so they may differ by the sum of their bounds and by no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kda_ref import Precision

from ..cases.assembly import Built
from ..cases.build import build
from ..cases.case import Case
from ..cases.draw import Draw
from ..operations import NAMES, facts, having
from ..subjects.base import Subject, effective_precision
from . import axes, containment, pools, rows, schedule
from .calls import Call, bound_call, kernel_call
from .fit import (
    as_batch,
    finite,
    layered,
    linear,
    normed,
    packed,
    pre_processed,
    scalable,
    several,
    spacious,
    steps,
    tracked,
    uneven_capacity,
    wide_steps,
    with_idle_room,
    with_records,
    without_norm,
)
from .results import COLUMNS, OutOfRange, Results

Pairs = Iterator[tuple[Results, Results]]
BITWISE, BUDGET = "bitwise", "budget"

_ALWAYS = {"one-pass": BITWISE, "token-order": BITWISE}
_NEVER = {"one-pass": BUDGET, "token-order": BUDGET}
_IN_ORDER = {"one-pass": BUDGET, "token-order": BITWISE}


@dataclass(frozen=True)
class Law:
    """State that calls agree.

    Attributes:
        name: of the law; a law of several operations has one entry for each.
        operation: case operation it speaks about.
        pairs: makes the calls and yields results that must agree, in pairs with the same keys.
        exactness: "bitwise" or "budget" per kernel family.
        fit: the nearest case that the law can be asked of, and where it says something.
        bounds: bounds of the difference of every pair, where they are not the sum of the bounds
            of the calls: a call that starts from a computed state inherits its error.
        signed_zeros: a bitwise law tells -0 from 0; where signs are flipped a sum may not.
        needs: further operations that are called.
    """

    name: str
    operation: str
    pairs: Callable[[Built, Call, Draw], Pairs]
    exactness: Mapping[str, str]
    fit: Callable[[Case], Case] = packed
    bounds: Callable[[Built, Precision, Draw], Iterator[Results]] | None = None
    signed_zeros: bool = True
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.operation}: {self.name}"


@dataclass(frozen=True)
class Breach:
    """Say where two calls that must agree do not.

    Attributes:
        law: the law.
        case: the case, fitted to the law.
        where: pair, record, request and index of the worst element.
        detail: what either side holds, and how far apart they may be.
    """

    law: Law
    case: Case
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law} broken at {self.where}\n  {self.detail}\n  case: {self.case.to_json()}"


_EVERY = NAMES
_POOLED = having(lambda f: f.pooled)
_STATEFUL = having(lambda f: f.stateful)
_SEQUENCES = having(lambda f: f.sequences)
_LAYERED = having(lambda f: f.layered)


def _for(operations: tuple[str, ...], name: str, pairs: Callable[..., Pairs],
         exactness: Mapping[str, str], **more: object) -> tuple[Law, ...]:  # fmt: skip
    return tuple(Law(name, o, pairs, exactness, **more) for o in operations)  # type: ignore[arg-type]


LAWS: tuple[Law, ...] = (
    *_for(_EVERY, "repeat", pools.repeat, _ALWAYS),
    *_for(_EVERY, "strides", pools.strides, _ALWAYS),
    *_for(_EVERY, "permute requests", rows.permute_requests, _ALWAYS, fit=several),
    *_for(_POOLED, "permute slots and rows", pools.permute_slots, _ALWAYS, fit=several),
    *_for(_STATEFUL, "permute heads", axes.permute_heads, _ALWAYS, fit=spacious),
    *_for(_POOLED, "padding position", rows.padding_position, _ALWAYS, fit=several),
    *_for(_EVERY, "packed = separate", rows.separate, _ALWAYS, fit=several),
    *_for(_EVERY, "drop a request", rows.drop_request, _ALWAYS, fit=several),
    *_for(_SEQUENCES, "causality", rows.causality, _ALWAYS, fit=steps),
    *_for(_EVERY, "containment of requests", containment.requests, _ALWAYS, fit=several),
    *_for(_POOLED, "containment of slots", containment.slots, _ALWAYS, fit=several),
    *_for(_STATEFUL, "containment of heads", containment.heads, _ALWAYS, fit=spacious),
    Law("slack rows", "verify", rows.slack_rows, _ALWAYS),
    Law("spare capacity", "verify", rows.spare_capacity, _ALWAYS, fit=uneven_capacity),
    Law("next capacity", "verify", rows.next_capacity, _NEVER),
    Law("records alone", "verify", rows.records_alone, _ALWAYS, fit=with_records),
    Law("silent snapshots", "verify", rows.snapshots_silent, _ALWAYS, fit=with_records),
    Law("batched = packed", "recurrent", pools.batched, _NEVER, fit=as_batch),
    *_for(_LAYERED, "all layers = each layer", pools.layer_by_layer, _ALWAYS, fit=layered),
    Law("entries past the accepted", "commit", pools.past_accepted, _ALWAYS),
    Law("tracked step", "commit", pools.tracked_step, _ALWAYS, fit=tracked),
    *_for(_STATEFUL, "permute value columns", axes.permute_values, _ALWAYS, fit=without_norm),
    Law("permute normed columns", "verify", axes.permute_values, _NEVER, fit=normed),
    *_for(_STATEFUL, "permute key channels", axes.permute_keys, _NEVER),
    Law("permute conv channels", "conv_commit", axes.permute_channels, _ALWAYS),
    *_for(_STATEFUL, "flip key channels", axes.flip_channels, _ALWAYS, fit=pre_processed,
          signed_zeros=False),
    *_for(_STATEFUL, "negate k and v", axes.negate_pairs, _ALWAYS, fit=pre_processed,
          signed_zeros=False),
    *_for(_STATEFUL, "scale v and S", axes.scale_values, _ALWAYS, fit=scalable),
    *_for(_STATEFUL, "additivity", axes.additivity, _NEVER, fit=linear),
    *_for(_SEQUENCES, "idle token", axes.idle_token, _IN_ORDER,
          fit=with_idle_room, signed_zeros=False),
    Law("split and resume", "verify", schedule.split_and_resume, _IN_ORDER, fit=wide_steps,
        bounds=schedule.split_bounds, needs=("conv_commit",)),
    # A kernel that adds the given state to zeros, as FLA's does, reads -0 as 0.
    Law("split and resume", "recurrent", schedule.split_sequences, _ALWAYS, fit=wide_steps,
        signed_zeros=False),
    Law("split and resume", "commit", schedule.split_commit, _ALWAYS, fit=wide_steps),
    Law("verify then commit", "verify", schedule.verify_then_commit, _NEVER, fit=wide_steps,
        bounds=schedule.verify_then_commit_bounds, needs=("commit", "conv_commit")),
)  # fmt: skip


def check(
    law: Law,
    case: Case,
    subjects: Mapping[str, Subject],
    device: str = "cpu",
    family: str | None = None,
) -> Breach | None:
    """Ask a law of the kernels.

    Args:
        law: which.
        case: fitted to the law first; its seed decides what is permuted, cut or edited.
        subjects: the kernel of every operation that the law calls.
        device: where the operands live.
        family: "one-pass" or "token-order"; that of the operation's facts when None.

    Returns:
        The first breach, or None.

    Raises:
        OutOfRange: an exact intermediate leaves fp32, so no budget judges the case.
    """
    case = law.fit(finite(case))
    built, draw = build(case, device), Draw(case.seed, f"law {law.name}")
    pairs = law.pairs(built, kernel_call(subjects, built), draw)
    if law.exactness[family or facts(law.operation).family] == BITWISE:
        for index, (left, right) in enumerate(pairs):
            if breach := _unequal(law, case, index, left, right):
                return breach
        return None
    precision = effective_precision(subjects[law.operation].claims)
    reference = build(case)
    if law.bounds is not None:
        allowed = law.bounds(reference, precision, draw)
    else:
        sides = law.pairs(reference, bound_call(precision), draw)
        allowed = ({k: v + right[k] for k, v in left.items()} for left, right in sides)
    for index, ((left, right), bound) in enumerate(zip(pairs, allowed, strict=True)):
        if breach := _apart(law, case, index, left, right, bound):
            return breach
    return None


def _unequal(law: Law, case: Case, index: int, left: Results, right: Results) -> Breach | None:
    if breach := _mismatched(law, case, index, left, right):
        return breach
    for key, mine in left.items():
        other = right[key]
        if not law.signed_zeros:
            mine, other = mine + 0.0, other + 0.0
        # NaN has many bit patterns and sums of it keep any; the laws do not tell them apart.
        wrong = _bits(mine) != _bits(other)
        wrong &= ~(mine.isnan() & other.isnan())
        if bool(wrong.any()):
            return _breach(law, case, index, key, wrong.double(), mine, other, "be the same bits")
    return None


def _apart(
    law: Law, case: Case, index: int, left: Results, right: Results, bound: Results
) -> Breach | None:
    if breach := _mismatched(law, case, index, left, right):
        return breach
    for key, value in left.items():
        mine, other = value.double().cpu(), right[key].double().cpu()
        allowed = bound[key].abs().cpu().expand_as(mine)
        distance = (mine - other).abs()
        if key[0] in COLUMNS:
            distance = torch.linalg.vector_norm(distance, dim=-1, keepdim=True).expand_as(mine)
        ratio = torch.where(distance <= allowed, 0.0, distance / allowed)
        both = torch.isfinite(mine) & torch.isfinite(other)
        ratio = torch.where(both | torch.isinf(allowed), ratio.nan_to_num(0.0), torch.inf)
        if bool((ratio > 0).any()):
            at = float(allowed.flatten()[int(ratio.argmax())])
            return _breach(law, case, index, key, ratio, mine, other, f"be within {at:.3g}")
    return None


def _mismatched(law: Law, case: Case, index: int, left: Results, right: Results) -> Breach | None:
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        return Breach(law, case, f"pair {index}", f"only one side has {odd}")
    for key, value in left.items():
        if value.shape != right[key].shape:
            detail = f"shapes are {tuple(value.shape)} and {tuple(right[key].shape)}"
            return Breach(law, case, f"pair {index} {key}", detail)
    return None


def _breach(law: Law, case: Case, index: int, key: tuple[str, int], wrong: Tensor,
            left: Tensor, right: Tensor, must: str) -> Breach:  # fmt: skip
    flat = torch.tensor(int(wrong.argmax()))
    place = tuple(int(i) for i in torch.unravel_index(flat, wrong.shape))
    where = f"pair {index}, {key[0]} of request {key[1]} at {list(place)}"
    values = f"{float(left[place]):.9g} and {float(right[place]):.9g}"
    return Breach(law, case, where, f"{values} must {must}")


def _bits(x: Tensor) -> Tensor:
    widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(widths[x.element_size()])


__all__ = ["BITWISE", "BUDGET", "LAWS", "Breach", "Law", "OutOfRange", "check"]
