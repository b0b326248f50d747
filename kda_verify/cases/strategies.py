"""Hypothesis strategies that draw cases.

A case is drawn as a recipe, never as tensors. Every finite axis is ordered from simple to nasty,
so that shrinking a failure simplifies it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from .case import BETA_FORMS, BETAS, GATE_FORMS, GATES, KEYS, STATES, TAPS, VALUES, Case

Draw = Callable[[st.SearchStrategy[Any]], Any]

SMALL_SIZES = (16, 32, 24, 64, 40, 48, 20, 17)
"""K and V drawn in the interpreter: powers of two, multiples of 4 and odd ones."""

COMPILED_SIZES = (16, 64, 128, 60, 100, 256)


def _from(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


SCALES = st.sampled_from((None, None, None, 0.5, 0.5, -1.5, 0.0))
FLOORS = _from(-5.0, -5.0, -1.0, -20.0)
SPOILT = _from(*["none"] * 11, "nan", "inf")


def _lengths(draw: Draw, capacity: int, most: int, least: int = 0) -> tuple[int, ...]:
    """Lengths of one to `most` requests, often ragged, sometimes empty, seldom all empty."""
    count = draw(st.integers(1, most))
    if draw(st.booleans()):
        return (draw(st.integers(max(1, least), capacity)),) * count
    lengths = [draw(st.integers(least, capacity)) for _ in range(count)]
    if not any(lengths) and draw(st.integers(0, 9)):
        lengths[-1] = 1
    return tuple(lengths)


def _padding(draw: Draw, requests: int) -> tuple[int, ...]:
    if not draw(_from(False, False, True)):
        return ()
    chosen = draw(st.sets(st.integers(0, requests - 1), max_size=requests))
    if len(chosen) == requests and draw(st.integers(0, 9)):
        chosen.discard(0)
    return tuple(sorted(chosen))


def _families(draw: Draw) -> dict[str, Any]:
    return {
        "keys": draw(st.sampled_from(KEYS)),
        "gates": draw(st.sampled_from(GATES)),
        "taps": draw(st.sampled_from(TAPS)),
        "betas": draw(st.sampled_from(BETAS)),
        # Zero values and states hide faults; they are drawn, but seldom together with others.
        "values": draw(_from(*VALUES[:3], *VALUES[:3], *VALUES)),
        "states": draw(_from(*STATES[:4], *STATES[:4], *STATES)),
        "poison": draw(_from("nan", "huge")),
        "seed": draw(st.integers(0, 2**16)),
    }


def _layout(draw: Draw) -> dict[str, Any]:
    return {
        "rows": draw(_from("separate", "packed", "pitched")),
        "pool": draw(_from("dense", "pitched", "envelope")),
        "conv_pool": draw(_from("dense", "transposed")),
        "spare_slots": draw(st.integers(0, 2)),
        "index_stride": draw(_from(1, 1, 2, 3)),
    }


def _dims(draw: Draw, sizes: Sequence[int]) -> dict[str, Any]:
    return {
        "heads": draw(st.integers(1, 3)),
        "group": draw(_from(1, 1, 2, 3)),
        "size_k": draw(st.sampled_from(sizes)),
        "size_v": draw(st.sampled_from(sizes)),
    }


def _constants(draw: Draw, sizes: Sequence[int]) -> dict[str, Any]:
    """Everything about a verify that a compiled variant depends on."""
    conv = draw(_from(True, True, False))
    records = [r for r in ("rings", "snapshots") if draw(st.booleans())]
    if conv and draw(st.booleans()):
        records.append("windows")
    gate_form = draw(st.sampled_from(GATE_FORMS))
    return {
        **_dims(draw, sizes),
        "capacity": draw(_from(1, 2, 3, 4, 5, 8, 11, 16)),
        "dtype": draw(_from("float32", "float32", "bfloat16", "float16")),
        "logit_dtype": draw(_from("float32", "bfloat16")),
        "conv": conv,
        "qk_norm": draw(_from(True, True, True, False)),
        "gate_form": gate_form,
        "beta_form": draw(st.sampled_from(BETA_FORMS)),
        "gate_bias": gate_form != "given" and draw(st.booleans()),
        "gate_rate": gate_form == "softplus" or (gate_form != "given" and draw(st.booleans())),
        "out_norm": draw(st.booleans()),
        "records": tuple(records),
    }


@st.composite
def verify_constants(draw: Draw, sizes: Sequence[int] = COMPILED_SIZES) -> dict[str, Any]:
    """Draw a combination of compile-time constants of a verify."""
    return _constants(draw, sizes)


@st.composite
def verify_cases(
    draw: Draw,
    sizes: Sequence[int] = SMALL_SIZES,
    variants: Sequence[dict[str, Any]] | None = None,
    most: int = 4,
) -> Case:
    """Draw a multi-token verify, from declared variants where they are given."""
    constants = _constants(draw, sizes) if variants is None else draw(st.sampled_from(variants))
    lengths = _lengths(draw, constants["capacity"], most)
    families = _families(draw)
    if constants["dtype"] == "float16":
        families["values"] = "unit"
    return Case(
        operation="verify",
        **constants,
        lengths=lengths,
        padding=_padding(draw, len(lengths)),
        # Kernels clear rows in blocks: more of them than a block of any capacity here holds.
        slack_rows=draw(_from(0, 0, 1, 2, 19)),
        out_given=draw(st.booleans()),
        scale=draw(SCALES),
        lower_bound=draw(FLOORS),
        spoil=draw(SPOILT),
        **_layout(draw),
        **families,
    )


@st.composite
def exact_verify_cases(
    draw: Draw,
    sizes: Sequence[int] = SMALL_SIZES,
    variants: Sequence[dict[str, Any]] | None = None,
    most: int = 3,
) -> Case:
    """Draw a verify for which no algorithm rounds."""
    case = draw(verify_cases(sizes=sizes, variants=variants, most=most))
    return replace(
        case,
        exact=True,
        spoil="none",
        dtype="bfloat16" if case.dtype == "bfloat16" else "float32",
        out_norm=False,
        qk_norm=case.qk_norm or case.conv,
        scale=draw(_from(None, 1.0, 0.25)),
        keys=draw(_from("one_hot", "hadamard", "random")),
    )


@st.composite
def dspark_cases(draw: Draw, most: int = 2) -> Case:
    """Draw a call of the drop-in: K = V = 128, bf16, T = N * capacity, ragged inside."""
    capacity = draw(_from(1, 2, 3, 4, 8, 16))
    lengths = _lengths(draw, capacity, most)
    return Case(
        operation="verify",
        heads=draw(st.integers(1, 2)),
        size_k=128,
        size_v=128,
        lengths=lengths,
        capacity=capacity,
        slack_rows=len(lengths) * capacity - sum(lengths),
        padding=_padding(draw, len(lengths)),
        dtype="bfloat16",
        logit_dtype="bfloat16",
        out_norm=draw(st.booleans()),
        out_given=draw(st.booleans()),
        records=(draw(_from("rings", "snapshots")), "windows"),
        lower_bound=draw(FLOORS),
        spoil=draw(SPOILT),
        **_layout(draw),
        **_families(draw),
    )


@st.composite
def commit_cases(draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 4) -> Case:
    """Draw a replay commit, of one layer or of all layers."""
    capacity = draw(_from(1, 2, 3, 4, 8, 16))
    lengths = _lengths(draw, capacity, most)
    layout = _layout(draw)
    track = draw(st.booleans())
    if track:
        layout["spare_slots"] = draw(st.integers(1, 3))
    families = _families(draw)
    dtype = draw(_from("float32", "bfloat16", "float16"))
    if dtype == "float16":
        families["values"] = "unit"
    return Case(
        operation="commit",
        **_dims(draw, sizes),
        lengths=lengths,
        capacity=capacity,
        padding=_padding(draw, len(lengths)),
        dtype=dtype,
        conv=False,
        qk_norm=draw(_from(True, True, False)),
        gate_form="given",
        beta_form=draw(_from("sigmoid", "twice_sigmoid")),
        layers=draw(_from(0, 0, 1, 2, 3)),
        track=track,
        null_block=draw(_from(-1, -1, 0)),
        **layout,
        **families,
    )


@st.composite
def conv_commit_cases(draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 4) -> Case:
    """Draw a commit of the conv windows, often wider than one block of the copy."""
    capacity = draw(_from(1, 2, 4, 16))
    lengths = _lengths(draw, capacity, most)
    dims = {**_dims(draw, (*sizes, 128)), "heads": draw(_from(1, 2, 3, 9, 24))}
    return Case(
        operation="conv_commit",
        **dims,
        lengths=lengths,
        capacity=capacity,
        padding=_padding(draw, len(lengths)),
        dtype=draw(_from("float32", "bfloat16", "float16")),
        layers=draw(_from(0, 0, 2)),
        null_block=draw(_from(-1, -1, 0)),
        **_layout(draw),
        poison=draw(_from("nan", "huge")),
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def recurrent_cases(draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 3) -> Case:
    """Draw sequences for a recurrent kernel: packed or batched, states in both layouts."""
    batched = draw(st.booleans())
    lengths = _lengths(draw, 6, most, least=0 if not batched else 1)
    if batched:
        lengths = (max(lengths[0], 1),) * len(lengths)
    gate_form = draw(st.sampled_from(GATE_FORMS))
    case = Case(
        operation="recurrent",
        **_dims(draw, sizes),
        lengths=lengths,
        capacity=max(*lengths, 1),
        batched=batched,
        dtype=draw(_from("float32", "bfloat16")),
        logit_dtype=draw(_from("float32", "bfloat16")),
        state_layout=draw(_from("vk", "kv")),
        conv=False,
        qk_norm=draw(_from(True, True, False)),
        gate_form=gate_form,
        beta_form=draw(st.sampled_from(BETA_FORMS)),
        gate_bias=gate_form != "given" and draw(st.booleans()),
        gate_rate=gate_form == "softplus" or (gate_form != "given" and draw(st.booleans())),
        scale=draw(SCALES),
        lower_bound=draw(FLOORS),
        spoil=draw(SPOILT),
        **_families(draw),
    )
    return replace(case, initial="none" if case.states == "zero" else "given")


@st.composite
def pooled_recurrent_cases(
    draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 3, exact: bool = False
) -> Case:
    """Draw sequences that advance the slots of a pool in place, padding among them."""
    make = exact_recurrent_cases if exact else recurrent_cases
    case = draw(make(sizes=sizes, most=most))
    padding = _padding(draw, case.requests)
    state_dtype = draw(_from("float32", "bfloat16"))
    return replace(case, initial="pool", state_dtype=state_dtype, padding=padding, **_layout(draw))


@st.composite
def exact_commit_cases(draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 3) -> Case:
    """Draw a commit for which no algorithm rounds."""
    case = draw(commit_cases(sizes=sizes, most=most))
    dtype = "bfloat16" if case.dtype == "bfloat16" else "float32"
    return replace(case, exact=True, dtype=dtype, keys=draw(_from("one_hot", "hadamard")))


@st.composite
def exact_recurrent_cases(draw: Draw, sizes: Sequence[int] = SMALL_SIZES, most: int = 3) -> Case:
    """Draw sequences for which no algorithm rounds."""
    case = draw(recurrent_cases(sizes=sizes, most=most))
    return replace(
        case,
        exact=True,
        spoil="none",
        scale=draw(_from(None, 1.0, 0.25)),
        keys=draw(_from("one_hot", "hadamard", "random")),
    )
