"""The kernels there are: what each claims, and whether it can run here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from rich.table import Table

from kda_ref import UNIT_ROUNDOFF

from .subjects import Claims, Subject
from .subjects.base import interpreted


def table(subjects: Iterable[Subject], device: str) -> Table:
    """Tabulate subjects, on a device."""
    rendered = Table()
    for column in ("kernel", "operation", "claims", "here"):
        rendered.add_column(column, overflow="fold", no_wrap=column == "kernel")
    for subject in subjects:
        rendered.add_row(
            subject.name,
            subject.operation,
            "; ".join(claimed(subject.claims)),
            here(subject, device),
        )
    return rendered


def claimed(claims: Claims) -> list[str]:
    """Say what a subject claims: arithmetic, grain, then the cases it leaves out."""
    precision = claims.precision
    classes = {unit: name for name, unit in UNIT_ROUNDOFF.items()}
    stages = {"products": precision.products, "inputs": precision.inputs}
    said = [f"{classes.get(unit, f'u = {unit:.2g}')} {stage}" for stage, unit in stages.items()]
    if precision.cumulative_gates:
        said.append(f"cumulative gates, anew every {precision.chunk} tokens")
    if precision.naive_softplus:
        said.append("softplus without its tail")
    rounded = {name: dtype for name, dtype in asdict(precision.rounding).items() if dtype}
    said += [f"rounds {n} to {str(d).removeprefix('torch.')}" for n, d in rounded.items()]
    said.append(f"spreads NaN by {claims.grain}")
    for name, allowed in claims.choices.items():
        only = ", ".join(map(_value, allowed))
        said.append(f"{name} {only} only" if len(allowed) == 1 else f"{name} one of {only}")
    return [*said, *(reason for reason, _ in claims.conditions)]


def here(subject: Subject, device: str) -> str:
    """Say how a subject runs on a device, or why it cannot."""
    if reason := subject.unavailable():
        return f"cannot run: {reason}"
    if not subject.claims.triton:
        return f"can run: torch on {device}"
    return f"can run: {'interpreted' if interpreted() else 'compiled'} on {device}"


def _value(value: object) -> str:
    return "none" if value == () else str(value)
