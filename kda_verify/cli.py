"""The command line: verify, run, list, replay, report, diff, explain."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from . import commands
from .exits import EPILOG, EXIT_FAIL, EXIT_NOTHING, EXIT_PASS, EXIT_USAGE, OF_RUN

if TYPE_CHECKING:
    from .judging.verdict import Verdict
    from .plan import Draws
    from .stages import StageResult

__all__ = ["EXIT_FAIL", "EXIT_NOTHING", "EXIT_PASS", "EXIT_USAGE", "main"]

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    if "device" in options:
        # Before anything imports Triton: kernels are interpreted or compiled for good at import.
        device = _choose_device(options.device)
        if device is None:
            print("kda-verify: no CUDA device is visible to torch", file=sys.stderr)
            return EXIT_USAGE
        options.device = device
    try:
        return int(options.command(options))
    except ValueError as problem:
        print(f"kda-verify: {problem}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("kda-verify: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kda-verify", description="Judge Kimi Delta Attention kernels against a float64 oracle.",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Command, help: str, *, epilog: str = EPILOG, runs: bool = True
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name, help=help, description=help, epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.set_defaults(command=function)
        if runs:
            sub.add_argument(
                "--device", default="auto", help="cpu, cuda, or auto: CUDA where there is one"
            )
        return sub

    verify = command("verify", _verify, "judge every kernel and run every other check")
    run = command("run", _run, "judge kernels on drawn cases")
    run.add_argument("kernels", nargs="*", metavar="KERNEL", help="names from `list`; all if none")
    for sub in (verify, run):
        sub.add_argument("--cases", type=_positive_int, help="cases per kernel, about")
        sub.add_argument("--seed", type=int, default=0, help="which cases are drawn [0]")
        sub.add_argument("--workers", type=_positive_int, help="processes [one per core, up to 14]")
        sub.add_argument("--json", type=Path, metavar="FILE", help="write the whole report there")
        _add_forms(sub)
        sub.add_argument("--explore", action="store_true", help="draw new cases until time is up")
        sub.add_argument("--minutes", type=float, default=10, help="how long to explore [10]")
        sub.add_argument(
            "--profile", choices=("auto", "cpu", "gpu"), default="auto",
            help="small shapes, or shapes for compiled kernels [by device]",
        )  # fmt: skip
        sub.add_argument(
            "--no-sensitivity", action="store_true",
            help="leave out the smallest fault each case would show: several times as many cases",
        )  # fmt: skip
    command(
        "list",
        commands.list_kernels,
        "list the kernels, what they claim and whether they can run here",
    )
    replay = command("replay", _replay, "judge one case again")
    explain = command("explain", commands.explain, "say what a case is, and write its failure down")
    explain.add_argument(
        "--script", type=Path, metavar="FILE",
        help="judge the case and write a script that shows the result alone, with its tensors",
    )  # fmt: skip
    explain.add_argument("--force", action="store_true", help="replace a script that is there")
    for sub in (replay, explain):
        sub.add_argument("case", help="a fixture file, or a case as JSON")
        sub.add_argument("--kernel", help="kernel to judge [the fixture's own]")
    report = command(
        "report", commands.report, "show a run that was stored with --json", runs=False,
        epilog=EPILOG + "\n(of the run that is shown)",
    )  # fmt: skip
    report.add_argument("run", type=Path, metavar="RUN", help="JSON of a run")
    _add_forms(report)
    diff = command(
        "diff", commands.diff, "say what changed between two runs", runs=False,
        epilog="exit codes: 0 nothing is worse in B; 1 something is; 2 the call was wrong;\n"
        "3 neither run judged anything",
    )  # fmt: skip
    diff.add_argument("a", type=Path, metavar="A", help="JSON of the earlier run")
    diff.add_argument("b", type=Path, metavar="B", help="JSON of the later run")
    diff.add_argument(
        "--factor", type=float, default=2.0, help="how far a worst ratio may move unmentioned [2]"
    )
    return parser


def _add_forms(parser: argparse.ArgumentParser) -> None:
    """Add the forms in which a run can be written."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page to read there")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML there")


def _forms(options: argparse.Namespace) -> dict[str, Path | None]:
    return {f"--{form}": getattr(options, form) for form in ("json", "html", "junit")}


def _positive_int(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return value


def _choose_device(asked: str) -> str | None:
    import torch

    available = torch.cuda.is_available()
    device = ("cuda" if available else "cpu") if asked == "auto" else asked
    if device.startswith("cuda") and not available:
        return None
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return device


def _run(options: argparse.Namespace) -> int:
    from .plan import draws_for
    from .reporting import files
    from .subjects import all_subjects, find

    files.check(_forms(options))
    names = options.kernels or [s.name for s in all_subjects()]
    for name in names:
        find(name)
    verdicts = _judge(options, draws_for(names))
    return _report(options, verdicts)


def _judge(options: argparse.Namespace, draws: Sequence[Draws]) -> list[Verdict]:
    """Draw, judge and show progress; store each failure as a fixture."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from . import fixtures
    from .plan import Batch, batches
    from .run import judge_all

    compiled = options.profile == "gpu" or (options.profile == "auto" and options.device != "cpu")
    workers = options.workers or min(os.cpu_count() or 1, 14)
    standard = sum(d.examples for d in draws)
    subjects = len({d.subject for d in draws})
    scale = 1.0 if options.cases is None else options.cases * subjects / standard
    deadline = time.monotonic() + 60 * options.minutes

    def endless() -> Iterator[Batch]:
        for extra in count(int(time.time())):
            yield from batches(draws, size=20, seed=extra, compiled=compiled)

    fixed = batches(draws, size=25, seed=options.seed, scale=scale, compiled=compiled)
    total = None if options.explore else sum(b.draws.examples for b in fixed)
    verdicts: list[Verdict] = []
    failed = 0
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("judging", total=total)
        for verdict in judge_all(
            endless() if options.explore else fixed,
            options.device,
            workers,
            keep_going=lambda: not options.explore or time.monotonic() < deadline,
            sensitivity=not options.no_sensitivity,
        ):
            verdicts.append(verdict)
            failed += verdict.failed
            bar.update(task, advance=1, description=f"judging, {failed} failed")
    for verdict in verdicts:
        if verdict.failed:
            path = fixtures.write_regression(verdict)
            print(f"{verdict}\n  stored in {path}")
    return verdicts


def _report(
    options: argparse.Namespace,
    verdicts: Sequence[Verdict],
    stages: Sequence[StageResult] = (),
) -> int:
    from dataclasses import asdict

    from . import summary
    from .console import console as terminal
    from .plan import EMULATED, OURS, PEERS
    from .reporting import files, stored

    console = terminal()
    order = [draws.subject for draws in (*OURS, *PEERS, *EMULATED)]
    summaries = summary.summarize(sorted(verdicts, key=lambda v: order.index(v.subject)))
    console.print(summary.table(summaries))
    if any(found.smallest for found in summaries.values()):
        console.print(summary.sensitivity_table(summaries))
    for found in summaries.values():
        for reason, times in found.reasons.items():
            console.print(f"  {found.name}: {times} cases not judged: {reason}")
    data = summary.report(summaries, options.device)
    data["stages"] = [asdict(s) for s in stages]
    data["seed"] = None if options.explore else options.seed
    where = data["environment"]
    console.print(
        f"torch {where['torch']}, triton {where['triton']}, {where['device']}, "
        f"{'interpreted' if where['interpreted'] else 'compiled'}, {where['date']}"
    )
    files.write(data, _forms(options), options.json.name if options.json else "kda-verify")
    return OF_RUN[stored.overall(data)]


def _verify(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from . import stages
    from .console import console
    from .plan import draws_for
    from .processes import start_worker
    from .reporting import files
    from .subjects import all_subjects

    files.check(_forms(options))
    start_worker()
    errors = Console(stderr=True)
    done: list[stages.StageResult] = []

    def stage(name: str, function: Callable[[], tuple[str, str]]) -> None:
        errors.print(f"{name} ...")
        done.append(stages.timed(name, function))

    if not options.explore:
        stage("contract", lambda: stages.tests("test_contract*.py"))
        stage("oracle", lambda: stages.tests("test_oracle_*.py", "test_budget.py"))
        stage("determinism", lambda: stages.determinism(options.device))
        stage("regressions", lambda: stages.regressions(options.device))
        stage("serving", lambda: stages.serving(options.device))
        stage("offline compile", stages.offline)
    verdicts = _judge(options, draws_for(s.name for s in all_subjects()))
    if done:
        if options.cases is None:
            done.append(stages.timed("regions", lambda: stages.regions(verdicts)))
        table = Table(title="Checks", title_justify="left")
        for column in ("check", "result", "detail", "s"):
            table.add_column(column, overflow="fold")
        for result in done:
            colour = {"pass": "green", "fail": "red"}.get(result.outcome, "yellow")
            table.add_row(
                result.name,
                f"[{colour}]{result.outcome}[/]",
                result.detail,
                f"{result.seconds:.0f}",
            )
        console().print(table)
    return _report(options, verdicts, done)


def _replay(options: argparse.Namespace) -> int:
    from . import fixtures
    from .judging.judge import judge
    from .subjects import find

    case, kernel, fixture = commands.given_case(options.case, options.kernel)
    if kernel is None:
        raise ValueError("`--kernel` must name a kernel for a case given as JSON, got none")
    subject = find(kernel)
    if fixture is None:
        verdict = judge(case, subject, options.device)
    else:
        verdict = fixtures.replay(fixture, subject, options.device)
    print(verdict)
    if verdict.kernels:
        print(f"  kernels that ran: {', '.join(verdict.kernels)}")
    for operand, ratio in verdict.ratios.items():
        print(f"  {operand}: {ratio:.3g} times the budget")
    return commands.ended(verdict)
