"""Commands about what is there already: a stored run, two of them, a case, the kernels."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exits import EXIT_FAIL, EXIT_NOTHING, EXIT_PASS, OF_RUN

if TYPE_CHECKING:
    from .cases.case import Case
    from .fixtures import Fixture
    from .judging.verdict import Verdict


def report(options: argparse.Namespace) -> int:
    """Show a stored run: as text, as a page, as a file for continuous integration."""
    from .reporting import files, stored

    paths = {"--html": options.html, "--junit": options.junit}
    files.check({**paths, "RUN": options.run})
    run = stored.load(options.run)
    written = files.write(run, paths, options.run.name)
    for subject in run["subjects"]:
        print(_line(subject))
    lacking = [
        key for key in ("outputs", "precision_classes", "regions", "regions_missed")
        if any(key not in subject for subject in run["subjects"])
    ]  # fmt: skip
    if lacking:
        print(f"missing in {options.run}, which an older version wrote: {', '.join(lacking)}")
    for path in written:
        print(f"written: {path}")
    return OF_RUN[stored.overall(run)]


def _line(subject: dict[str, Any]) -> str:
    text = f"{subject['kernel']}: {subject['verdict']}"
    if "distinct_cases" in subject:
        text += f", {subject['distinct_cases']} cases"
    worst = subject.get("worst") or {}
    if "ratio" in worst:
        ratio = worst["ratio"]
        text += f", worst ratio {'infinite' if ratio is None else f'{ratio:.3g}'}"
        if worst.get("where"):
            text += f" at {worst['where']}"
    return text


def diff(options: argparse.Namespace) -> int:
    """Say what changed between two stored runs."""
    from .reporting import diff, stored

    if not options.factor > 1:
        raise ValueError(f"`--factor` must be over 1, got {options.factor}")
    a, b = stored.load(options.a, "A"), stored.load(options.b, "B")
    if diff.unjudged(a) and diff.unjudged(b):
        print("neither run judged anything")
        return EXIT_NOTHING
    found = diff.changes(a, b, options.factor)
    for change in found:
        print(change)
    worse = sum(change.kind == "worse" for change in found)
    print(f"{options.b} against {options.a}: {worse or 'nothing'} worse, {len(found)} changes")
    return EXIT_FAIL if worse else EXIT_PASS


def explain(options: argparse.Namespace) -> int:
    """Say what a case is and, where asked, write the script that shows its failure."""
    from .explain.words import describe

    case, kernel, fixture = given_case(options.case, options.kernel)
    target: Path | None = options.script
    if target is not None:
        _check_script(target, options.force)
        if kernel is None:
            raise ValueError("`--kernel` must name a kernel for a case given as JSON, got none")
    if fixture is not None:
        told = f"{fixture.provenance.note} ({fixture.provenance.by}, {fixture.provenance.found})"
        print(_topic("kept", f"for {fixture.subject}, expected to {fixture.expected}: {told}"))
    for topic, text in describe(case):
        print(_topic(topic, text))
    if kernel is not None:
        print(_topic("replay", f"kda-verify replay --kernel {kernel} '{case.to_json()}'"))
    if target is None or kernel is None:
        return EXIT_PASS
    return _script(case, kernel, target, options.device)


def _script(case: Case, kernel: str, target: Path, device: str) -> int:
    from .explain import script
    from .judging.judge import judge
    from .subjects import find

    subject = find(kernel)
    verdict = judge(case, subject, device)
    print(_topic("verdict", str(verdict).split("\n  replay: ")[0].replace("\n ", ";")))
    if not verdict.judged:
        return EXIT_NOTHING
    made = script.make(verdict, subject, device)
    try:
        tensors = made.write(target)
    except OSError as problem:
        raise ValueError(f"`--script` must be writable, got {target}: {problem.strerror}") from None
    print(_topic("script", f"python {target} (it loads {tensors})"))
    return ended(verdict)


def _check_script(target: Path, force: bool) -> None:
    from .explain.script import beside

    if target.suffix != ".py":
        raise ValueError(f"`--script` must name a .py file, got {target}")
    for path in (target, beside(target)):
        if path.is_dir():
            raise ValueError(f"`--script` must name a file, got {target}: {path} is a directory")
        if path.exists() and not force:
            raise ValueError(
                f"`--script` must name a new file, got {target}: {path} exists; --force replaces it"
            )


def given_case(text: str, kernel: str | None) -> tuple[Case, str | None, Fixture | None]:
    """Read a case as a replay takes it: the file of a fixture, or JSON.

    Returns:
        The case, the kernel to judge (None where none is named) and the fixture, if it is one.

    Raises:
        ValueError: neither, or no kernel goes by that name.
    """
    from . import fixtures
    from .cases.case import Case
    from .subjects import find

    if kernel is not None:
        find(kernel)
    if text.lstrip().startswith("{"):
        return Case.from_json(text), kernel, None
    if not Path(text).is_file():
        raise ValueError(f"`case` must be a fixture file or JSON, got {text!r}")
    fixture = fixtures.load(text)
    return fixture.case, kernel or fixture.subject, fixture


def ended(verdict: Verdict) -> int:
    """Return the exit code of one verdict."""
    if verdict.failed:
        return EXIT_FAIL
    return EXIT_PASS if verdict.judged else EXIT_NOTHING


def list_kernels(options: argparse.Namespace) -> int:
    """List what `run` takes."""
    from . import listing
    from .console import console
    from .subjects import all_subjects
    from .subjects.emulated import SUBJECTS

    console().print(listing.table((*all_subjects(), *SUBJECTS), options.device))
    return EXIT_PASS


def _topic(topic: str, text: str) -> str:
    """Print a topic and its text; a command to copy stays on one line."""
    width = 100 if sys.stdout.isatty() and topic not in ("replay", "script") else 10**6
    lead = f"{topic + ':':<11}"
    return textwrap.fill(text, width, initial_indent=lead, subsequent_indent=" " * len(lead))
