"""Play a schedule again: `python -m kda_verify.serving SCHEDULE`, JSON text or a stored file."""

from __future__ import annotations

import os
import sys

import torch


def main(argv: list[str] | None = None) -> int:
    """Return 0 where the schedule passes, 1 where it fails, 2 where it is none."""
    given = sys.argv[1:] if argv is None else argv
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from .engine import our_kernels
    from .play import Failure, play
    from .schedule import Schedule
    from .stored import load

    if len(given) != 1:
        print("usage: python -m kda_verify.serving SCHEDULE (JSON text or a file)")
        return 2
    try:
        text = given[0]
        is_text = text.lstrip().startswith("{")
        schedule = Schedule.from_json(text) if is_text else load(text).schedule
    except ValueError as problem:
        print(problem)
        return 2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        player = play(schedule, our_kernels(), device)
    except Failure as failure:
        print(failure)
        return 1
    print(f"pass: {len(schedule.steps)} steps, at most {player.worst:.3g} times the budget")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
