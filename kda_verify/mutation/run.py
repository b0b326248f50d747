"""Put mutants to what must notice them, several at a time, with progress."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from ..faults import store
from ..faults.gallery import Entry, run_alone, source_digest
from .mutants import ROOT, Mutant
from .trees import TESTS, Copies

TIME_LIMIT_SECONDS = 90.0
CHECKED = ("kernels", "contract")
"""Groups whose mutants meet the checks first."""


def digest(mutant: Mutant) -> str:
    """Return a digest of all source that decides what the tests of its group say of a mutant."""
    whole = hashlib.sha256(mutant.name.encode())
    if mutant.group in CHECKED:
        whole.update(source_digest(mutant).encode())
    folders = [ROOT / "kda_ref", ROOT / "kda_kernels", ROOT / "kda_verify" / "judging"]
    files = [ROOT / "property_tests" / name for name in TESTS[mutant.group]]
    for file in sorted([*files, *(f for folder in folders for f in folder.rglob("*.py"))]):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def current(entry: Entry, mutant: Mutant) -> bool:
    """Whether a stored entry is of the present source: of the tests only if it came to them."""
    by_checks = mutant.group in CHECKED and entry.found_by not in ("", "tests")
    return entry.digest == (source_digest(mutant) if by_checks else digest(mutant))


def run(mutants: Sequence[Mutant], workers: int, keep: Path | None) -> dict[str, Entry]:
    """Put every mutant to its checks, with progress; stored entries of the same source are kept.

    Raises:
        RuntimeError: the tests of a group fail without any mutant.
    """
    named = {mutant.name: mutant for mutant in mutants}
    stored = [e for e in store.load(keep, Entry) if e.fault in named]
    done = {e.fault: e for e in stored if current(e, named[e.fault])}
    left = [mutant for mutant in mutants if mutant.name not in done]
    with (
        tempfile.TemporaryDirectory(prefix="kda-mutation-") as folder,
        Progress(console=Console(stderr=True)) as bar,
        ThreadPoolExecutor(workers) as threads,
    ):
        task = bar.add_task("mutants", total=len(mutants), completed=len(done))
        copies = Copies(Path(folder), workers if left else 0)
        for group in sorted({mutant.group for mutant in left}.difference(CHECKED)):
            copies.control(group)

        def one(mutant: Mutant) -> Entry:
            start = time.perf_counter()
            if mutant.group in CHECKED:
                entry = _checked(mutant)
                if entry.found:
                    return entry
                copies.control(mutant.group)
            text = mutant.apply((ROOT / mutant.path).read_text(encoding="utf-8"))
            failed = copies.tests(mutant.group, mutant.path, text)
            return Entry(
                mutant.name, mutant.module, mutant.description, digest(mutant),
                "tests" if failed else "", failed.partition(" - ")[0], failed, bool(failed),
                round(time.perf_counter() - start, 1),
            )  # fmt: skip

        for future in as_completed([threads.submit(one, mutant) for mutant in left]):
            entry = future.result()
            done[entry.fault] = entry
            if keep is not None:
                store.add(asdict(entry), keep)
            bar.advance(task)
    return done


def _checked(mutant: Mutant) -> Entry:
    try:
        return run_alone(mutant, TIME_LIMIT_SECONDS)
    except Exception as problem:  # it cannot be imported, or fails where no check expects it
        return Entry(
            mutant.name, mutant.module, mutant.description, source_digest(mutant), "raised", "",
            f"{type(problem).__name__}: {problem}".splitlines()[0], True, 0.0,
        )  # fmt: skip
