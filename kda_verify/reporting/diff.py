"""What changed from one run to another, and whether it is worse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..judging.verdict import CLASSES, UNJUDGED, Outcome

FACTOR = 2.0
"""A worst ratio that moves by no more than this is the luck of the cases drawn."""

NOTED = ("worse", "better", "other")


@dataclass(frozen=True)
class Change:
    """One thing that differs.

    Attributes:
        kind: "worse", "better" or "other".
        text: one line that names it, with what it was and what it is.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:<7}{self.text}"


def changes(a: Mapping[str, Any], b: Mapping[str, Any], factor: float = FACTOR) -> list[Change]:
    """List what differs between two runs, what is worse first.

    Worse is: a verdict or a check that no longer passes, a kernel, output or region no longer
    judged, a looser precision class, a worst ratio over `factor` times what it was.

    Args:
        a, b: the earlier and the later run, as `stored.load` returns them.
        factor: how far a worst ratio may move unmentioned, over 1.
    """
    found = list(_runs(a, b, factor))
    return sorted(found, key=lambda change: NOTED.index(change.kind))


def unjudged(run: Mapping[str, Any]) -> bool:
    """Whether a run judged nothing."""
    return all(_word(s) == 1 for s in run["subjects"])


def _runs(a: Mapping[str, Any], b: Mapping[str, Any], factor: float) -> Iterator[Change]:
    before, after = ({s["kernel"]: s for s in run["subjects"]} for run in (a, b))
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            yield Change("worse", f"{name}: no longer in the run")
        elif name not in before:
            kind = "worse" if _word(after[name]) == 0 else "other"
            yield Change(kind, f"{name}: new in the run, {after[name]['verdict']}")
        else:
            for change in _kernels(before[name], after[name], factor):
                yield Change(change.kind, f"{name}: {change.text}")
    yield from _stages(a.get("stages", ()), b.get("stages", ()))
    yield from _surroundings(a, b)


def _kernels(a: Mapping[str, Any], b: Mapping[str, Any], factor: float) -> Iterator[Change]:
    if a["verdict"] != b["verdict"]:
        kind = ("worse", "other", "better")[1 + _sign(_word(b) - _word(a))]
        if _word(b) == 1 > _word(a):
            kind = "other"  # a failure that was not asked about again is not mended
        yield Change(kind, f"verdict {a['verdict']} -> {b['verdict']}")
    looser = _sign(_rank(b) - _rank(a)) if _rank(a) >= 0 <= _rank(b) else 0
    if looser:
        kind = "worse" if looser > 0 else "better"
        yield Change(kind, f"class {a['precision_class']} -> {b['precision_class']}")
    for key in ("outputs", "regions"):
        if (key in a) != (key in b):
            lacking = "first" if key in b else "second"
            yield Change("other", f"{key} not compared: the {lacking} run holds none")
    if all("outputs" in run for run in (a, b)):
        before, after = ({o["operand"]: _ratio(o, "worst") for o in r["outputs"]} for r in (a, b))
        for name in dict.fromkeys([*before, *after]):
            yield from _moved(f"{name}, worst ratio", before.get(name), after.get(name), factor)
    else:
        was, now = (_ratio(run.get("worst") or {}, "ratio") for run in (a, b))
        yield from _moved("worst ratio", was, now, factor)
    if all("regions" in run for run in (a, b)):
        lost = [r for r in a["regions"] if r not in b["regions"]]
        gained = [r for r in b["regions"] if r not in a["regions"]]
        if lost:
            yield Change("worse", f"regions lost: {', '.join(lost)}")
        if gained:
            yield Change("better", f"regions gained: {', '.join(gained)}")
    counts = [run.get("distinct_cases") for run in (a, b)]
    if counts[0] != counts[1]:
        yield Change("other", f"cases {_shown(counts[0])} -> {_shown(counts[1])}")


def _moved(what: str, a: float | None, b: float | None, factor: float) -> Iterator[Change]:
    if a is None and b is None:
        return
    if a is None or b is None:
        kind = "worse" if b is None else "other"
        yield Change(kind, f"{what} {_shown(a)} -> {_shown(b)}")
    elif b > factor * a or (b > 1 >= a):
        yield Change("worse", f"{what} {_shown(a)} -> {_shown(b)}")
    elif a > factor * b or (a > 1 >= b):
        yield Change("better", f"{what} {_shown(a)} -> {_shown(b)}")


def _stages(a: Any, b: Any) -> Iterator[Change]:
    before, after = ({s["name"]: s["outcome"] for s in stages} for stages in (a, b))
    rank = {"not-run": 1, "pass": 2}
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        if was is None or now is None:
            kind = "worse" if now in (None, "fail") else "other"
        else:
            kind = "better" if rank.get(now, 0) > rank.get(was, 0) else "worse"
        yield Change(kind, f"check {name}: {was or 'absent'} -> {now or 'absent'}")


def _surroundings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    one, other = ({**run.get("environment", {}), "seed": run.get("seed")} for run in (a, b))
    for name in dict.fromkeys([*one, *other]):
        if name != "date" and one.get(name) != other.get(name):
            yield Change("other", f"{name}: {_shown(one.get(name))} -> {_shown(other.get(name))}")


def _word(subject: Mapping[str, Any]) -> int:
    """Rank a verdict: 0 a failure, 1 nothing judged, 2 a pass."""
    word = subject["verdict"]
    return 2 if word == Outcome.PASS else 1 if word in set(map(str, UNJUDGED)) else 0


def _rank(subject: Mapping[str, Any]) -> int:
    """Rank a precision class from the tightest; -1 where none is known."""
    name = subject.get("precision_class")
    return CLASSES.index(name) if name in CLASSES else -1


def _ratio(holder: Mapping[str, Any], key: str) -> float | None:
    """Return a stored ratio; null stands for an infinite one, and None means that there is none."""
    if key not in holder:
        return None
    return math.inf if holder[key] is None else float(holder[key])


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:.3g}"
    return "none" if value is None else str(value)
