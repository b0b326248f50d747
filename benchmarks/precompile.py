"""Compile every variant ahead, in processes beside one another, into Triton's cache.

Compilation would otherwise take most of a run: one process compiles one kernel at a time. What
fails here is left to fail where it is judged.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from .contenders import Contender
from .rows import Row

Task = tuple[Row, str]


def tasks(rows: Sequence[Row], contenders: Sequence[Contender]) -> list[Task]:
    """List one small call for each variant: the fewest requests, unless these are compiled in."""
    found: dict[tuple[object, ...], Task] = {}
    for contender in contenders:
        for row in sorted(rows, key=lambda row: row.requests):
            if contender.refusal(row):
                continue
            key: tuple[object, ...] = (contender.name, row.operation, row.heads, row.tokens)
            if contender.peer == "ours":
                key = (contender.name, row.operation, row.tokens)  # heads are not compiled in
            if contender.compiles_per_batch:
                key = (*key, row.requests)
            found.setdefault(key, (row, contender.name))
    return list(found.values())


def compile_all(
    todo: Sequence[Task],
    folder: Path | None,
    device: str,
    jobs: int,
    shown: Callable[[int], None] = lambda done: None,
) -> None:
    """Make every call once.

    Args:
        todo: from `tasks`.
        folder: see `peers_sglang.contenders`.
        device: a CUDA device.
        jobs: processes, each with a context of its own on the device.
        shown: called with the number of calls made.
    """
    # A forked process could not use CUDA.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        waiting = [pool.submit(_call, task, folder, device) for task in todo]
        for done, future in enumerate(as_completed(waiting), 1):
            future.exception()
            shown(done)


def _call(task: Task, folder: Path | None, device: str) -> None:
    import torch

    from . import participants
    from .inputs import draw

    row, name = task
    contenders, _ = participants.gather(folder)
    contender = next(c for c in contenders if c.name == name)
    contender.bind(draw(row, device, 0))()
    torch.cuda.synchronize()
