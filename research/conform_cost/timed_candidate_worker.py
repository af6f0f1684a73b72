"""A candidate worker that counts the CPU time of the candidate: building, preparing, calls and backward passes."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.checks.chapters import compilation
from attnbench.processes.rpc import serve
from attnbench.workers.candidate_worker import CandidateWorker
from research.conform_cost import cpu_time


def _exhaust(check: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a check into a function that returns a list of its observations.

    A check is a generator function. Its call returns before any work is done, so timing the call would miss the work.
    """
    return wraps(check)(lambda candidate: list(check(candidate)))


def main() -> None:
    """Serve as a candidate worker that also answers ``spent``, the request for its CPU times."""
    for name in ("build", "prepare", "run", "run_on"):
        setattr(Candidate, name, cpu_time.count_calls_as("candidate", getattr(Candidate, name)))
    # This check compiles and calls the module without the wrapped methods of Candidate, so the whole check is counted.
    compiling = "compiled_for_other_lengths"
    setattr(compilation, compiling, cpu_time.count_calls_as("candidate", _exhaust(getattr(compilation, compiling))))
    torch.autograd.grad = cpu_time.count_calls_as("candidate", torch.autograd.grad)
    worker = CandidateWorker()
    worker.open = cpu_time.count_calls_as("process start", worker.open)  # type: ignore[method-assign]
    cpu_time.end_process_start()
    serve(worker.handlers() | {"spent": cpu_time.read_seconds}, int(sys.argv[1]))


if __name__ == "__main__":
    main()
