"""What a kernel under test declares, and how it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.utils.deterministic
from torch import Tensor

from kda_ref import Precision

from ..cases.assembly import Built
from ..cases.case import Case

Condition = tuple[str, Callable[[Case], bool]]


@dataclass(frozen=True)
class Claims:
    """What a subject says it supports and how exact it is.

    Attributes:
        precision: arithmetic and rounding points, as compiled.
        grain: how far a non-finite input may spread, "token" or "head".
        choices: allowed values of case fields; fields not named are free.
        conditions: (reason, holds) pairs for what `choices` cannot say.
        triton: whether Triton kernels compute what is stored. Their interpreter truncates, and a
            call that launches none of them was answered by something else.
    """

    precision: Precision = field(default_factory=Precision)
    grain: str = "token"
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    triton: bool = True

    def refusal(self, case: Case) -> str:
        """Say why the subject does not support a case; "" where it does."""
        for name, allowed in self.choices.items():
            if getattr(case, name) not in allowed:
                return f"{name}={getattr(case, name)!r} is not claimed"
        for reason, holds in self.conditions:
            if not holds(case):
                return reason
        return ""


class Subject(Protocol):
    """An adapter: conversion only, no mathematics."""

    @property
    def name(self) -> str:
        """Name it is listed, reported and replayed under."""

    @property
    def operation(self) -> str:
        """The case operation it answers."""

    @property
    def claims(self) -> Claims:
        """What it declares."""

    def unavailable(self) -> str:
        """Say why the subject cannot run here; "" where it can."""

    def call(self, built: Built) -> dict[str, Tensor]:
        """Run the kernel on the built operands; return what it returned, by operand name."""


@runtime_checkable
class Importable(Protocol):
    """A subject that is one function of a package, so that a script can call it without us."""

    @property
    def entry(self) -> tuple[str, str]:
        """Module and name of the function."""

    def keywords(self, built: Built) -> dict[str, Any]:
        """Return the keywords the function is called with."""


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter in this process."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def effective_precision(claims: Claims) -> Precision:
    """Return the declared precision as it is here: the interpreter truncates narrow casts."""
    return replace(claims.precision, truncating_store=claims.triton and interpreted())


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Fill what `torch.empty` allocates inside the block with NaN."""
    was, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warn_only)
        memory.fill_uninitialized_memory = filled


@contextmanager
def recorded_kernels() -> Iterator[list[str]]:
    """Collect the names of the Triton kernels launched inside the block."""
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction

    names: list[str] = []
    interpret = InterpretedFunction.run

    def launched(metadata: Any) -> None:
        names.append(metadata.get()["name"])

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(self.fn.__name__)
        return interpret(self, *args, **kwargs)

    knobs.runtime.launch_enter_hook.add(launched)
    InterpretedFunction.run = run
    try:
        yield names
    finally:
        InterpretedFunction.run = interpret
        knobs.runtime.launch_enter_hook.remove(launched)
