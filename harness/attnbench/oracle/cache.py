"""What is known of cases, for as long as a run lasts: in memory up to a budget of bytes, beyond it on disk.

Every implementation of a run is judged by the same inputs, oracle and budgets; they are computed once.
"""

from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnbench.cases import Case
from attnbench.interface import Inputs, Operator, PaddedQueries, Precision
from attnbench.oracle import tensor_file
from attnbench.oracle.error_budget import Allowance
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.oracle.inputs import loaded, stored

__all__ = ["Archive"]

# Bytes of truths and inputs in memory, and of truths on disk; the suite full takes 0.2 GB.
MEMORY_BYTES = 2**29
DISK_BYTES = 2**32
# What a truth is of: case without its device, precision, and whose the rows of padded queries are.
_Key = tuple[str, Precision, PaddedQueries]


class Archive:
    """Inputs and truths of cases, each made once; ``folder`` is where they go."""

    def __init__(self, folder: Path, *, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._known: OrderedDict[_Key, tuple[CaseOracle, int]] = OrderedDict()
        self._stored: dict[_Key, Path] = {}
        # The inputs drawn last: whoever wants their file soon wants their oracle.
        self._drawn: tuple[Path, Inputs] | None = None

    def inputs(self, case: Case, operator: Operator) -> Path:
        """File of a case's inputs, drawn at the first request; cases that differ in the mode alone share it."""
        path = self._folder / f"{case.seed:x}-{case.given_dtype}.inputs"
        if not path.exists():
            drawn = operator.inputs(case)
            tensor_file.write(path, stored(drawn))
            self._drawn = (path, drawn)
        return path

    def known(
        self, case: Case, operator: Operator, precision: Precision, padded_queries: PaddedQueries = "answered"
    ) -> CaseOracle:
        """What is known of a case where it is computed in a precision, its truth included."""
        if padded_queries == "own" and not operator.padded_rows(case, self._read(self.inputs(case, operator))):
            padded_queries = "answered"  # here nobody has any: one truth serves all
        key = (case.id.replace(f"/{case.device}/", "/"), precision, padded_queries)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key][0]
        path = self.inputs(case, operator)
        truth = _restored(tensor_file.read(self._stored[key])) if key in self._stored else None
        known = CaseOracle(
            case, operator, precision, lambda: self._read(path), truth=truth, padded_queries=padded_queries
        )
        # Of the inputs there is a copy in float64 as well.
        self._known[key] = (known, _bytes(known.truth) + 3 * path.stat().st_size)
        self._forget()
        return known

    def _read(self, path: Path) -> Inputs:
        return self._drawn[1] if self._drawn is not None and self._drawn[0] == path else loaded(path)

    def _forget(self) -> None:
        """Move what was used longest ago to disk, but for the last one."""
        total = sum(count for _, count in self._known.values())
        while total > self._memory_bytes and len(self._known) > 1:
            key, (known, count) = self._known.popitem(last=False)
            total -= count
            if key not in self._stored and count <= self._disk_bytes:
                path = self._folder / f"{len(self._stored)}.truth"
                tensor_file.write(path, _plain(known.truth))
                self._stored[key] = path
                self._disk_bytes -= count


def _bytes(truth: Expected) -> int:
    return sum(tensor.nbytes for tensor in (*truth.quantities.values(), *truth.hidden_rows.values()))


def _plain(truth: Expected) -> dict[str, Any]:
    return {
        "quantities": truth.quantities,
        "allowances": {name: asdict(allowance) for name, allowance in truth.allowances.items()},
        "hidden_rows": truth.hidden_rows,
    }


def _restored(plain: dict[str, Any]) -> Expected:
    allowances = {name: Allowance(**fields) for name, fields in plain["allowances"].items()}
    return Expected(quantities=plain["quantities"], allowances=allowances, hidden_rows=plain["hidden_rows"])
