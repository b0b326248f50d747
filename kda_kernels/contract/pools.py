"""Clauses on pools of states: dense blocks, pitches and addresses that vector access relies on."""

from __future__ import annotations

from .call import Call
from .clause import Clause
from .operand import Operand, axis_template

# Kernels load and store four fp32 elements at a time.
LANES = 4
ADDRESS = 16


def pool_clauses(contract: str, operand: Operand) -> list[Clause]:
    """Return the layout clauses of [.., HV, V, K] fp32 states with free outer pitches."""
    return [
        has_dense_block(contract, operand),
        has_pitch(contract, operand),
        has_offset(contract, operand),
        has_address(contract, operand),
    ]


def has_dense_block(contract: str, operand: Operand) -> Clause:
    name, (heads, rows, columns) = operand.name, operand.shape[-3:]

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None or 0 in meta.shape or len(meta.shape) < 3:
            return None
        step = 1
        for size, stride in zip(meta.shape[:-4:-1], meta.stride[:-4:-1], strict=True):
            if size > 1 and stride != step:
                return f"strides {meta.stride}"
            step *= size
        return None

    wanted = (
        f"hold dense blocks [{heads}, {rows}, {columns}], "
        f"inner strides ({{{rows}*{columns}}}, {axis_template(columns)}, 1)"
    )
    return Clause(f"{contract}.{name}.inner-dense", name, "layout", wanted, predicate)


def has_pitch(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        meta = call.meta(name)
        if meta is None or len(meta.shape) != operand.rank(call.static.lead):
            return None
        pitches = meta.stride[:-3]
        return f"strides {meta.stride}" if any(pitch % LANES for pitch in pitches) else None

    axes = "slot" if operand.shape[0] == "slots" else "row and token"
    wanted = f"have a {axes} pitch that is a multiple of {LANES} elements"
    return Clause(f"{contract}.{name}.pitch", name, "layout", wanted, predicate)


def has_offset(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        tensor = call.tensor(name)
        offset = 0 if tensor is None else tensor.storage_offset()
        return f"{offset}" if offset % LANES else None

    wanted = f"have a storage offset that is a multiple of {LANES} elements"
    return Clause(f"{contract}.{name}.offset", name, "layout", wanted, predicate, reads="memory")


def has_address(contract: str, operand: Operand) -> Clause:
    name = operand.name

    def predicate(call: Call) -> str | None:
        tensor = call.tensor(name)
        past = 0 if tensor is None else tensor.data_ptr() % ADDRESS
        return f"one that is {past} bytes past it" if past else None

    wanted = f"start at an address that is a multiple of {ADDRESS} bytes"
    return Clause(f"{contract}.{name}.address", name, "layout", wanted, predicate, reads="memory")
