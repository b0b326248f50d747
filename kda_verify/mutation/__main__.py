"""Mutation: how many small changes of kernels, contract, budget and comparison are noticed.

    python -m kda_verify.mutation --sample 600 --store build/mutation.jsonl

A mutant of the kernels or the contract meets the checks of the toolkit, as a planted fault does,
and where they find nothing the tests of its group; one of the budget or the comparison, which are
the checks, meets the tests that hold them. Every mutant has a limit of
processor time. The sample is drawn in
an order whose every beginning is a sample too, so a run that was cut short says as much as a
shorter one.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from .mutants import sample, sites
from .run import run
from .score import SCORE, equivalents, summary


def main(arguments: list[str] | None = None) -> int:
    """Run the sample; 1 where too few mutants are noticed, 2 for a call that makes no sense."""
    parser = argparse.ArgumentParser(
        "python -m kda_verify.mutation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--sample", type=int, default=600, help="how many mutants [600]")
    parser.add_argument("--seed", type=int, default=0, help="which ones [0]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--store", type=Path, metavar="FILE",
                        help="JSON lines; stored entries are not run again")  # fmt: skip
    options = parser.parse_args(arguments)
    if find_spec("cosmic_ray") is None:
        print("mutation: cosmic-ray is not installed: pip install 'kda-verify[dev]'",
              file=sys.stderr)  # fmt: skip
        return 2
    # Before the workers import Triton: mutants are judged in its interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        mutants = sample(sites(), options.sample, options.seed)
        reasons = equivalents(mutants)
        entries = run(mutants, options.workers, options.store)
    except (ValueError, RuntimeError) as problem:
        print(f"mutation: {problem}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else 160)
    table, score = summary(mutants, entries, reasons)
    console.print(table)
    for mutant in mutants:
        entry = entries[mutant.name]
        if not entry.found and mutant.name not in reasons:
            console.print(f"{mutant.group}: {mutant}", markup=False)
            console.print(f"    {mutant.operator}, {entry.says or 'no test fails'}", markup=False)
    return int(score < SCORE)


if __name__ == "__main__":
    sys.exit(main())
