"""Planted faults: known-wrong kernels that prove the checks can fail.

A `Plant` is one wrong line in a copy of the kernel package; `Planted` wraps any kernel, ours or
not, and spoils what it is given or what it returns. The plants themselves are in `plants`.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from ..cases.assembly import Built
from ..operations import facts
from ..subjects.base import Subject

PACKAGE = "kda_kernels"

_copies: dict[str, Iterator[int]] = {}


@dataclass(frozen=True)
class Plant:
    """One fault as a text patch of one module of the kernel package.

    Attributes:
        name: of the fault.
        module: of the package, without its suffix.
        anchor: text that occurs exactly once in the module.
        replacement: what stands there instead; its further lines are indented like the anchor's.
        description: what the kernel then does wrong.
        operation: the case operation that shows it, several of them with spaces between;
            "contract" where only an invalid call does, "drop-in" for the kernels of that name.
    """

    name: str
    module: str
    anchor: str
    replacement: str
    description: str
    operation: str = "verify"

    def apply(self, source: str) -> str:
        """Return the patched text of the module.

        Raises:
            ValueError: the anchor does not occur exactly once.
        """
        times = source.count(self.anchor)
        if times != 1:
            raise ValueError(
                f"`anchor` of plant {self.name} must occur exactly once in {self.module}.py, "
                f"got {times} times: {self.anchor!r}"
            )
        line = source[: source.index(self.anchor)].rpartition("\n")[2]
        indent = line[: len(line) - len(line.lstrip())]
        return source.replace(self.anchor, self.replacement.replace("\n", "\n" + indent))


@contextmanager
def planted(plant: Plant) -> Iterator[str]:
    """Import a copy of the kernel package with one fault, beside the real one.

    Yields:
        The name of the copy, for `subjects.ours.subjects(package=...)`. Gone after the block.

    Raises:
        ValueError: the fault does not apply to the present source.
    """
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    source = Path(str(spec.origin)).parent
    patched = plant.apply((source / f"{plant.module}.py").read_text(encoding="utf-8"))
    # Operators cannot be registered twice under one name in a process. Counting per plant, every
    # process gives the first copy the same name, so that they share the compiler's disk cache.
    number = next(_copies.setdefault(plant.name, count(1)))
    name = f"{PACKAGE}_{plant.name.replace('-', '_')}_{number}"
    with tempfile.TemporaryDirectory(prefix="kda-planted-") as folder:
        copy = Path(folder) / name
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / f"{plant.module}.py").write_text(patched, encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            importlib.invalidate_caches()
            importlib.import_module(name)
            yield name
        finally:
            sys.path.remove(folder)
            for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                del sys.modules[module]


FAULTS = ("zeros", "identity", "no carry", "decay left out")
GATES = ("g", "gk")


class Planted:
    """A subject spoiled by a fault that needs no knowledge of the kernel.

    The faults: "zeros" (all it wrote is zero), "identity" (returns v and leaves states as they
    were), "no carry" (the state is zeroed before the call), "decay left out" (the gate is removed
    before the call).

    Args:
        subject: what is wrapped; the name, the operation and the claims stay its own.
        fault: one of `FAULTS`.
        tidy: put inputs back and spare what the call does not own, so that the numbers alone are
            wrong. Otherwise zeros clears everything it is given, identity returns v itself, and
            the others leave pools and gates as spoiled: for the frame to find.

    Raises:
        ValueError: no such fault, or it means nothing for the operation.
    """

    def __init__(self, subject: Subject, fault: str, *, tidy: bool = True) -> None:
        if fault not in FAULTS:
            raise ValueError(f"`fault` must be one of {', '.join(FAULTS)}, got {fault!r}")
        self.facts = facts(subject.operation)
        if not self.facts.stateful and fault not in FAULTS[:2]:
            what = f"{subject.operation}, which has no state"
            raise ValueError(f"`fault` must be zeros or identity for a {what}, got {fault!r}")
        self.subject, self.fault, self.tidy = subject, fault, tidy
        self.name, self.operation, self.claims = subject.name, subject.operation, subject.claims

    def unavailable(self) -> str:
        """Say why the wrapped subject cannot run here."""
        return self.subject.unavailable()

    def call(self, built: Built) -> dict[str, Tensor]:
        """Run the wrapped subject with the fault."""
        spoil = {
            "zeros": self._zeros,
            "identity": self._identity,
            "no carry": self._no_carry,
            "decay left out": self._no_decay,
        }
        return spoil[self.fault](built)

    def _zeros(self, built: Built) -> dict[str, Tensor]:
        before = _copied(built)
        returned = self.subject.call(built)
        for name, old in before.items():
            now = built.arguments[name]
            if not self.tidy and now.is_floating_point():
                now.zero_()
            else:
                now.masked_fill_(~_same(now, old), 0)
        return {name: tensor.zero_() for name, tensor in returned.items()}

    def _identity(self, built: Built) -> dict[str, Tensor]:
        before, given = _copied(built), built.arguments
        returned = self.subject.call(built)
        for name in self.facts.carried:
            if name in before:
                given[name].copy_(before[name])
        if "out" not in returned:
            return {}
        assert self.facts.values is not None
        v = given[self.facts.values]
        if not self.tidy:
            return {**returned, "out": v}
        live = _live_rows(built).to(v.device).view(v.shape[:2])
        returned["out"][live] = v[live]
        if "final_state" in returned:
            state = returned["final_state"]
            state.zero_()
            if "initial_state" in given and "ssm_state_indices" not in given:
                state.copy_(given["initial_state"])
        return returned

    def _no_carry(self, built: Built) -> dict[str, Tensor]:
        def empty(name: str, state: Tensor) -> None:
            slots = _live_slots(built) if self.tidy else list(range(state.shape[-4]))
            for slot in slots:
                state[..., slot, :, :, :] = 0.0

        return self._with(built, self.facts.states, empty)

    def _no_decay(self, built: Built) -> dict[str, Tensor]:
        given = built.arguments.get("gate_form", "given") == "given"
        # Far below any bias or rate: both computed gates are then exactly zero.
        nothing = 0.0 if given else -1e4
        return self._with(built, GATES, lambda name, gate: gate.fill_(nothing))

    def _with(
        self, built: Built, names: tuple[str, ...], spoil: Callable[[str, Tensor], object]
    ) -> dict[str, Tensor]:
        """Call with some arguments spoiled; put back those that the call only reads."""
        before = {n: t for n, t in _copied(built).items() if n in names}
        written = self.facts.writes(built.arguments)
        for name in before:
            spoil(name, built.arguments[name])
        returned = self.subject.call(built)
        for name, old in before.items():
            if self.tidy and name not in written:
                built.arguments[name].copy_(old)
        return returned


def _copied(built: Built) -> Mapping[str, Tensor]:
    return {n: t.clone() for n, t in built.arguments.items() if isinstance(t, Tensor)}


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (torch.isnan(a) & torch.isnan(b))


def _live_rows(built: Built) -> Tensor:
    """Mask the token rows of live requests, [T]."""
    case = built.case
    rows = [n not in case.padding for n, length in enumerate(case.lengths) for _ in range(length)]
    return torch.tensor([*rows, *[False] * (case.tokens - len(rows))], dtype=torch.bool)


def _live_slots(built: Built) -> list[int]:
    """List the slots of live requests that have tokens: all that a call may advance."""
    return [built.slots[n] for n in built.case.busy]
