"""Runs the checks on one implementation in a new process, because a mutant may hang or change the process's state."""

import multiprocessing
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from attnbench.candidate import global_state

__all__ = ["run_isolated"]

# What a function returned, and its processor time in seconds; None if it hung or its process ended.
Outcome = tuple[Any, float] | None


def run_isolated(functions: Mapping[str, Callable[[], Any]], limit_s: float) -> Iterator[tuple[str, Outcome]]:
    """Call functions one after the other in a fork of this process, and yield the outcome of each.

    The fork is ended when a function reaches its time limit; the rest is called in a new fork. A fork shares what this
    process imported and drew. This process must not have run a backward pass, because torch refuses backward passes in
    a fork of such a process.
    """
    left = dict(functions)
    while left:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_answer, args=(there, list(left.values())))
        child.start()
        there.close()
        try:
            outcome: Outcome = None
            for name in list(left):
                outcome = _receive(here, limit_s)
                del left[name]
                yield name, outcome
                if outcome is None:
                    break
        finally:
            child.kill()
            child.join()
            here.close()


def _receive(here: Connection, limit_s: float) -> Outcome:
    try:
        found: Outcome = pickle.loads(here.recv_bytes()) if here.poll(limit_s) else None  # noqa: S301  # own process
    except (EOFError, ConnectionError):  # the process ended
        return None
    return found


def _answer(there: Connection, functions: list[Callable[[], Any]]) -> None:
    """Send the outcome of each function, and end this process at once, whatever its threads do."""
    warnings.simplefilter("ignore")
    settings = global_state.read_settings()
    for function in functions:
        global_state.restore_settings(settings)  # also seeds the random numbers
        begin = time.process_time()
        value = function()
        cpu_s = time.process_time() - begin
        # Not ``send``: it passes tensors as shared memory, which ends with this process.
        there.send_bytes(pickle.dumps((value, cpu_s)))
    os._exit(0)
