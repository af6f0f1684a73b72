"""A candidate worker that counts the CPU time of the candidate: building, preparing, calls and backward passes.

When its connection is closed, it writes the CPU times to a file in the folder that ``cpu_time.SECONDS_FOLDER`` names.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.checks.chapters import compilation
from attnbench.processes.rpc import serve
from attnbench.workers import loaded_implementations
from attnbench.workers.candidate_worker import CandidateWorker
from attnbench.workers.loaded_implementations import LoadedImplementations
from research.conform_cost import cpu_time


def _exhaust(check: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a check into a function that returns a list of its observations.

    A check is a generator function. Its call returns before any work is done, so timing the call would miss the work.
    """
    return wraps(check)(lambda candidate: list(check(candidate)))


def main() -> None:
    """Answer requests as a candidate worker until the connection closes, then write the CPU times of this process."""
    for name in ("build", "prepare", "run", "run_on"):
        setattr(Candidate, name, cpu_time.count_calls_as("candidate", getattr(Candidate, name)))
    # The check ``compiled_for_other_lengths`` compiles and calls the module without the wrapped methods of Candidate.
    # The time of the whole check is therefore counted.
    compiling = "compiled_for_other_lengths"
    setattr(compilation, compiling, cpu_time.count_calls_as("candidate", _exhaust(getattr(compilation, compiling))))
    torch.autograd.grad = cpu_time.count_calls_as("candidate", torch.autograd.grad)
    loading = "load_implementation"
    counted = cpu_time.count_calls_as("process start", getattr(loaded_implementations, loading))
    setattr(loaded_implementations, loading, counted)
    cpu_time.end_process_start()
    atexit.register(_write_seconds)
    serve(CandidateWorker(LoadedImplementations()).handlers(), int(sys.argv[1]))


def _write_seconds() -> None:
    Path(os.environ[cpu_time.SECONDS_FOLDER], f"{os.getpid()}.json").write_text(json.dumps(cpu_time.read_seconds()))


if __name__ == "__main__":
    main()
