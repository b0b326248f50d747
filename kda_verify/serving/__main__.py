"""Play schedules: one again, or drawn ones; what fails is stored.

python -m kda_verify.serving SCHEDULE        # JSON text or a stored file
python -m kda_verify.serving --draw 100      # new ones with another --seed
"""

from __future__ import annotations

import argparse
import os
import sys

import torch


def main(argv: list[str] | None = None) -> int:
    """Return 0 where all schedules pass, 1 where one fails, 2 where the call makes no sense."""
    parser = argparse.ArgumentParser(
        "python -m kda_verify.serving", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("schedule", nargs="?", help="JSON text or a file")
    parser.add_argument("--draw", type=int, metavar="N", help="play N drawn schedules")
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn [0]")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        if (options.schedule is None) == (options.draw is None):
            raise ValueError("`schedule` or `--draw` must be given, got both or neither")
        if options.draw is not None:
            return _draw(options.draw, options.seed)
        return _play(options.schedule)
    except ValueError as problem:
        print(f"serving: {problem}", file=sys.stderr)
        return 2


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _play(given: str) -> int:
    from .engine import our_kernels
    from .play import Failure, play
    from .schedule import Schedule
    from .stored import load

    is_text = given.lstrip().startswith("{")
    schedule = Schedule.from_json(given) if is_text else load(given).schedule
    try:
        player = play(schedule, our_kernels(), _device())
    except Failure as failure:
        print(failure)
        return 1
    print(f"pass: {len(schedule.steps)} steps, at most {player.worst:.3g} times the budget")
    return 0


def _draw(count: int, seed: int) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from .engine import our_kernels
    from .explore import explore, keep

    if count < 1:
        raise ValueError(f"`--draw` must be at least 1, got {count}")
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("schedules", total=count)
        found = explore(our_kernels(), count, seed, _device(), progress=lambda: bar.advance(task))
    if found.failure is not None:
        print(found.failure)
        note = f"step {len(found.failure.schedule.steps) - 1}: {found.failure.outcome}"
        stored = keep(found.failure.schedule, f"serving --draw {count} --seed {seed}", note)
        print(f"stored as {stored}")
        return 1
    print(
        f"pass: {found.schedules} schedules of {found.steps} steps, at most {found.worst:.3g} "
        "times the budget"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
