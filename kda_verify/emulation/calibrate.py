"""Calibrate the error budget: correct emulations of each precision class against every class.

`python -m kda_verify.emulation.calibrate` prints the measurements and fails where one lies outside
its band; `--write docs/tolerance.md` also puts the tables into the document, between its markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kda_ref import MtpResult, kda_mtp_verify, stored

from .classes import FORMS, Emulation
from .regimes import REGIMES, Regime, draw
from .report import print_tables, write_tables

KINDS = {"fp32": "fp32", "tf32x3": "fp32", "tf32": "tf32", "bf16": "bf16"}
"""Products that are calibrated, and the class each must fit."""

TIGHTER = {"fp32": (), "tf32": ("fp32",), "bf16": ("fp32", "tf32")}
LOWEST, HIGHEST, APART = 0.005, 0.5, 10.0
"""The band of a correct emulation in its own class, and how far a looser class must stick out."""


@dataclass(frozen=True)
class Row:
    """Hold the largest error / budget of one emulation over one regime.

    Attributes:
        regime, form, kind: what was measured.
        own: per result ("out", "state", "rings") against the class the emulation belongs to.
        over: per tighter class, the same for "out" and "state".
    """

    regime: str
    form: str
    kind: str
    own: dict[str, float]
    over: dict[str, dict[str, float]]

    def problems(self) -> Iterator[str]:
        """Yield what lies outside its band and is not explained by the regime."""
        for result, ratio in self.own.items():
            if ratio > HIGHEST:
                yield f"{result} at {ratio:.3g} of its budget, at most {HIGHEST} expected"
            elif result != "rings" and ratio < LOWEST:
                yield f"{result} at {ratio:.3g} of its budget, at least {LOWEST} expected"
        for result, ratio in self.over.get("fp32", {}).items():
            if ratio < APART:
                yield f"{result} at {ratio:.3g} of the fp32 budget, at least {APART} expected"


def largest_ratio(got: Tensor, value: Tensor, error: Tensor) -> float:
    """Return max |got - value| / error; 0/0 counts as none, a non-finite result as infinite."""
    miss = (got.double() - value).abs()
    ratio = torch.where(miss == 0, 0.0, miss / error)
    return float(ratio.nan_to_num(nan=torch.inf).amax()) if ratio.numel() else 0.0


def ratios(
    arguments: dict[str, Any], out: Tensor, oracle: MtpResult, late: int
) -> dict[str, float]:
    """Compare what an emulation left in `out`, snapshots and rings with the oracle.

    States are judged by the norm of each value column, which is what their bound is about.
    """
    found = {"out": 0.0, "state": 0.0, "rings": 0.0}

    def note(result: str, ratio: float) -> None:
        found[result] = max(found[result], ratio)

    offsets = arguments["cu_seqlens"].tolist()
    for n, trace in enumerate(oracle.requests):
        assert trace is not None
        assert trace.snapshots is not None
        length = len(trace.o.value)
        at = slice(max(0, length - late) if late else 0, length)
        want = stored(trace.out, out.dtype)
        got = out[0, offsets[n] : offsets[n + 1]]
        # Where the norm's root may be zero only a size is asked; what obeys it measures nothing.
        too_large = torch.isfinite(got) & ((got - want.value).abs() > want.error)
        obeys = trace.undetermined & ~too_large
        got = torch.where(obeys, want.value, got)
        note("out", largest_ratio(got[at], want.value[at], want.error[at]))

        states = arguments["intermediate_ssm"][n, :length].double()
        miss = torch.linalg.vector_norm(states - trace.snapshots.value, dim=-1, keepdim=True)
        note(
            "state", largest_ratio(miss[at], torch.zeros_like(miss[at]), trace.snapshots.error[at])
        )

        for name, ring in (
            ("rawv", trace.ring_v),
            ("rawk", trace.ring_k),
            ("g", trace.ring_log_decay),
            ("beta", trace.ring_beta),
        ):
            held = arguments[f"replayssm_{name}"][n].transpose(0, 1)
            want = stored(ring, torch.float32)
            note("rings", largest_ratio(held[:length], want.value, want.error))
    return found


def measure(
    name: str,
    *,
    forms: Iterable[str] = FORMS,
    kinds: Iterable[str] = KINDS,
    seed: int = 0,
    regime: Regime | None = None,
) -> list[Row]:
    """Run every emulation over one regime, each against its own class and the tighter ones."""
    regime = REGIMES[name] if regime is None else regime
    arguments = draw(regime, seed)
    oracles: dict[tuple[bool, str], MtpResult] = {}
    rows = []
    for form in forms:
        if regime.forms is not None and form not in regime.forms:
            continue
        for kind in kinds:
            emulation = Emulation(form, kind, flush=regime.flush)
            out = emulation(**arguments)
            found = {}
            for group in (KINDS[kind], *TIGHTER[KINDS[kind]]):
                key = (emulation.precision.cumulative_gates, group)
                if key not in oracles:
                    precision = emulation.precision.at_class(group)
                    oracles[key] = kda_mtp_verify(**arguments, precision=precision)
                    assert oracles[key].in_range, f"{name} leaves the fp32 range"
                found[group] = ratios(arguments, out, oracles[key], regime.late)
            own = found.pop(KINDS[kind])
            over = {group: {x: r[x] for x in ("out", "state")} for group, r in found.items()}
            rows.append(Row(name, form, kind, own, over))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, optionally write; 1 when a measurement is outside its band unexplained."""
    parser = argparse.ArgumentParser(
        prog="python -m kda_verify.emulation.calibrate", description=__doc__
    )
    parser.add_argument("regimes", nargs="*", metavar="REGIME", help=f"of: {', '.join(REGIMES)}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.regimes if name not in REGIMES]
    if unknown:
        parser.error(f"no regime {unknown[0]!r}")
    if options.write and options.regimes:
        parser.error("--write needs every regime")
    rows = [row for name in options.regimes or REGIMES for row in measure(name)]
    problems = [
        (row, problem)
        for row in rows
        if not REGIMES[row.regime].reason
        for problem in row.problems()
    ]
    print_tables(rows)
    for row, problem in problems:
        print(f"{row.regime}, {row.form}, {row.kind}: {problem}")
    if options.write:
        write_tables(options.write, rows)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
