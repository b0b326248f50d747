"""Clauses as data, and the contract that checks them in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from .call import Call, Derive, Names, Static
from .operand import Operand, Option

Stage = Literal["type", "rank", "shape", "dtype", "device", "layout", "value", "conflict"]
Reads = Literal["metadata", "memory", "contents"]
Predicate = Callable[[Call], str | None]
STAGES: tuple[Stage, ...] = (
    "type", "rank", "shape", "dtype", "device", "layout", "value", "conflict",
)  # fmt: skip

# Metadata of this many different calls is remembered as accepted before starting afresh.
REMEMBERED = 4096


@dataclass(frozen=True)
class Clause:
    """One requirement on one argument.

    Attributes:
        id: stable name, "<contract>.<argument>.<aspect>".
        argument: the argument it names.
        stage: which of the ordered stages it belongs to.
        requirement: completes "`argument` must ..."; `{T}` stands for a named dim.
        predicate: returns None when satisfied, otherwise what was observed.
        hint: what to do about it, as text or read from the call.
        reads: metadata (shapes, strides, dtypes, devices and options), memory (addresses) or
            contents (elements of tensors, checked only where values are checked).
    """

    id: str
    argument: str
    stage: Stage
    requirement: str
    predicate: Predicate
    hint: str | Callable[[Call], str | None] | None = None
    reads: Reads = "metadata"

    @property
    def aspect(self) -> str:
        """The last part of the id."""
        return self.id.rpartition(".")[2]

    def message(self, call: Call, observed: str, names: Names) -> str:
        """Return the text of a refusal."""
        hint = self.hint(call) if callable(self.hint) else self.hint
        requirement = self.requirement.format_map(names)
        text = f"`{self.argument}` must {requirement}, got {observed}"
        return f"{text} ({hint})" if hint else text


def ordered(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """Return clauses stage by stage, otherwise in the order they are in."""
    return tuple(sorted(clauses, key=lambda clause: STAGES.index(clause.stage)))


@dataclass(frozen=True, eq=False)
class Contract:
    """What one operation requires of its arguments.

    Metadata that was accepted once is remembered, so a call that repeats it checks only what
    metadata does not decide: addresses and, where asked for, elements.

    Attributes:
        name: first part of every clause id.
        operation: name of the function that checks it.
        operands: tensor arguments; the first sets dtype and device of the others.
        options: the other arguments.
        clauses: in the order in which they are checked.
        derive: adds dims that follow from those the operands define.
        effective: returns the arguments without those that this call ignores.
        released: how many clauses each check of the released function takes; they come first.
    """

    name: str
    operation: str
    operands: tuple[Operand, ...]
    options: tuple[Option, ...]
    clauses: tuple[Clause, ...]
    derive: Derive
    effective: Callable[[Mapping[str, object]], Mapping[str, object]] | None = None
    released: tuple[int, ...] = ()
    _tensors: tuple[str, ...] = field(init=False, repr=False)
    _defaults: dict[str, object] = field(init=False, repr=False)
    _memory: tuple[Clause, ...] = field(init=False, repr=False)
    _elements: tuple[Clause, ...] = field(init=False, repr=False)
    _accepted: dict[tuple, Static] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        memory = tuple(c for c in self.clauses if c.reads == "memory")
        changing = tuple(c for c in self.clauses if c.reads != "metadata")
        prepared = {
            "_tensors": tuple(o.name for o in self.operands),
            "_defaults": {o.name: o.default for o in self.options},
            "_memory": memory,
            "_elements": changing,
            "_accepted": {},
        }
        for name, value in prepared.items():
            object.__setattr__(self, name, value)

    @property
    def anchor(self) -> str:
        """The operand whose dtype and device the others follow."""
        return self.operands[0].name

    def call(self, arguments: Mapping[str, object]) -> Call:
        """Prepare arguments for the predicates without checking them."""
        if self.effective is not None:
            arguments = self.effective(arguments)
        static = Static.read(self.operands, self.derive, arguments)
        return Call(arguments, self._defaults, static, None)

    def validate(self, arguments: Mapping[str, object]) -> None:
        """Check every clause in order and refuse at the first that does not hold.

        Args:
            arguments: by keyword; a missing one counts as its default, or as None.

        Raises:
            ValueError: "`argument` must <requirement>, got <observed>", with a hint where one
                helps. Nothing has been read or written then but what the clauses read.
        """
        if self.effective is not None:
            arguments = self.effective(arguments)
        key, pointers = self._signature(arguments)
        try:
            known = None if key is None else self._accepted.get(key)
        except TypeError:  # An option that cannot be hashed is of a wrong type; its clause says so.
            key = known = None
        static = known or Static.read(self.operands, self.derive, arguments)
        call = Call(arguments, self._defaults, static, pointers if known else None)
        if known is None:
            pending = self.clauses
        else:
            pending = self._elements if self._checks_values(call) else self._memory
        for clause in pending:
            if clause.reads == "contents" and not self._checks_values(call):
                continue
            observed = clause.predicate(call)
            if observed is not None:
                raise ValueError(clause.message(call, observed, call.names(self.anchor)))
        if known is None and key is not None:
            if len(self._accepted) >= REMEMBERED:
                self._accepted.clear()
            self._accepted[key] = static

    def _checks_values(self, call: Call) -> bool:
        asked = call.argument("check_values")
        if asked is not None:
            return bool(asked)
        anchor = call.meta(self.anchor)
        return anchor is not None and anchor.device.type == "cpu"

    def _signature(self, arguments: Mapping[str, object]) -> tuple[tuple | None, list[int]]:
        """Return all that metadata clauses can see, and the addresses; None if it is unusual.

        Unusual is whatever this quick look cannot tell apart: no tensor, no memory (empty, or a
        meta tensor), or gradients wanted.
        """
        get = arguments.get
        parts: list[object] = []
        pointers: list[int] = []
        records_gradients = torch.is_grad_enabled()
        for name in self._tensors:
            value = get(name)
            if value is None:
                parts.append(None)
                continue
            if not isinstance(value, Tensor) or (records_gradients and value.requires_grad):
                return None, pointers
            try:
                pointer = value.data_ptr()
                parts.append((value.dtype, value.get_device(), value.shape, value.stride()))
            except RuntimeError:
                return None, pointers
            if not pointer:
                return None, pointers
            pointers.append(pointer)
        for name, default in self._defaults.items():
            option = get(name, default)
            parts.append(type(option))
            parts.append(option)
        return tuple(parts), pointers
