"""What takes part: ours and the peers, each as a call on a set of operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kda_ref import Precision
from kda_verify.cases.assembly import Built

from .inputs import Inputs
from .rows import Row

Call = Callable[[], Mapping[str, Tensor]]
"""Run once on the operands it was bound to; return what it put elsewhere, by operand name."""

PEER_TOLERANCE = 4.0
"""What peers may take of the budget: their fast exponentials and quotients are not declared, and
a wider class would let wrong answers pass (at the roundoff of bf16 even zeros do)."""


class Contender:
    """A kernel in one released configuration.

    Attributes:
        name: as listed; says the configuration.
        peer: whose it is: "ours", "sglang" or "fla".
        precision: the arithmetic and rounding points it declares, or that its source shows.
        tolerance: how many times the budget of that arithmetic its errors may take: one for ours.
        grain: how far it may spread a non-finite input; see `kda_verify.subjects.Claims`.
        judged_requests: how many requests the oracle is asked for; all where None.
        also_writes: operands that it changes although the contract calls them read-only.
        note: what sets its work apart from the row's; a partial one is shown and not compared.
        partial: whether it leaves out some of the row's work.
        compiles_per_batch: whether another number of requests compiles it anew.
    """

    name: str = ""
    peer: str = ""
    precision: Precision = Precision()
    tolerance: float = 1.0
    grain: str = "token"
    judged_requests: int | None = None
    also_writes: frozenset[str] = frozenset()
    note: str = ""
    partial: bool = False
    compiles_per_batch: bool = False

    def unavailable(self) -> str:
        """Say why it cannot run here; "" where it can."""
        return ""

    def refusal(self, row: Row) -> str:
        """Say why it does not do a row; "" where it does."""
        return ""

    def question(self, inputs: Inputs) -> Built:
        """Return the call that the oracle answers; the row's own unless the work differs."""
        return inputs.built

    def bind(self, inputs: Inputs) -> Call:
        """Prepare a call on a set of operands; whatever needs no timing happens here."""
        raise NotImplementedError

    @contextmanager
    def observed(self) -> Iterator[list[dict[str, Any]]]:
        """Collect the launches made inside the block: kernel names, and constants where known."""
        from kda_verify.subjects.base import recorded_kernels

        launches: list[dict[str, Any]] = []
        with recorded_kernels() as names:
            yield launches
        launches += [{"kernel": name} for name in dict.fromkeys(names)]


@dataclass(frozen=True)
class NotRun:
    """A peer that cannot run here.

    Attributes:
        peer: its name.
        reason: why, in one line.
    """

    peer: str
    reason: str


@contextmanager
def no_grad() -> Iterator[None]:
    """Keep peers that go through autograd from recording anything."""
    with torch.no_grad():
        yield
