"""The judge, with the time of the oracle, of its rounding model and of the yardsticks counted."""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnbench.plugins.registry import load_operator
from attnbench.processes.rpc import serve
from attnbench.workers.oracle_worker import OracleWorker
from research.conform_cost import spent


class _Timed:
    """An operator whose oracle and yardsticks are counted."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        """The oracle, or its rounding model."""
        with spent.spending("oracle" if named.get("noise") is None else "rounding model"):
            return self._operator.evaluate(*arguments, **named)

    def yardsticks(self, *arguments: Any) -> Iterator[Any]:
        """Paths of the reference."""
        with spent.spending("yardsticks"):
            found = list(self._operator.yardsticks(*arguments))
        yield from found


class _TimedJudge(OracleWorker):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._load_operator = cache(_timed)


def _timed(name: str) -> Any:
    """An operator by name, counted."""
    return _Timed(load_operator(name))


def main() -> None:
    """As ``attnbench.workers.oracle_worker``, and what was spent."""

    def start(*, folder: str) -> dict[str, Any]:
        handlers.update(_TimedJudge(Path(folder)).handlers())
        return {"threads": torch.get_num_threads(), "torch": torch.__version__}

    handlers: dict[str, Any] = {"start": start, "spent": spent.answer}
    spent.started()
    serve(handlers, int(sys.argv[1]))


if __name__ == "__main__":
    main()
