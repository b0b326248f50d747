"""Clauses on arguments that are not tensors: type, range, choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .call import Call, described, join
from .clause import Clause, Stage
from .operand import Option

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str": (str,),
}
_ARTICLE = {"int": "an int", "float": "a float", "bool": "a bool", "str": "a str"}


def option_clauses(contract: str, options: Sequence[Option]) -> list[Clause]:
    """Return the clauses that follow from the options alone: type, finiteness, choice."""
    clauses = []
    for option in options:
        clauses.append(is_kind(contract, option))
        if option.kind == "float":
            clauses.append(is_finite(contract, option))
        if option.choices:
            clauses.append(is_choice(contract, option))
    return clauses


def is_kind(contract: str, option: Option) -> Clause:
    name, kinds = option.name, _KINDS[option.kind]

    def predicate(call: Call) -> str | None:
        value = call.argument(name)
        if value is None:
            return "None" if option.required else None
        is_wrong_bool = isinstance(value, bool) and option.kind != "bool"
        return described(value) if is_wrong_bool or not isinstance(value, kinds) else None

    wanted = f"be {_ARTICLE[option.kind]}" + ("" if option.required else " or None")
    return Clause(f"{contract}.{name}.type", name, "type", wanted, predicate)


def is_finite(contract: str, option: Option) -> Clause:
    return holds(contract, option.name, "finite", "be finite", math.isfinite)


def is_choice(contract: str, option: Option) -> Clause:
    name = option.name

    def predicate(call: Call) -> str | None:
        value = call.argument(name)
        return None if value in option.choices else repr(value)

    wanted = f"be {join(map(repr, option.choices), 'or')}"
    return Clause(f"{contract}.{name}.choice", name, "value", wanted, predicate)


def holds(
    contract: str, name: str, aspect: str, wanted: str, condition: Callable[[float], bool]
) -> Clause:
    """Return a clause on the value of a number; None passes."""

    def predicate(call: Call) -> str | None:
        value = call.argument(name)
        if not isinstance(value, int | float) or condition(value):
            return None
        return repr(value)

    return Clause(f"{contract}.{name}.{aspect}", name, "value", wanted, predicate)


def equals_dim(contract: str, name: str, dim: str) -> Clause:
    """Return a clause that an int states the size of a dim."""

    def predicate(call: Call) -> str | None:
        value = call.argument(name)
        return None if value == call.dim(dim) else repr(value)

    return Clause(f"{contract}.{name}.dim", name, "conflict", f"equal {{{dim}}}", predicate)


def needed(
    contract: str,
    name: str,
    aspect: str,
    stage: Stage,
    wanted: str,
    condition: Callable[[Call], str | None],
) -> Clause:
    """Return a clause that an argument is given where `condition` names a reason."""

    def predicate(call: Call) -> str | None:
        reason = None if call.given(name) else condition(call)
        return None if reason is None else f"None {reason}"

    return Clause(f"{contract}.{name}.{aspect}", name, stage, wanted, predicate)


def unwanted(
    contract: str, name: str, aspect: str, wanted: str, condition: Callable[[Call], str | None]
) -> Clause:
    """Return a clause that an argument is None where `condition` names a reason."""

    def predicate(call: Call) -> str | None:
        reason = condition(call) if call.given(name) else None
        return None if reason is None else f"{described(call.argument(name))} {reason}"

    return Clause(f"{contract}.{name}.{aspect}", name, "conflict", wanted, predicate)
