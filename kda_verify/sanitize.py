"""Run twenty small cases of our kernels under compute-sanitizer, one process per tool.

`python -m kda_verify.sanitize --json FILE` on a machine with a CUDA GPU. The caching allocator is
off, so that an access past an operand's storage is an error and not a neighbour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import summary
from .cases.case import Case
from .judging.judge import judge
from .plan import Batch, Draws
from .subjects import find

TOOLS = ("memcheck", "initcheck", "racecheck")
DRAWN = (
    Draws("kda_mtp_verify", "verify_cases", 12),
    Draws("kda_replay_commit", "commit_cases", 6),
    Draws("kda_conv_commit", "conv_commit_cases", 2),
)
FAULT = 86
"""Exit code that compute-sanitizer is asked to give when it found something."""


def cases() -> list[tuple[str, Case]]:
    """Draw the cases, the same ones each time; simplest ones are left out."""
    drawn: list[tuple[str, Case]] = []
    for index, draws in enumerate(DRAWN):
        more = Draws(draws.subject, draws.strategy, draws.examples + 8)
        found = Batch(more, index + 1, compiled=True).cases()
        drawn += [(draws.subject, case) for case in found[-draws.examples :]]
    return drawn


def judge_cases() -> int:
    """Judge the cases in this process; 1 if a verdict fails."""
    failed = 0
    for name, case in cases():
        verdict = judge(case, find(name), "cuda")
        failed += verdict.failed
        print(verdict, flush=True)
    return int(failed > 0)


def sanitize(tool: str) -> dict[str, object]:
    """Run the cases under one tool."""
    command = [
        "compute-sanitizer", "--tool", tool, "--error-exitcode", str(FAULT),
        "--target-processes", "all", sys.executable, "-m", "kda_verify.sanitize", "--inner",
    ]  # fmt: skip
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    said = [line for line in lines if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    return {
        "tool": tool,
        "clean": done.returncode == 0,
        "exit_code": done.returncode,
        "judged": sum("pass" in line for line in lines if line.startswith("kda_")),
        "summary": said,
        "tail": [] if done.returncode == 0 else lines[-40:],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    """Run every tool and write what each said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--tools", nargs="*", default=TOOLS, choices=TOOLS)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        return judge_cases()
    if shutil.which("compute-sanitizer") is None:
        print("kda-verify: compute-sanitizer is not on PATH", file=sys.stderr)
        return 2
    results = []
    for tool in options.tools:
        results.append(sanitize(tool))
        last = results[-1]
        print(f"{tool}: {'clean' if last['clean'] else 'NOT CLEAN'}, {last}", flush=True)
    if options.json is not None:
        data = {"environment": summary.environment("cuda"), "tools": results}
        summary.write_json(data, options.json)
    return int(not all(r["clean"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
