"""Any run, as its JSON holds it: verdicts of every kind, with texts that no page expects."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from kda_verify import summary
from kda_verify.cases.case import Case
from kda_verify.judging.sensitivity import FAULTS, SIZES
from kda_verify.judging.verdict import FAILURES, UNJUDGED, Outcome, Verdict
from kda_verify.reporting import stored
from kda_verify.summary import environment

KERNELS = ("kda_mtp_verify", "kda_replay_commit", "<b>&\"'mine_1.0</b>")
OUTPUTS = ("out", "final_state", "replayssm_g")
TEXTS = st.text(max_size=30) | st.sampled_from(
    [
        "</td><script>alert(1)</script>",
        "a\x00b\x1b[0m",
        "{{ 7 * 7 }}",
        "\ud7ff\ufffe",
        "]]>",
        "$\\x$",
    ]
)
RATIOS = st.sampled_from([0.0, 1e-9, 0.25, 1.0, 1e30, float("inf")]) | st.floats(0, 1e4)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    """Draw one verdict, with figures that need not go together."""
    outcome = draw(st.sampled_from([Outcome.PASS, Outcome.PASS, *FAILURES, *UNJUDGED]))
    lengths = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=2)))
    case = Case(lengths=lengths, capacity=3, seed=draw(st.integers(0, 3)))
    compared = outcome in (Outcome.PASS, Outcome.INCORRECT)
    ratios = draw(st.dictionaries(st.sampled_from(OUTPUTS), RATIOS)) if compared else {}
    positions = {
        name: tuple(draw(st.lists(RATIOS, max_size=3))) for name in ratios if draw(st.booleans())
    }
    sizes = st.sampled_from([*SIZES, float("inf")])
    faults = st.dictionaries(st.sampled_from(FAULTS), sizes)
    sensitivity = {f"{name} float32": draw(faults) for name in ratios if outcome == Outcome.PASS}
    return Verdict(
        outcome,
        draw(st.sampled_from(KERNELS)),
        case,
        where=draw(st.sampled_from(["", "out[0, 1]"])),
        ratio=max(ratios.values(), default=0.0),
        ratios=ratios,
        positions=positions,
        detail=draw(TEXTS),
        precision_class=draw(st.sampled_from(["", "fp32", "none"])),
        sensitivity=sensitivity,
    )


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run as it is read back from its file."""
    given = draw(st.lists(verdicts(), min_size=1, max_size=8))
    run = run_of(given)
    run["seed"] = draw(st.none() | st.integers(0, 9))
    if draw(st.booleans()):
        words = st.sampled_from(["pass", "fail", "not-run"])
        run["stages"] = [
            {"name": n, "outcome": draw(words), "detail": draw(TEXTS), "seconds": 1.25}
            for n in ("contract", "serving")
        ]
    return read(run)


def run_of(given: list[Verdict]) -> dict[str, Any]:
    """Return the run of some verdicts."""
    with mock.patch.object(summary, "environment", return_value=_environment()):
        return summary.report(summary.summarize(given), "cpu")


def read(run: dict[str, Any]) -> dict[str, Any]:
    """Return a run as its file gives it back."""
    return json.loads(stored.text(run))


@cache
def _environment() -> dict[str, Any]:
    return environment("cpu")
