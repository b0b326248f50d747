"""The arguments of an operation as data: tensors by shape and dtype, options by type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP32 = (torch.float32,)
BF16 = (torch.bfloat16,)
INT32 = (torch.int32,)


@dataclass(frozen=True)
class Operand:
    """A tensor argument.

    Attributes:
        name: of the argument.
        shape: axes by name; digits are that size, ">=L" at least L (a clause of its own), any
            other name the size that its defining operand has.
        dtypes: allowed; None for the dtype of the contract's first operand.
        meaning: for the documentation.
        required: None is refused.
        written: the call writes it.
        unit_last: the last axis has unit stride; the other strides are free.
        defines: the axes whose size this operand sets.
        stacks: it gains a leading layer dim where layers are stacked.
        ranked: its rank is a clause; otherwise its shape clause refuses other ranks.
        group: operands and options that come together or not at all.
    """

    name: str
    shape: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] | None
    meaning: str
    required: bool = False
    written: bool = False
    unit_last: bool = False
    defines: tuple[str, ...] = ()
    stacks: bool = False
    ranked: bool = True
    group: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it can require a gradient."""
        return self.dtypes is None or all(dtype.is_floating_point for dtype in self.dtypes)

    def rank(self, lead: int) -> int:
        """Return its rank with `lead` layer dims where it is stacked."""
        return len(self.shape) + (lead if self.stacks else 0)

    def template(self) -> str:
        """Return its shape as a requirement writes it: "[1, {T}, {HV}]"."""
        axes = ", ".join(axis_template(axis) for axis in self.shape)
        return f"[{{layers, }}{axes}]" if self.stacks else f"[{axes}]"


@dataclass(frozen=True)
class Option:
    """An argument that is not a tensor.

    Attributes:
        name: of the argument.
        kind: what it is.
        default: None also where it has none.
        required: None is refused.
        choices: of a string.
        meaning: for the documentation.
        group: as of an operand.
    """

    name: str
    kind: Literal["int", "float", "bool", "str"]
    meaning: str
    default: object = None
    required: bool = False
    choices: tuple[str, ...] = ()
    group: str = ""


def axis_template(axis: str) -> str:
    """Return one axis as a requirement writes it: "4", "{T}", ">= {L}"."""
    if axis.isdecimal():
        return axis
    return f">= {{{axis[2:]}}}" if axis.startswith(">=") else f"{{{axis}}}"


def products(dims: dict[str, int], *names: str) -> None:
    """Add the dims "A*B" whose factors, names or digits, are known."""
    for name in names:
        factors = [int(f) if f.isdecimal() else dims.get(f) for f in name.split("*")]
        if all(factor is not None for factor in factors):
            result = 1
            for factor in factors:
                result *= factor or 0
            dims[name] = result


def whole(arguments: Mapping[str, object], name: str) -> int | None:
    """Return an argument that is an int and no bool."""
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
