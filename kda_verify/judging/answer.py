"""What a call must leave behind: the oracle's expectations, operation by operation."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import kda_ref
from kda_ref import Bounded, Precision, cast, stored

from ..cases.assembly import Built

Index = tuple[int | slice, ...]


@dataclass(frozen=True)
class Expectation:
    """Say what some elements of one operand must hold.

    Attributes:
        operand: name of the operand.
        index: where in the operand, one entry per leading axis.
        want: value and error bound of the arithmetic, in the shape of `operand[index]`.
        store: what the rounding of the store alone may add; not counted in the ratio, so that
            a bf16 output does not hide the precision of what was stored.
        accept_nan: where NaN is accepted too (an undetermined norm), or None.
        head_axis: axis of `want` that counts heads, for the grain of non-finite values.
        token_axis: axis of `want` that counts tokens, or None for a state.
        column_axis: axis of `want` over which the bound is one of the norm (a value column of
            a state), or None where it is elementwise.
    """

    operand: str
    index: Index
    want: Bounded
    store: Tensor
    accept_nan: Tensor | None = None
    head_axis: int = 0
    token_axis: int | None = None
    column_axis: int | None = None

    def element(self, local: tuple[int, ...]) -> str:
        """Name an element of `want` by its index in the operand."""
        rest, position = list(local), []
        for entry in self.index:
            position.append(entry if isinstance(entry, int) else (entry.start or 0) + rest.pop(0))
        return f"{self.operand}[{', '.join(map(str, position + rest))}]"


@dataclass(frozen=True)
class Answer:
    """The oracle's expectations of one case.

    Attributes:
        expectations: all elements the call owns, each once.
        in_range: exact intermediates fit fp32; otherwise nothing is judged.
    """

    expectations: tuple[Expectation, ...]
    in_range: bool

    @property
    def finite(self) -> bool:
        """Whether every expected value is finite, or the case is out of range anyway."""
        values = (e.want.value for e in self.expectations)
        return not self.in_range or all(bool(torch.isfinite(v).all()) for v in values)

    def owned(self, arguments: dict[str, Any]) -> dict[str, Tensor]:
        """Mask, per operand among the arguments, the elements the call may write."""
        masks: dict[str, Tensor] = {}
        for expectation in self.expectations:
            buffer = arguments.get(expectation.operand)
            if buffer is None:
                continue
            mask = masks.setdefault(
                expectation.operand, torch.zeros(buffer.shape, dtype=torch.bool)
            )
            mask[expectation.index] = True
        return masks


def _bound(
    built: Built, x: Bounded, dtype: torch.dtype, precision: Precision
) -> tuple[Bounded, Tensor]:
    """Account for the store; in an exact case the stored value itself is known."""
    truncate = precision.truncating_store
    if built.case.exact:
        return _known(cast(x.value, dtype, truncate=truncate))
    full = Bounded(x.value, x.error.expand_as(x.value))
    wide = stored(full, dtype, truncate=truncate)
    return Bounded(wide.value, full.error), wide.error - full.error


def _known(value: Tensor) -> tuple[Bounded, Tensor]:
    """Ask for exactly this value."""
    zero = torch.zeros_like(value, dtype=torch.float64)
    return Bounded(value.double(), zero), zero


def verify(built: Built, precision: Precision) -> Answer:
    """Expect what a verify owns: rows of `out`, snapshots, windows and rings."""
    result = kda_ref.kda_mtp_verify(**built.arguments, precision=precision)
    return Answer(tuple(verify_expectations(built, result, precision)), result.in_range)


def verify_expectations(
    built: Built,
    result: kda_ref.MtpResult,
    precision: Precision,
    only: Container[int] | None = None,
) -> Iterator[Expectation]:
    """Say what a verify must leave behind, for all requests or for some.

    Args:
        built: the call.
        result: the oracle's answer, for at least the requests asked for.
        precision: what the kernel declares.
        only: positions of the requests to judge; all, and the slack rows, by default.
    """
    arguments, case = built.arguments, built.case
    out_dtype = arguments["x_v"].dtype
    start = 0
    for n, length in enumerate(case.lengths):
        rows, start = slice(start, start + length), start + length
        if only is not None and n not in only:
            continue
        trace = result.requests[n]
        if trace is None:
            shape = (length, case.heads_v, case.size_v)
            yield Expectation("out", (0, rows), *_known(torch.zeros(shape)), None, 1, 0)
            continue
        want = _bound(built, trace.out, out_dtype, precision)
        accept = trace.undetermined.expand_as(trace.out.value)
        yield Expectation("out", (0, rows), *want, accept, 1, 0)
        slot, row = built.slots[n], built.scratch_rows[n]
        if arguments.get("intermediate_ssm") is not None and trace.snapshots is not None:
            dtype = arguments["intermediate_ssm"].dtype
            states = _bound(built, trace.snapshots, dtype, precision)
            yield Expectation("intermediate_ssm", (row, slice(0, length)), *states, None, 1, 0, -1)
        if arguments.get("intermediate_conv_q") is not None and trace.windows is not None:
            for name, window in zip("qkv", trace.windows, strict=True):
                index = (row, slice(0, length))
                yield Expectation(f"intermediate_conv_{name}", index, *_known(window), None, 1, 0)
        if arguments.get("replayssm_rawv") is not None:
            for name, ring in (
                ("rawv", trace.ring_v),
                ("rawk", trace.ring_k),
                ("g", trace.ring_log_decay),
                ("beta", trace.ring_beta),
            ):
                operand = f"replayssm_{name}"
                by_head = Bounded(ring.value.transpose(0, 1), ring.error.transpose(0, 1))
                entry = _bound(built, by_head, arguments[operand].dtype, precision)
                entries = (slot, slice(None), slice(0, length))
                yield Expectation(operand, entries, *entry, None, 0, 1)
    if only is not None:
        return
    slack = (case.tokens - start, case.heads_v, case.size_v)
    yield Expectation("out", (0, slice(start, None)), *_known(torch.zeros(slack)), None, 1, 0)


def commit(built: Built, precision: Precision) -> Answer:
    """Expect the states of the slots that a commit advances or tracks."""
    result = kda_ref.kda_replay_commit(**built.arguments, precision=precision)
    pool = built.arguments["checkpoint_state"]
    stacked = pool.ndim == 5
    expectations = []
    for layer, slots in enumerate(result.layers):
        for slot, state in slots.items():
            index = (layer, slot) if stacked else (slot,)
            want = _bound(built, state, pool.dtype, precision)
            expectations.append(Expectation("checkpoint_state", index, *want, column_axis=-1))
    return Answer(tuple(expectations), result.in_range)


def conv_commit(built: Built, precision: Precision) -> Answer:
    """Expect the conv histories of the slots that accept a token; a copy has no budget."""
    arguments = built.arguments
    pools = kda_ref.kda_conv_commit(**arguments)
    expectations = []
    for name, pool in zip("qkv", pools, strict=True):
        layers = range(pool.shape[0]) if pool.ndim == 4 else (None,)
        for layer in layers:
            for n, accepted in enumerate(built.case.lengths):
                if accepted == 0 or n in built.case.padding:
                    continue
                slot = built.slots[n]
                index = (slot,) if layer is None else (layer, slot)
                expectations.append(Expectation(f"cs_{name}", index, *_known(pool[index])))
    return Answer(tuple(expectations), in_range=True)


def recurrent(built: Built, precision: Precision) -> Answer:
    """Expect per sequence, so that nothing spreads from one to another."""
    arguments, case = built.arguments, built.case
    result = sequences(arguments, precision)
    dtype = arguments["v"].dtype
    column = -1 if arguments["state_layout"] == "vk" else -2
    pooled = case.initial == "pool"
    stored_as = arguments["initial_state"].dtype if pooled else torch.float32
    expectations, start = [], 0
    for n, length in enumerate(case.lengths):
        rows, start = slice(start, start + length), start + length
        index: Index = (n,) if case.batched else (0, rows)
        out = _bound(built, result.out.at(index), dtype, precision)
        expectations.append(Expectation("out", index, *out, None, 1, 0))
        state = _bound(built, result.final_state.at(n), stored_as, precision)
        if not pooled:
            expectations.append(Expectation("final_state", (n,), *state, None, 0, None, column))
        elif n in case.busy:
            # Nobody else's slot may change by a bit: the frame watches it.
            slot = (built.slots[n],)
            expectations.append(Expectation("initial_state", slot, *state, None, 0, None, column))
    if not case.batched:
        slack = result.out.value[0, start:]
        expectations.append(Expectation("out", (0, slice(start, None)), *_known(slack), None, 1, 0))
    return Answer(tuple(expectations), result.in_range)


def sequences(arguments: dict[str, Any], precision: Precision) -> kda_ref.SequenceResult:
    """Ask the oracle for sequences, and leave a pool that their call would write as it is."""
    return kda_ref.kda_recurrent(**{**arguments, "update_pool": False}, precision=precision)


Returned = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of every tensor that a call returns, by name."""


def verify_returns(built: Built) -> Returned:
    """Say what a verify returns."""
    like = built.arguments["x_v"]
    return {"out": (tuple(like.shape), like.dtype)}


def recurrent_returns(built: Built) -> Returned:
    """Say what the recurrent operation returns: final states unless they go into a pool."""
    case, like = built.case, built.arguments["v"]
    out = {"out": (tuple(like.shape), like.dtype)}
    if case.initial == "pool":
        return out
    state = (case.requests, case.heads_v, case.size_v, case.size_k)
    if case.state_layout == "kv":
        state = (*state[:2], state[3], state[2])
    return {**out, "final_state": (state, torch.float32)}


def nothing(built: Built) -> Returned:
    """Say that a call returns nothing: all it does is in place."""
    return {}
