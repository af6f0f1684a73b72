"""Runs a check on one implementation in a new process, because a mutant may hang or change the process's state."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

__all__ = ["Outcome", "run_isolated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a function returned, and its processor time in seconds; None if it hung or its process died."""

    value: Any = None
    cpu_s: float | None = None


def run_isolated(function: Callable[[], Any], limit_s: float) -> Outcome:
    """Call a function in a fork of this process; end the fork at its time limit.

    The fork shares what this process imported and drew. This process must not have run a backward pass, because torch
    refuses backward passes in a fork of such a process.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(there, function))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(limit_s) else Outcome()
    except EOFError:  # the process died
        return Outcome()
    finally:
        child.kill()
        child.join()
        here.close()


def _answer(there: Connection, function: Callable[[], Any]) -> None:
    """Send the outcome of a function, and end this process at once, whatever its threads do."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    begin = time.process_time()
    there.send(Outcome(value=function(), cpu_s=time.process_time() - begin))
    os._exit(0)
