"""Run a function in a process of its own: it may die, and it may never end."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ..run import start_worker

Answer = TypeVar("Answer")


class Died(Exception):
    """The process ended without an answer."""


class Late(Exception):
    """There was no answer in time, and the process was ended."""


def alone(function: Callable[..., Answer], *arguments: Any, limit: float | None = None) -> Answer:
    """Call a function in a new process and return what it returns.

    Args:
        function: of a module, so that it can be named to the process.
        arguments: of the call.
        limit: seconds to wait for the answer, start of the process included; for ever if None.

    Raises:
        Died: the process ended first.
        Late: the time is over.
        Exception: whatever the function raised.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            raise Late(f"no answer in {limit:.0f} s")
        problem, answer = receiver.recv()
    except EOFError:
        raise Died("the process died") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if problem is not None:
        raise problem
    result: Answer = answer
    return result


def _answer(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    start_worker()
    try:
        answer: tuple[Exception | None, Any] = (None, function(*arguments))
    except Exception as problem:  # it is raised where the answer is awaited
        answer = (problem, None)
    sender.send(answer)
