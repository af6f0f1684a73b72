"""The worker, with the time of the implementation counted: building, preparing, calls and backward."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from attnbench.candidate.candidate import Candidate
from attnbench.checks.chapters import compilation
from attnbench.processes.rpc import serve
from attnbench.workers.candidate_worker import CandidateWorker
from research.conform_cost import spent


def _run_to_the_end(check: Callable[..., Any]) -> Callable[..., Any]:
    """A check as a function that returns all its claims; a generator would return before it has run."""
    return wraps(check)(lambda candidate: list(check(candidate)))


def main() -> None:
    """As ``attnbench.workers.candidate_worker``, and what was spent."""
    for name in ("build", "prepare", "run", "on"):
        setattr(Candidate, name, spent.counted("candidate", getattr(Candidate, name)))
    # It calls what was compiled, and so compiles it, by itself.
    compiling = "compiled_for_other_lengths"
    setattr(compilation, compiling, spent.counted("candidate", _run_to_the_end(getattr(compilation, compiling))))
    torch.autograd.grad = spent.counted("candidate", torch.autograd.grad)
    worker = CandidateWorker()
    worker.open = spent.counted("process start", worker.open)  # type: ignore[method-assign]
    spent.started()
    serve(worker.handlers() | {"spent": spent.answer}, int(sys.argv[1]))


if __name__ == "__main__":
    main()
