"""An oracle worker that counts the CPU time of the oracle, of the rounding model and of the yardsticks."""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench.plugins.registry import load_operator
from attnbench.processes.rpc import serve
from attnbench.workers.oracle_worker import OracleWorker
from research.conform_cost import cpu_time


class _TimedOperator:
    """An operator that counts the CPU time of its oracle and its yardsticks."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate the oracle, or its rounding model if ``noise`` is given."""
        with cpu_time.count_as("oracle" if named.get("noise") is None else "rounding model"):
            return self._operator.evaluate(*arguments, **named)

    def yardsticks(self, *arguments: Any) -> Iterator[Any]:
        """Compute all yardsticks, then yield them one by one."""
        with cpu_time.count_as("yardsticks"):
            found = list(self._operator.yardsticks(*arguments))
        yield from found


class _TimedOracleWorker(OracleWorker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._load_operator = cache(_load_timed_operator)


def _load_timed_operator(name: str) -> Any:
    """Load an operator by name, wrapped so that its CPU time is counted."""
    return _TimedOperator(load_operator(name))


def main() -> None:
    """Serve as an oracle worker that also answers ``spent``, the request for its CPU times."""

    def start(*, folder: str, cache_folder: None) -> dict[str, Any]:  # noqa: ARG001
        handlers.update(_TimedOracleWorker(Path(folder)).handlers())
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}

    handlers: dict[str, Any] = {"start": start, "spent": cpu_time.read_seconds}
    cpu_time.end_process_start()
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
