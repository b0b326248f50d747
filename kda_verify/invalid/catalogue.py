"""Invalid calls as data: for every clause of a contract, single steps from a valid call.

`mutations(contract)` cross the line a clause draws, `boundaries(contract)` stop just before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from kda_kernels.contract import Clause, Contract
from kda_kernels.contract.operand import Operand, Option

from . import mutations as step
from .example_calls import complete, example
from .mutations import Arguments, Change
from .values import value_steps

# Wrong types of each kind of option: the next best thing a caller might pass.
WRONG_KINDS: dict[str, dict[str, object]] = {
    "int": {"bool": True, "float": 4.0, "str": "4"},
    "float": {"bool": True, "str": "1e-5", "list": [1.0]},
    "bool": {"int": 1, "str": "yes"},
    "str": {"int": 0, "list": ["given"]},
}
Steps = Iterator[tuple[str, Change]]
Finder = Callable[[Contract, Operand], Steps]


@dataclass(frozen=True)
class Mutation:
    """One step from a valid call.

    Attributes:
        id: the clause's id and what the step does.
        clause_id: the clause that must refuse, or at a boundary must not.
        base: brings any valid call to the valid one from which the step is taken.
        step: the step; it never writes into the tensors it was given.
        context: in which to make the call.
    """

    id: str
    clause_id: str
    base: Change
    step: Change
    context: Callable[[], AbstractContextManager] = nullcontext

    def __call__(self, valid: Mapping[str, object]) -> Arguments:
        """Return the mutated arguments."""
        return self.step(self.base(dict(valid)))


def mutations(contract: Contract) -> tuple[Mutation, ...]:
    """Return the steps across every clause of a contract, in the order of its clauses.

    They apply to any valid call of at least two live requests, two rows in some request, two
    slots, and fewer live requests than slots; `example_calls.example` is one.
    """
    found = []
    for clause in contract.clauses:
        base = base_of(contract, clause)
        context = torch.enable_grad if clause.aspect == "grad" else nullcontext
        for name, change in steps(contract, clause):
            ident = f"{clause.id}:{name}"
            found.append(Mutation(ident, clause.id, base, change, context))
        found += _stacked_steps(contract, clause, base)
    return tuple(found)


def _stacked_steps(contract: Contract, clause: Clause, base: Change) -> Iterator[Mutation]:
    """Yield the steps from a call with stacked layers, for buffers that follow the first one."""
    name = clause.argument
    stacking = {o.name for o in contract.operands[1:] if o.stacks}
    if name not in stacking or clause.aspect not in ("rank", "shape"):
        return
    layered = step.stacked(contract.operands)
    cut = {"rank": "not stacked", "shape": "one layer less"}[clause.aspect]
    change = step.replaced(name, lambda x: x[0] if clause.aspect == "rank" else x[1:])
    yield Mutation(f"{clause.id}:{cut}", clause.id, lambda a: layered(base(a)), change)


def base_of(contract: Contract, clause: Clause) -> Change:
    """Return how to reach the valid call that is one step from breaking a clause."""

    def base(valid: Arguments) -> Arguments:
        full = complete(contract, valid)
        if contract.name == "dspark" and clause.argument == "intermediate_ssm":
            rings = {o.name: None for o in contract.operands if o.group == "rings"}
            full = {**full, **rings, "intermediate_ssm": snapshots(contract, full)}
        if clause.id == "mtp.A_log.needed" or clause.id == "mtp.lower_bound.unwanted":
            full = {**full, "gate_form": "softplus", "lower_bound": None}
        if clause.id in ("mtp.A_log.unwanted", "mtp.dt_bias.unwanted"):
            raw = dict(gate_form="given", lower_bound=None, A_log=None, dt_bias=None)
            full = {**full, **raw}
        if clause.argument in ("mamba_track_indices", "accept_lens"):
            full = tracking(full)
        return full

    return base


def snapshots(contract: Contract, full: Arguments) -> torch.Tensor:
    """Return a snapshot buffer that fits a drop-in call."""
    call = contract.call(full)
    rows, depth, heads = call.dim("scratch_rows"), call.dim("L"), call.dim("H")
    assert rows
    assert depth
    assert heads
    return step.tensor(full, "recurrent_state").new_zeros(rows, depth, heads, 128, 128)


def tracking(full: Arguments) -> Arguments:
    """Return a commit in which every request accepts one token and could store it."""
    indices = step.tensor(full, "ssm_state_indices")
    ones = torch.ones_like(indices)
    if "mamba_track_indices" not in full:
        return {**full, "accept_lens": ones}
    track = {"mamba_track_indices": -ones, "mamba_steps_to_track": torch.zeros_like(indices)}
    return {**full, **track, "accept_lens": ones}


def steps(contract: Contract, clause: Clause) -> Steps:
    """Yield the steps across one clause, each with a short name."""
    operand = next((o for o in contract.operands if o.name == clause.argument), None)
    option = next((o for o in contract.options if o.name == clause.argument), None)
    if clause.aspect in ("group", "needed"):
        yield "none", step.given(**{clause.argument: None})
    elif clause.aspect == "type" and operand is not None:
        yield from _not_tensors(contract, operand)
    elif clause.aspect == "type" and option is not None:
        for name, value in WRONG_KINDS[option.kind].items():
            yield name, step.given(**{option.name: value})
        if option.required:
            yield "none", step.given(**{option.name: None})
    elif operand is not None and clause.aspect in _TENSOR_STEPS:
        yield from _TENSOR_STEPS[clause.aspect](contract, operand)
    else:
        yield from value_steps(contract, clause)


def _not_tensors(contract: Contract, operand: Operand) -> Steps:
    name = operand.name
    yield "list", step.given(**{name: [0, 1]})
    yield "number", step.given(**{name: 0.0})
    yield "sparse", step.replaced(name, lambda x: x.to_sparse())
    if operand.required:
        yield "none", step.given(**{name: None})
    if name == contract.anchor:
        yield "nested", step.replaced(name, lambda x: torch.nested.as_nested_tensor([x, x]))


def _ranks(contract: Contract, operand: Operand) -> Steps:
    name = operand.name
    more = 2 if operand.stacks and name == contract.anchor else 1
    yield "more", step.replaced(name, lambda x: x[(...,) + (None,) * more])
    yield "fewer", step.replaced(name, lambda x: x[0])


def _shapes(contract: Contract, operand: Operand) -> Steps:
    name = operand.name
    if not operand.ranked:
        yield "extra axis", step.replaced(name, lambda x: x[..., None])
        yield "no first axis", step.replaced(name, lambda x: x[0])
    if name == "beta" and operand.shape[0] == "1":
        yield "per token", step.replaced(name, lambda x: step.resized(x, -1, x.shape[-1] + 1))
        yield "shared", step.replaced(name, lambda x: step.resized(x, -1, 1))
    for axis, size in enumerate(operand.shape):
        if size in operand.defines or size.startswith(">=") or size in ("rows", "depth"):
            continue
        at = axis - len(operand.shape)
        yield f"more of axis {axis}", step.replaced(name, _longer(at, 1))
        if size.isdecimal() and size != "1":
            yield f"less of axis {axis}", step.replaced(name, _longer(at, -1))


def _longer(axis: int, by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: step.resized(x, axis, x.shape[axis] + by)


def _shorter(limit: str, axis_of: Callable[[Operand], int]) -> Finder:
    def found(contract: Contract, operand: Operand) -> Steps:
        axis = axis_of(operand) - len(operand.shape)

        def change(arguments: Arguments) -> Arguments:
            call = contract.call(arguments)
            least = call.dim(limit) or call.dim("max_tokens") or call.dim("L")
            assert least, f"{limit} is not known"
            value = step.tensor(arguments, operand.name)
            return {**arguments, operand.name: step.resized(value, axis, least - 1)}

        yield "one less", change

    return found


def _dtypes(contract: Contract, operand: Operand) -> Steps:
    name = operand.name
    if not operand.is_float:
        for dtype in (torch.int64, torch.int16, torch.float32):
            yield str(dtype), step.replaced(name, _cast(dtype))
        return
    yield "float64", step.replaced(name, lambda x: x.double())
    yield "complex64", step.replaced(name, lambda x: x.to(torch.complex64))
    if operand.dtypes is None or len(operand.dtypes) == 1:
        yield "other float", step.replaced(name, _other_float)


def _cast(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(dtype)


def _other_float(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32)


def _elsewhere(contract: Contract, operand: Operand) -> Steps:
    yield "meta", step.replaced(operand.name, lambda x: x.to("meta"))


def _one(name: str, change: Callable[[torch.Tensor], object]) -> Finder:
    def found(contract: Contract, operand: Operand) -> Steps:
        yield name, step.replaced(operand.name, change)

    return found


def _blocks(contract: Contract, operand: Operand) -> Steps:
    yield "transposed", step.replaced(operand.name, lambda x: x.mT.contiguous().mT)
    yield (
        "padded rows",
        step.replaced(operand.name, lambda x: step.pitched(x, 4, outer=x.dim() - 1)),
    )
    between = step.replaced(operand.name, lambda x: step.pitched(x, 4, outer=x.dim() - 2))
    yield "gaps between heads", between
    yield "spread", step.replaced(operand.name, step.spread)


def _pitches(contract: Contract, operand: Operand) -> Steps:
    for extra in (1, 2, 3):
        yield f"multiple of 4 and {extra}", step.replaced(operand.name, _odd_pitch(extra))


def _odd_pitch(remainder: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(x: torch.Tensor) -> torch.Tensor:
        block = x.shape[-3] * x.shape[-2] * x.shape[-1]
        return step.pitched(x, (remainder - block) % 4 or 4, outer=x.dim() - 3)

    return change


def _overlaps(contract: Contract, operand: Operand) -> Steps:
    """Share 16 bytes or one element with inputs on either side, and with the last written."""
    inputs = [o for o in contract.operands if not o.written and o.is_float]
    yield inputs[-1].name, step.joined(inputs[-1].name, operand.name)
    yield inputs[0].name, step.joined(inputs[0].name, operand.name)
    yield f"{inputs[0].name} after it", step.joined(operand.name, inputs[0].name)
    yield f"{inputs[0].name} at its last element", step.touching(operand.name, inputs[0].name)
    written = [o for o in contract.operands if o.written and o.name != operand.name]
    later = [o for o in written if contract.operands.index(o) > contract.operands.index(operand)]
    if later:
        yield later[-1].name, step.joined(later[-1].name, operand.name)


_TENSOR_STEPS: dict[str, Finder] = {
    "rank": _ranks,
    "shape": _shapes,
    "slots": _shorter("slots", lambda operand: operand.shape.index(">=slots")),
    "depth": _shorter(
        "capacity",
        lambda operand: 1 if operand.shape[0] == "rows" else operand.shape.index("R"),
    ),
    "dtype": _dtypes,
    "device": _elsewhere,
    "last-stride": _one("stride 2", step.spread),
    "inner-dense": _blocks,
    "pitch": _pitches,
    "offset": _one("offset 2", lambda x: step.moved(x, 2)),
    "address": _one("odd address", step.at_odd_address),
    "grad": _one("requires grad", step.with_gradient),
    "self-overlap": _one("expanded", step.folded),
    "overlap": _overlaps,
}

__all__ = ["Mutation", "Option", "example", "mutations"]
