"""The benchmark's command line: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import picture, record, rows, table

PROGRAM = "benchmarks"
EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_NOTHING = 0, 1, 2, 3
MAX_JOBS, PIPED_WIDTH = 8, 220
EPILOG = """Each row is judged against the float64 oracle on its own operands before it is timed,
and one that does not pass is not timed. Times are medians over batches of CUDA-graph replays that
rotate over more operands than the L2 cache holds; the limit is the bytes that must move over the
bandwidth measured in the same run. docs/performance.md says how all of it is done.

A peer that cannot be imported is reported as not run. SGLang is imported as installed, or from a
folder from which its released kernel modules import (--sglang, or KDA_SGLANG).

exit codes: 0 every row reached was judged, passed and was timed; 1 one was not; 2 the call was
wrong; 3 there is no GPU"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    started = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        return _run(options, started)
    except ValueError as problem:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        PROGRAM, description="Judge and time the kernels of this project and of peers on a GPU.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="a few rows: H = 12, L = 8")
    add("--rows", type=_words, default=(), metavar="NAMES", help="names or patterns from --list")
    add("--operations", type=_words, default=(), metavar="NAMES", help=", ".join(rows.OPERATIONS))
    for name, values in (
        ("heads", rows.HEADS),
        ("tokens", rows.TOKENS),
        ("requests", rows.REQUESTS),
    ):
        known = ", ".join(map(str, values))
        add(f"--{name}", type=_integers, default=(), metavar="NUMBERS", help=f"some of {known}")
    add("--list", action="store_true", help="list the rows and the bytes they move, and stop")
    add(
        "--peers", type=_words, default=None, metavar="NAMES",
        help="sglang, fla, both (the default) or none",
    )  # fmt: skip
    add("--sglang", type=Path, metavar="DIR", help="holds sglang/ with its released kernels")
    add("--json", type=Path, metavar="FILE", help="write the record there after every row")
    add("--picture", type=Path, metavar="FILE", help="draw time against N (.png, .svg, .pdf)")
    add("--render", type=Path, metavar="FILE", help="print (and draw) a record; measures nothing")
    add("--minutes", type=_positive, help="stop in time, and say which rows were not reached")
    add("--seed", type=_natural, default=0, help="of all operands [0]")
    add(
        "--jobs",
        type=_natural,
        help=f"processes that compile ahead, 0 for none [cores, up to {MAX_JOBS}]",
    )
    return parser


def _run(options: argparse.Namespace, started: float) -> int:
    # Piped, the table would be folded into eighty columns.
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    chosen = rows.select(
        rows.quick_rows() if options.quick else rows.default_rows(),
        names=options.rows,
        operations=options.operations,
        heads=options.heads,
        tokens=options.tokens,
        requests=options.requests,
    )
    if options.picture is not None:
        picture.check(options.picture)
    if options.render is not None:
        return _finish(record.load(options.render), options, console)
    if options.list:
        for row in chosen:
            console.print(f"{row.name:<26} {rows.bytes_moved(row) / 1e6:10.1f} MB")
        return EXIT_PASS
    if problem := _no_gpu():
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return EXIT_NOTHING
    return _finish(_measure(chosen, options, started, console), options, console)


def _no_gpu() -> str:
    """Say why nothing can be timed here; "" where it can."""
    import torch

    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no CUDA GPU, so nothing can be timed here; "
            "`make offline` shows the registers, spills and shared memory of every kernel"
        )
    return ""


def _device() -> str:
    import torch

    return f"cuda:{torch.cuda.current_device()}"


def _measure(
    chosen: list[rows.Row], options: argparse.Namespace, started: float, console: Console
) -> record.Record:
    from kda_verify.subjects.base import interpreted

    from . import host_cost, limits, participants, peers_sglang, precompile
    from .measure import measure_row, measure_rows
    from .timing import replay_time

    if interpreted():
        raise ValueError("`TRITON_INTERPRET` must be unset to time compiled kernels, got it set")
    device = _device()
    peers = participants.PEERS if options.peers is None else options.peers
    peers = [] if list(peers) == ["none"] else peers
    contenders, not_run = participants.gather(options.sglang, peers)
    log = record.Record(record.new_run(device, options.seed), not_run=not_run)
    if "sglang" not in not_run:
        log.run["sglang"] = peers_sglang.identity()
    for peer, reason in not_run.items():
        console.print(f"{peer}: not run: {reason}", style="yellow", markup=False)

    jobs = min(os.cpu_count() or 1, MAX_JOBS) if options.jobs is None else options.jobs
    todo = precompile.tasks(chosen, contenders)
    with _progress(console) as progress:
        if jobs:
            show = _bar(progress, "compiling", len(todo))
            precompile.compile_all(todo, options.sglang, device, jobs, show)
        physical = limits.measure(device)
        log.limits = physical.to_dict()
        log.host = host_cost.measure()
        show = _bar(progress, "rows", len(chosen))

        def shown(result: record.Result, done: int) -> None:
            console.print(table.line(result), soft_wrap=True)
            show(done)

        def measure(row: rows.Row) -> record.Result:
            return measure_row(
                row,
                contenders,
                run=log.run,
                limits=physical,
                timer=replay_time,
                device=device,
                free_bytes=lambda: _free_bytes(device),
            )

        measure_rows(
            chosen,
            measure,
            log,
            path=options.json,
            seconds=None if options.minutes is None else 60 * options.minutes,
            started=started,
            shown=shown,
        )
    # Clocks drift with heat: the record shows by how much.
    log.limits["after"] = limits.measure(device).to_dict()
    if options.json is not None:
        log.save(options.json)
    return log


def _free_bytes(device: str) -> int:
    """Memory that operands may take; blocks that PyTorch caches count as free."""
    import torch

    torch.cuda.empty_cache()
    return int(0.9 * torch.cuda.mem_get_info(device)[0])


def _finish(log: record.Record, options: argparse.Namespace, console: Console) -> int:
    console.print(table.table(log))
    for text in table.footer(log):
        console.print(text, soft_wrap=True, markup=False, highlight=False)
    if options.picture is not None:
        picture.draw(log, options.picture)
        console.print(f"drawn: {options.picture}", soft_wrap=True, markup=False)
    timed = [result.ours.timing is not None for result in log.results]
    return EXIT_PASS if timed and all(timed) else EXIT_FAIL


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip


def _bar(progress: Progress, name: str, total: int) -> Callable[[int], None]:
    task = progress.add_task(name, total=total)
    return lambda done: progress.update(task, completed=done)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _integers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers and commas, got {text!r}") from None


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
