"""Case sets: the drawn cases, and what is left of them as one thing after another is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..cases.case import Case
from ..operations import registry
from ..plan import drawn


@dataclass(frozen=True)
class CaseSet:
    """Name a way to change drawn cases.

    Attributes:
        name: of the set.
        says: what is given up, in words.
        change: from the drawn cases to those of the set.
    """

    name: str
    says: str
    change: Callable[[Iterable[Case]], Iterator[Case]]


def nominal(case: Case) -> Case:
    """Give a case the values of common test recipes: unit normal, mild, full and dense."""
    return replace(unit_values(dense_layout(case)), poison="zeros")


def unit_values(case: Case) -> Case:
    """Give a case unit-normal values, mild gates and random strengths; layout and shape stay."""
    return replace(
        case, keys="random", gates="mild", taps="random", betas="random", values="unit",
        states="unit",
    )  # fmt: skip


def dense_layout(case: Case) -> Case:
    """Give a case full requests in dense, separate tensors without padding."""
    return replace(
        case, lengths=(case.capacity,) * case.requests, padding=(), slack_rows=0,
        rows="separate", pool="dense", conv_pool="dense", index_stride=1,
    )  # fmt: skip


def boundary_shape(case: Case) -> Case:
    """Give a case a shape at the edge of the domain: full blocks, the least or the most tokens."""
    size = (16, 64)[case.seed % 2]
    capacity = (1, 8)[case.seed // 2 % 2]
    return replace(
        case, heads=1, group=1, size_k=size, size_v=size, capacity=capacity,
        lengths=(capacity,) * min(case.requests, 2), padding=(), slack_rows=0,
    )  # fmt: skip


def one_per_shape(cases: Iterable[Case]) -> Iterator[Case]:
    """Keep the first case of every shape."""
    seen = set()
    for case in cases:
        shape = (case.heads, case.group, case.size_k, case.size_v, case.capacity)
        if shape not in seen:
            seen.add(shape)
            yield case


def _each(change: Callable[[Case], Case]) -> Callable[[Iterable[Case]], Iterator[Case]]:
    return lambda cases: (change(case) for case in cases)


GENERATED, NOMINAL = "generated", "nominal"
CASE_SETS = (
    CaseSet(GENERATED, "nothing: the cases as drawn", iter),
    CaseSet(NOMINAL, "value families, odd layouts, padding and poison", _each(nominal)),
    CaseSet("unit values", "value families", _each(unit_values)),
    CaseSet("boundary shapes", "all shapes but those at the edge", _each(boundary_shape)),
    CaseSet("one per shape", "further seeds of a shape", one_per_shape),
    CaseSet("no poison", "poison: memory that nobody may read holds zeros",
            _each(lambda case: replace(case, poison="zeros"))),
)  # fmt: skip


def cases_of(operation: str, name: str, count: int) -> list[Case]:
    """Draw the cases of an operation and change them as a set says, the same ones each time."""
    change = next(s for s in CASE_SETS if s.name == name).change
    make = registry.operation(operation).cases
    # A planted non-finite value has no reference that a published rule could be asked about.
    finite = [replace(case, spoil="none") for case in drawn(make(), count, 0)]
    return list(dict.fromkeys(change(finite)))
