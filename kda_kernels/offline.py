"""Compile every kernel for every target without a GPU, and gate what it costs.

    python -m kda_kernels.offline --write fixtures/resources.json
    python -m kda_kernels.offline --check fixtures/resources.json

Each kernel compiles in a process of its own, with a time limit, because a compiler can run for
ever and because kernels declared for Triton's interpreter cannot be compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton

from .configurations import default_launches
from .resources import TARGETS, measure

TIME_LIMIT_SECONDS = 240
KERNELS = ("prepare", "stream", "scan", "commit", "conv_commit")
"""The slowest to compile first, so that they overlap with the others."""

NO_SPILL = ("sm_90", "sm_100")
"""Targets on which a spill in a default configuration fails the gate."""

REGISTER_SLACK = 16
SHARED_SLACK_BYTES = 2048

Table = dict[str, dict[str, int]]


def compile_kernel(kernel: str) -> Table:
    """Compile the default configurations of one kernel in this process."""
    table = {}
    for configuration, launch in default_launches():
        if launch.kernel.__name__ == f"{kernel}_kernel":
            for target in TARGETS:
                table[f"{kernel}/{configuration}/{target}"] = measure(launch, target)
    return table


def compile_all(kernels: tuple[str, ...] = KERNELS) -> Table:
    """Compile kernels, each in a subprocess without the interpreter.

    Raises:
        RuntimeError: a compilation failed or outlasted TIME_LIMIT_SECONDS.
    """
    root = str(Path(__file__).resolve().parents[1])
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))

    def compile_one(kernel: str) -> Table:
        command = [sys.executable, "-m", f"{__package__}.offline", "--kernel", kernel]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{kernel}: no result after {TIME_LIMIT_SECONDS} s") from None
        if done.returncode:
            raise RuntimeError(f"{kernel}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    with ThreadPoolExecutor(max_workers=min(len(kernels), os.cpu_count() or 1)) as pool:
        tables = list(pool.map(compile_one, kernels))
    return {name: row for table in tables for name, row in table.items()}


def faults(table: Table) -> list[str]:
    """Name every default configuration that does, on a target, what none may do there.

    That is to spill, to contract a sum that lanes share, or to copy 4 bytes at a time.
    """
    problems = []
    for name, row in table.items():
        if row["spills"] and name.rpartition("/")[2] in NO_SPILL:
            problems.append(f"{name} spills: {row['spills']} local accesses, must be 0")
        if row.get("contracted"):
            problems.append(f"{name} contracts {row['contracted']} sums across lanes, must be 0")
        if row.get("narrow"):
            problems.append(f"{name} makes {row['narrow']} copies of 4 bytes, must be 0")
    return problems


def regressions(table: Table, recorded: Table) -> list[str]:
    """Name every configuration that grew past the slack, appeared or disappeared."""
    problems = [f"{name} is not recorded" for name in table.keys() - recorded.keys()]
    problems += [f"{name} is recorded but gone" for name in recorded.keys() - table.keys()]
    for name in table.keys() & recorded.keys():
        for what, slack in (("registers", REGISTER_SLACK), ("shared", SHARED_SLACK_BYTES)):
            now, before = table[name][what], recorded[name][what]
            if now > before + slack:
                problems.append(f"{name} {what} grew from {before} to {now} (slack {slack})")
        if table[name]["spills"] > recorded[name]["spills"]:
            problems.append(f"{name} spills grew from {recorded[name]['spills']}")
    return sorted(problems)


def check(path: Path) -> list[str]:
    """Compile everything and compare with a recorded table; return the problems found.

    Another Triton allocates registers differently, so its table is gated on `faults` alone.
    """
    recorded = json.loads(path.read_text())
    table = compile_all()
    problems = faults(table)
    if recorded["triton"] == triton.__version__:
        problems += regressions(table, recorded["kernels"])
    return problems


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.offline", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="TABLE", help="record the table")
    action.add_argument("--check", type=Path, metavar="TABLE", help="gate against a table")
    action.add_argument("--kernel", choices=KERNELS, help="print the table of one kernel")
    options = parser.parse_args(argv)
    if options.kernel:
        print(json.dumps(compile_kernel(options.kernel)))
        return 0
    if options.check:
        problems = check(options.check)
    else:
        table = compile_all()
        problems = faults(table)
        rows = {name: table[name] for name in sorted(table)}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        version = json.dumps(triton.__version__)
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(f'{{"triton": {version}, "kernels": {{\n{lines}\n}}}}\n')
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(KERNELS)} kernels compiled for {', '.join(TARGETS)}: no regression")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
