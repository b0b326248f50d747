"""Processes that judge: pools of workers, and one of its own for what may die or never end."""

from __future__ import annotations

import math
import os
import resource
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

Answer = TypeVar("Answer")

PRELOADED = ("torch", "triton", "triton.language", "hypothesis", "numpy", "pytest", "rich")
"""What every process of its own starts with; nothing of this project, whose text may be changed."""

WALL_TIMES = 10.0
WALL_SECONDS = 120.0
"""A process that uses no processor is ended after so many limits and so many seconds."""


class Died(Exception):
    """The process ended without an answer."""


class Late(Exception):
    """There was no answer in time, and the process was ended."""


def start_worker() -> None:
    """Give each worker one thread, since the processes use every core, and silence noise."""
    import torch

    torch.set_num_threads(1)
    # The interpreter computes masked lanes too, and numpy reports their overflows.
    for module in ("triton", "numpy"):
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=module)
    warnings.filterwarnings("ignore", message="Triton is not supported on current platform")


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of judging processes, each with one thread."""
    return ProcessPoolExecutor(workers, get_context("spawn"), start_worker)


def alone(function: Callable[..., Answer], *arguments: Any, limit: float | None = None) -> Answer:
    """Call a function in a new process and return what it returns.

    The limit is of processor time, so that what an answer takes does not depend on what else the
    machine does; a process that only waits is ended too, much later. New processes are forked off
    one that has loaded `PRELOADED`, with the environment of the first call.

    Args:
        function: of a module, so that it can be named to the process.
        arguments: of the call.
        limit: processor seconds for the answer, imports included; for ever if None.

    Raises:
        Died: the process ended first.
        Late: the time is over.
        Exception: whatever the function raised.
    """
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments, limit))
    process.start()
    sender.close()
    late = Late(f"no answer in {limit:.0f} s") if limit is not None else None
    try:
        if not receiver.poll(None if limit is None else WALL_TIMES * limit + WALL_SECONDS):
            raise late or AssertionError
        problem, answer = receiver.recv()
    except EOFError:
        process.join()
        if late is not None and process.exitcode == -signal.SIGXCPU:
            raise late from None
        raise Died("the process died") from None
    finally:
        process.kill()
        process.join()
        # Whatever it started goes too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        receiver.close()
    if problem is not None:
        raise problem
    result: Answer = answer
    return result


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _answer(
    sender: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    limit: float | None,
) -> None:
    os.setpgrp()
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), resource.RLIM_INFINITY))
    start_worker()
    try:
        answer: tuple[Exception | None, Any] = (None, function(*arguments))
    except Exception as problem:  # it is raised where the answer is awaited
        answer = (problem, None)
    sender.send(answer)
