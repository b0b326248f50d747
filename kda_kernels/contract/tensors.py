"""Clauses on tensor arguments: presence, rank, shape, dtype, device, strides, overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import torch

from .call import Call, described, dtype_name, join
from .clause import Clause
from .operand import Operand, Option, axis_template
from .overlap import overlaps_itself

SIZES = range(16, 257)


def operand_clauses(contract: str, operands: Sequence[Operand]) -> list[Clause]:
    """Return the clauses that follow from the operands alone, operand by operand."""
    anchor, clauses = operands[0], []
    for operand in operands:
        clauses.append(is_tensor(contract, operand))
        if operand.ranked:
            clauses.append(has_rank(contract, operand, operand is anchor))
        if any(axis not in operand.defines and axis[0] != ">" for axis in operand.shape):
            clauses.append(has_shape(contract, operand))
        for axis, limit in enumerate(operand.shape):
            if limit.startswith(">="):
                clauses.append(is_long(contract, operand, axis, limit[2:]))
        clauses.append(has_dtype(contract, operand, anchor))
        clauses.append(is_on_device(contract, operand, anchor))
        if operand.unit_last:
            clauses.append(has_unit_stride(contract, operand))
        if operand.is_float:
            clauses.append(wants_no_gradient(contract, operand))
        if operand.written:
            clauses += [is_injective(contract, operand), is_apart(contract, operand)]
    return clauses


def group_clauses(contract: str, members: Iterable[Operand | Option]) -> list[Clause]:
    """Return one clause for each member of a group that comes together or not at all."""
    names = [member.name for member in members]

    def missing(name: str) -> Callable[[Call], str | None]:
        others = [other for other in names if other != name]

        def predicate(call: Call) -> str | None:
            if call.given(name):
                return None
            beside = next((other for other in others if call.given(other)), None)
            return None if beside is None else f"None beside `{beside}`"

        return predicate

    return [
        Clause(
            f"{contract}.{name}.group",
            name,
            "type",
            f"be given when {join([n for n in names if n != name], 'or')} is",
            missing(name),
        )
        for name in names
    ]


def is_tensor(contract: str, operand: Operand) -> Clause:
    name, required = operand.name, operand.required

    def predicate(call: Call) -> str | None:
        value = call.argument(name)
        if call.meta(name) is not None or (value is None and not required):
            return None
        return described(value)

    wanted = "be a strided torch.Tensor" + ("" if required else " or None")
    return Clause(f"{contract}.{name}.type", name, "type", wanted, predicate)


def has_rank(contract: str, operand: Operand, is_anchor: bool) -> Clause:
    name, either = operand.name, is_anchor and operand.stacks

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None or len(meta.shape) == operand.rank(call.static.lead):
            return None
        return f"rank {len(meta.shape)}, {list(meta.shape)}"

    rank = len(operand.shape)
    if either:
        axes = ", ".join(axis_template(axis) for axis in operand.shape)
        wanted = f"have rank {rank} or {rank + 1}, as [{axes}] or [layers, {axes}]"
    elif operand.stacks:
        wanted = f"have the rank of {operand.template()}"
    else:
        wanted = f"have rank {rank}, as {operand.template()}"
    hint = reshaping(operand)
    return Clause(f"{contract}.{name}.rank", name, "rank", wanted, predicate, hint)


def has_shape(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None:
            return None
        if len(meta.shape) != operand.rank(call.static.lead):
            return None if operand.ranked else str(list(meta.shape))
        for want, size in zip(wanted_shape(call, operand), meta.shape, strict=True):
            if want is not None and want != size:
                return str(list(meta.shape))
        return None

    wanted = f"have shape {operand.template()}"
    return Clause(f"{contract}.{name}.shape", name, "shape", wanted, predicate, reshaping(operand))


def is_long(contract: str, operand: Operand, axis: int, least: str) -> Clause:
    name = operand.name
    aspect = "slots" if least == "slots" else "depth"

    def predicate(call: Call) -> str | None:
        meta, limit = call.meta(name), call.dim(least)
        if meta is None or limit is None or len(meta.shape) != operand.rank(call.static.lead):
            return None
        size = meta.shape[axis + len(meta.shape) - len(operand.shape)]
        return None if size >= limit else f"{size}"

    wanted = f"have at least {{{least}}} entries per row"
    if least == "slots":
        wanted = "have at least as many slots as the pool ({slots})"
    return Clause(f"{contract}.{name}.{aspect}", name, "shape", wanted, predicate)


def is_deep(contract: str, name: str, least: str) -> Clause:
    def predicate(call: Call) -> str | None:
        depth, limit = call.dim("R"), call.dim(least)
        return f"R={depth}" if depth is not None and limit is not None and depth < limit else None

    wanted = f"hold at least {{{least}}} entries"
    return Clause(f"{contract}.{name}.depth", name, "shape", wanted, predicate)


def has_groups(contract: str, name: str, dim: str) -> Clause:
    def predicate(call: Call) -> str | None:
        few, many = call.dim("H"), call.dim("HV")
        if few is None or many is None or (many > 0 and few > 0 and many % few == 0):
            return None
        return f"{dim}={few if dim == 'H' else many}"

    wanted = "have HV a positive multiple of {H}" if dim == "HV" else "have H a divisor of {HV}"
    return Clause(f"{contract}.{name}.heads", name, "shape", wanted, predicate)


def has_size(contract: str, name: str, dim: str) -> Clause:
    def predicate(call: Call) -> str | None:
        size = call.dim(dim)
        return None if size is None or size in SIZES else f"{dim}={size}"

    wanted = f"have {dim} in {SIZES[0]} to {SIZES[-1]}"
    return Clause(f"{contract}.{name}.size-{dim.lower()}", name, "shape", wanted, predicate)


def has_dtype(contract: str, operand: Operand, anchor: Operand) -> Clause:
    name, dtypes = operand.name, operand.dtypes

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None:
            return None
        model = call.meta(anchor.name)
        allowed = dtypes or ((model.dtype,) if model is not None else (meta.dtype,))
        return None if meta.dtype in allowed else dtype_name(meta.dtype)

    hint = None
    if dtypes is None:
        wanted = f"have the {{dtype of {anchor.name}}}"
    else:
        wanted = f"have dtype {join(map(dtype_name, dtypes), 'or')}"
        if len(dtypes) == 1 and not operand.is_float:
            hint = f"`.to({dtypes[0]})`"
        elif len(dtypes) == 1 and len(operand.shape) < 3:
            hint = f"`.to({dtypes[0]})` once, when it is loaded"
    return Clause(f"{contract}.{name}.dtype", name, "dtype", wanted, predicate, hint)


def is_on_device(contract: str, operand: Operand, anchor: Operand) -> Clause:
    name, is_anchor = operand.name, operand is anchor

    def predicate(call: Call) -> str | None:
        meta, model = call.meta(name), call.meta(anchor.name)
        if meta is None or model is None:
            return None
        wrong = meta.device.type == "meta" if is_anchor else meta.device != model.device
        return str(meta.device) if wrong else None

    wanted = "be on a device with memory" if is_anchor else f"be on the {{device of {anchor.name}}}"
    return Clause(f"{contract}.{name}.device", name, "device", wanted, predicate)


def has_unit_stride(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None or meta.stride[-1] == 1 or meta.shape[-1] == 1 or 0 in meta.shape:
            return None
        return f"strides {meta.stride}"

    hint = None if operand.written else "`.contiguous()`"
    wanted = "have unit stride in its last axis"
    return Clause(f"{contract}.{name}.last-stride", name, "layout", wanted, predicate, hint)


def wants_no_gradient(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        tensor = call.tensor(name)
        return None if tensor is None or not wants_gradient(tensor) else "requires_grad=True"

    wanted = "require no gradient while gradients are recorded"
    hint = "call under torch.no_grad()"
    return Clause(f"{contract}.{name}.grad", name, "layout", wanted, predicate, hint)


def is_injective(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None or not overlaps_itself(tuple(meta.shape), tuple(meta.stride)):
            return None
        return f"shape {list(meta.shape)} with strides {meta.stride}"

    wanted = "hold every element at an address of its own"
    return Clause(f"{contract}.{name}.self-overlap", name, "layout", wanted, predicate)


def is_apart(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        other = call.shared().get(name)
        return None if other is None else f"memory shared with `{other}`"

    wanted = "share no element with another argument"
    return Clause(f"{contract}.{name}.overlap", name, "layout", wanted, predicate, reads="memory")


def wants_gradient(tensor: object) -> bool:
    """Tell whether a call on this tensor would have to record a gradient."""
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()


def wanted_shape(call: Call, operand: Operand) -> list[int | None]:
    """Return the size each axis must have; None where it is free or no operand tells."""
    sizes = [None if axis.startswith(">=") else call.dim(axis) for axis in operand.shape]
    lead = [call.dim("layers")] * (operand.rank(call.static.lead) - len(operand.shape))
    return [*lead, *sizes]


def reshaping(operand: Operand) -> Callable[[Call], str | None]:
    """Return a hint that names the view which turns the shape that came into the one expected."""

    def hint(call: Call) -> str | None:
        meta = call.meta(operand.name)
        if meta is None:
            return None
        came, want = list(meta.shape), wanted_shape(call, operand)

        def fits(shape: Sequence[int]) -> bool:
            pairs = zip(shape, want, strict=False)
            return len(shape) == len(want) and all(w is None or w == s for s, w in pairs)

        for axis in reversed(range(len(came))):
            if came[axis] == 1 and fits(came[:axis] + came[axis + 1 :]):
                return f"`.squeeze({-1 if axis == len(came) - 1 else axis})`"
        if want[0] == 1 and fits([1, *came]):
            return "`.unsqueeze(0)`"
        if len(want) == 1 and len(came) > 1 and want[0] == prod(came):
            return "`.flatten()`"
        if len(came) > 1 and fits([*came[:-2], came[-1], came[-2]]):
            return "`.transpose(-1, -2)`"
        if operand.name == "beta" and len(want) == 3 and came[:2] == want[:2] and came[2] == 1:
            return f"one strength per value head; to share one: `.expand(-1, -1, {want[2]})`"
        return None

    return hint
