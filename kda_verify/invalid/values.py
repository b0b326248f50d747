"""Steps across the clauses on sizes, options, elements and combinations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kda_kernels.contract import Clause, Contract

from . import mutations as step
from .example_calls import example
from .mutations import Arguments, Change

Steps = Iterator[tuple[str, Change]]
NUMBERS: dict[str, dict[str, object]] = {
    "finite": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf},
    "negative": {"zero": 0.0, "positive": 5.0},
    "nonnegative": {"negative": -1e-6},
    "choice": {"unknown": "relu", "empty": ""},
}
RANGES: dict[str, dict[str, object]] = {
    "max_tokens": {"none": 0, "too many": 17, "negative": -1},
    "null_block_id": {"lets padding through": -2},
}


def value_steps(contract: Contract, clause: Clause) -> Steps:
    """Yield the steps across a clause on values, each with a short name."""
    name, aspect = clause.argument, clause.aspect
    numbers = RANGES.get(name) if aspect == "range" else NUMBERS.get(aspect)
    if numbers is not None:
        for label, value in numbers.items():
            yield label, step.given(**{name: value})
        return
    for label, change in _by_id(contract).get(f"{name}.{aspect}", {}).items():
        yield label, change


def live_requests(arguments: Arguments) -> list[int]:
    """Return the requests that a call does not skip."""
    null = arguments.get("null_block_id", -1)
    assert isinstance(null, int)
    slots = step.tensor(arguments, "ssm_state_indices").tolist()
    return [n for n, slot in enumerate(slots) if slot > null]


def spare_slot(arguments: Arguments) -> int:
    """Return a slot that no request names."""
    taken = set(step.tensor(arguments, "ssm_state_indices").tolist())
    pool = arguments.get("checkpoint_state", arguments.get("recurrent_state"))
    assert isinstance(pool, Tensor)
    return next(slot for slot in reversed(range(pool.shape[-4])) if slot not in taken)


def _sized(contract: Contract, **sizes: int) -> Change:
    """Return a change to an example call of other sizes."""

    def change(arguments: Arguments) -> Arguments:
        anchor = step.tensor(arguments, contract.anchor)
        return example(contract, anchor.device, **sizes)

    return change


def _element(name: str, value: Callable[[Arguments], int], live: int = 0) -> Change:
    """Return a change of one live request's element."""

    def change(arguments: Arguments) -> Arguments:
        at = live_requests(arguments)[live]
        vector = step.with_element(step.tensor(arguments, name), at, value(arguments))
        return {**arguments, name: vector}

    return change


def _dim(contract: Contract, name: str, plus: int = 0) -> Callable[[Arguments], int]:
    def value(arguments: Arguments) -> int:
        size = contract.call(arguments).dim(name)
        assert size is not None, f"{name} is not known"
        return size + plus

    return value


def _same(name: str) -> Callable[[Arguments], int]:
    """Return the first live request's element, for the second."""
    return lambda a: int(step.tensor(a, name)[live_requests(a)[0]])


def _offsets(edit: Callable[[list[int], Arguments], list[int]]) -> Change:
    def change(arguments: Arguments) -> Arguments:
        old = step.tensor(arguments, "cu_seqlens")
        new = torch.tensor(edit(old.tolist(), arguments), dtype=old.dtype, device=old.device)
        return {**arguments, "cu_seqlens": new}

    return change


def _rows(arguments: Arguments) -> int:
    return step.tensor(arguments, "x_q").shape[1]


def _same_track(arguments: Arguments) -> Arguments:
    """Let the first two live requests store in one spare slot."""
    indices = step.tensor(arguments, "mamba_track_indices")
    spare = spare_slot(arguments)
    for n in live_requests(arguments)[:2]:
        indices = step.with_element(indices, n, spare)
    return {**arguments, "mamba_track_indices": indices}


def _heads_of(name: str, more: Callable[[Arguments], int]) -> Change:
    """Return a change of the number of heads of x_v or rawk."""
    axis = -2 if name == "x_v" else -3

    def change(arguments: Arguments) -> Arguments:
        value = step.tensor(arguments, name)
        return {**arguments, name: step.resized(value, axis, more(arguments))}

    return change


def _by_id(contract: Contract) -> dict[str, dict[str, Change]]:
    """Return the steps by argument and aspect of the clause they cross."""
    dim = lambda name, plus=0: _dim(contract, name, plus)  # noqa: E731
    slots, rows = "ssm_state_indices", "intermediate_state_indices"
    track = "mamba_track_indices"
    capacity = dim("max_tokens" if contract.name == "mtp" else "L")
    cut = {
        f"{name}.size-{letter}": {
            f"{letter} {size}": _cut(name, axis, size) for size in (15, 257)
        }
        for name, letter, axis in (
            ("x_q", "k", -1), ("x_v", "v", -1),
            ("checkpoint_state", "k", -1), ("checkpoint_state", "v", -2),
        )
    }  # fmt: skip
    return {
        **cut,
        "cu_seqlens.requests": {
            "one offset": step.replaced("cu_seqlens", lambda x: x[:1]),
            "empty": step.replaced("cu_seqlens", lambda x: x[:0]),
        },
        "x_q.heads": {"none": _sized(contract, H=0, HV=0)},
        "x_v.heads": {
            "none": _heads_of("x_v", lambda a: 0),
            "one more": _heads_of("x_v", dim("HV", 1)),
        },
        "rawk.heads": {
            "none": _heads_of("rawk", lambda a: 0),
            "more than HV": _heads_of("rawk", dim("HV", 1)),
        },
        "x_q.tokens": {
            "ragged": _offsets(lambda cu, a: [*cu, *[_rows(a)] * (_rows(a) + 2 - len(cu))]),
            "no rows": _sized(contract, T=0, L=0),
        },
        "x_q.capacity": {"17": _sized(contract, N=2, T=34, L=17, R=17)},
        "cu_seqlens.start": {
            "one": _offsets(lambda cu, a: [1, *cu[1:]]),
            "negative": _offsets(lambda cu, a: [-1, *cu[1:]]),
        },
        "cu_seqlens.order": {
            "falls": _offsets(lambda cu, a: [*cu[:-2], cu[-1], cu[-1] - 1]),
        },
        "cu_seqlens.end": {"past T": _offsets(lambda cu, a: [*cu[:-1], _rows(a) + 1])},
        "cu_seqlens.capacity": {
            "one long": _offsets(lambda cu, a: [0] * (len(cu) - 1) + [_rows(a)]),
            "one row more": _offsets(lambda cu, a: [0] + [capacity(a) + 1] * (len(cu) - 1)),
        },
        f"{slots}.range": {
            "slots": _element(slots, dim("slots")),
            "largest": _element(slots, lambda a: 2**31 - 1),
        },
        f"{slots}.unique": {"twice": _element(slots, _same(slots), live=1)},
        f"{rows}.range": {
            "rows": _element(rows, dim("scratch_rows")),
            "negative": _element(rows, lambda a: -1),
        },
        f"{rows}.unique": {"twice": _element(rows, _same(rows), live=1)},
        "accept_lens.range": {
            "negative": _element("accept_lens", lambda a: -1),
            "too many": _element(
                "accept_lens", dim("capacity" if "conv" in contract.name else "R", 1)
            ),
        },
        f"{track}.range": {"slots": _element(track, dim("slots"))},
        f"{track}.unique": {"twice": _same_track},
        f"{track}.live": {
            "own": _element(track, _same(slots)),
            "another's": _element(track, _same(slots), live=1),
        },
        "A_log.unwanted": {"given": lambda a: {**a, "A_log": _zeros(a, 1)}},
        "dt_bias.unwanted": {"given": lambda a: {**a, "dt_bias": _zeros(a, 3)}},
        "lower_bound.unwanted": {"given": step.given(lower_bound=-5.0)},
        "intermediate_conv_q.unwanted": {
            "no taps": step.given(**{f"{kind}_{x}": None for kind in ("w", "cs") for x in "qkv"}),
        },
        "max_cache_len.dim": {"more": _more("max_cache_len"), "zero": step.given(max_cache_len=0)},
        "num_k_heads.dim": {"more": _more("num_k_heads"), "zero": step.given(num_k_heads=0)},
    }


def _cut(name: str, axis: int, size: int) -> Change:
    return step.replaced(name, lambda x: step.resized(x, axis, size))


def _more(name: str) -> Change:
    def change(arguments: Arguments) -> Arguments:
        value = arguments[name]
        assert isinstance(value, int)
        return {**arguments, name: value + 1}

    return change


def _zeros(arguments: Arguments, axes: int) -> Tensor:
    """Return fp32 zeros [HV], or [HV * K]."""
    _, _, heads, keys = step.tensor(arguments, "g").shape
    size = heads if axes == 1 else heads * keys
    return torch.zeros(size, device=step.tensor(arguments, "g").device)
