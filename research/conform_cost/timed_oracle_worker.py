"""An oracle worker that counts the CPU time of the oracle, of the rounding model and of the yardsticks."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch

from attnbench.interface import Operator
from attnbench.plugins.registry import load_operator
from attnbench.processes.oracle_requests import Libraries, StartOracle
from attnbench.processes.request import Handler
from attnbench.processes.rpc import serve
from attnbench.workers.oracle_worker import OracleWorker
from research.conform_cost import cpu_time
from research.conform_cost.requests import ReadSeconds


class _TimedOperator:
    """An operator that counts the CPU time of its oracle, its rounding model and its yardsticks."""

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


def _load_timed_operator(name: str) -> Operator:
    """Load an operator by name, and wrap it in a ``_TimedOperator``."""
    return cast("Operator", _TimedOperator(load_operator(name)))


def main() -> None:
    """Answer requests as an oracle worker, and also the request ``ReadSeconds`` for the CPU times of this process."""

    def start(request: StartOracle) -> Libraries:
        handlers.extend(OracleWorker(Path(request.folder), _load_timed_operator).handlers())
        return Libraries(threads=torch.get_num_threads(), torch=str(torch.__version__))

    handlers: list[Handler] = [
        StartOracle.answered_by(start),
        ReadSeconds.answered_by(lambda _: cpu_time.read_seconds()),
    ]
    cpu_time.end_process_start()
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
