"""Timing in a process of its own, which a cheat may change; the process is forked from one that no test has changed."""

import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch

from attnbench.cases import Case
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.libraries import use_libraries
from attnbench.measurement.processor_time import limit_cores
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import load_operator, load_problem_types
from attnbench.processes.candidate_requests import Defence, Outcome, TimedSamples
from attnbench.workers.interleaved_timing import InterleavedTiming
from attnbench.workers.outcomes import run_for_outcome

__all__ = ["TimedChild", "time_in_child"]

# Seconds after which a process is killed.
PATIENCE_S = 60.0
# The module that the server imports before it forks.
PRELOADED = ["timed_children_imports"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedChild:
    """What a process does: it times implementations, by the names under which a worker loads them."""

    places: tuple[str, ...]
    case: str
    inputs: str
    checks: tuple[str, ...]
    observation: str
    budget_s: float
    without: frozenset[Defence] = frozenset()

    def serve(self, pipe: Connection) -> None:
        """Load the implementations, wait for a message, and send the samples or the fault."""
        torch.set_num_threads(1)
        if "processor" not in self.without:
            limit_cores(1)
        if "libraries" not in self.without:
            use_libraries()
        instrument = Instrument()
        case = Case.parse(self.case, load_problem_types())
        timing = InterleavedTiming(
            implementations={place: load_implementation(place) for place in self.places},
            baseline=self.places[0],
            operator=load_operator(case.operator),
            case=case,
            inputs=self.inputs,
            seed=time.monotonic_ns() % 1000,
            instrument=instrument,
            without=self.without,
        )
        pipe.send("ready")
        pipe.recv()
        pipe.send(
            run_for_outcome(
                lambda: timing.take_samples(
                    budget_s=self.budget_s, limit_s=PATIENCE_S, checks=self.checks, observation=self.observation
                )
            )
        )
        pipe.recv()


def time_in_child(child: TimedChild) -> tuple[TimedSamples | Outcome, int]:
    """Run a process; return its answer, and the nanoseconds that passed between question and answer."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    near, far = context.Pipe()
    process = context.Process(target=child.serve, args=(far,), daemon=True)
    # The server starts with the first process. It passes over modules that it does not find, those of the tests too.
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        process.start()
    far.close()
    try:
        _receive(near)
        begin = time.perf_counter_ns()
        near.send("go")
        answer = _receive(near)
        return answer, time.perf_counter_ns() - begin
    finally:
        process.kill()
        process.join()
        near.close()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError(f"no answer within {PATIENCE_S} s")
    return pipe.recv()
