"""What a judged call is found to be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from ..cases.case import Case


class Outcome(str, Enum):
    """The dispositions, in the order in which they are looked for."""

    NOT_RUN = "not-run"
    NOT_SUPPORTED = "not-supported"
    OUT_OF_RANGE = "out-of-range"
    RAISED = "raised"
    NO_KERNEL = "no-kernel"
    WRONG_SHAPE = "wrong-shape"
    WRONG_DTYPE = "wrong-dtype"
    ALIASED = "aliased"
    WROTE_OUTSIDE = "wrote-outside"
    NON_FINITE = "non-finite"
    INCORRECT = "incorrect"
    PASS = "pass"

    def __str__(self) -> str:
        return self.value


CLASSES = ("fp32", "tf32", "bf16", "none")
"""Precision classes from the tightest; "none" where not even the budget of the last holds."""

UNJUDGED = (Outcome.NOT_RUN, Outcome.NOT_SUPPORTED, Outcome.OUT_OF_RANGE)
"""The outcomes that say nothing about the subject."""

FAILURES = tuple(o for o in Outcome if o not in (*UNJUDGED, Outcome.PASS))
"""The outcomes that are the subject's fault."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one case for one subject.

    Attributes:
        outcome: what was found.
        subject: name of the subject.
        case: the case judged.
        where: operand and index of the worst element, or of the first fault.
        ratio: worst |error| / budget over every judged element; 0 where nothing was judged.
        ratios: worst ratio per operand.
        positions: worst ratio per operand at each token of its request; operands without tokens,
            and what must be met exactly, are left out.
        detail: one line that says what was expected and what came.
        precision_class: the tightest class whose budget holds ("" where it was not looked for).
        sensitivity: smallest relative fault that a passing case would have shown, per operand with
            its dtype and kind of fault (see `sensitivity`); empty where it was not asked for.
        kernels: names of the kernels that really ran.
        seconds: wall time of build, oracle, call and comparison.
    """

    outcome: Outcome
    subject: str
    case: Case
    where: str = ""
    ratio: float = 0.0
    ratios: dict[str, float] = field(default_factory=dict)
    positions: dict[str, tuple[float, ...]] = field(default_factory=dict)
    detail: str = ""
    precision_class: str = ""
    sensitivity: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether the subject did something wrong."""
        return self.outcome in FAILURES

    @property
    def judged(self) -> bool:
        """Whether the subject was put to the case at all."""
        return self.failed or self.outcome == Outcome.PASS

    @property
    def replay(self) -> str:
        """The command that judges this case again."""
        return f"kda-verify replay --kernel {self.subject} '{self.case.to_json()}'"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the JSON report."""
        data = asdict(self)
        data["case"] = self.case.to_json()
        data["replay"] = self.replay
        return data

    def __str__(self) -> str:
        text = f"{self.subject}: {self.outcome}"
        if self.where:
            text += f" at {self.where}"
        if self.ratio:
            text += f", {self.ratio:.3g} times the budget"
        if self.detail:
            text += f"\n  {self.detail}"
        return f"{text}\n  replay: {self.replay}"
