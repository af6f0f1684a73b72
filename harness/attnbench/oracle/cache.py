"""Cache of the inputs and expected values of a run's cases: in memory up to a limit in bytes, and on disk beyond it.

Every implementation of a run gets the same inputs and is compared with the same expected values and allowances. They
are computed once per case, as long as there is room for them. A ``DiskCache`` also keeps expected values for later
runs.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import DEFAULT_CHOICES, Choices, Inputs, Operator, Precision
from attnbench.oracle import tensor_file
from attnbench.oracle.disk_cache import DiskCache
from attnbench.oracle.error_budget import Allowance
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.oracle.inputs import inputs_to_dict, load_inputs
from attnbench.oracle.result_key import ResultKeys

__all__ = ["OracleCache"]

# Largest total size in bytes of the inputs and expected values in memory. The suite ``full`` needs 0.2 GB.
MEMORY_BYTES = 2**29
# Largest total size in bytes of the expected values that are moved from memory to disk.
DISK_BYTES = 2**32
# Key of a case oracle in memory: the case id without its device, the precision, and the policies on which expected
# values depend.
_Key = tuple[str, Precision, Choices]


class OracleCache:
    """Draws the inputs and computes the expected values of each case once.

    ``folder`` is the folder for the files of inputs and expected values of this run. ``kept`` is the cache that
    outlives the run: expected values are read from it, and newly computed values are stored in it. If ``kept`` is None,
    this run computes all its expected values.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kept: DiskCache | None = None,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
    ) -> None:
        self._folder = folder
        self._kept = kept
        self._result_keys = ResultKeys()
        self._memory_bytes = memory_bytes
        self._disk_bytes = disk_bytes
        self._case_oracles: OrderedDict[_Key, tuple[CaseOracle, int]] = OrderedDict()
        self._stored: dict[_Key, Path] = {}
        # The inputs drawn last, with the path of their file. They stay in memory, because ``get_case_oracle`` is
        # usually called right after ``get_inputs_file`` for the same case.
        self._drawn: tuple[Path, Inputs] | None = None

    def get_inputs_file(self, case: Case, operator: Operator) -> Path:
        """Return the path of the file of a case's inputs, which are drawn at the first request.

        Cases that differ only in the mode share one file.
        """
        path = self._folder / f"{case.seed:x}-{case.given_dtype}.inputs"
        if not path.exists():
            drawn = operator.inputs(case)
            tensor_file.write(path, inputs_to_dict(drawn))
            self._drawn = (path, drawn)
        return path

    def get_case_oracle(
        self, case: Case, operator: Operator, precision: Precision, choices: Choices = DEFAULT_CHOICES
    ) -> CaseOracle:
        """Return the oracle of a case, with its expected values and the allowances of results in the given precision.

        ``choices`` are the implementation's policies on which expected values depend.
        """
        path = self.get_inputs_file(case, operator)
        choices = self._drop_idle(choices, case, operator, path)
        key = (case.with_fields(device="cpu").id, precision, choices)
        if key in self._case_oracles:
            self._case_oracles.move_to_end(key)
            return self._case_oracles[key][0]
        stored = _from_plain(tensor_file.read(self._stored[key])) if key in self._stored else None
        name = self._result_keys.make(case, operator, path, precision, choices) if self._kept else None
        case_oracle = CaseOracle(
            case, operator, precision, lambda: self._read_inputs(path), expected=stored,
            look_up=partial(self._look_up, name), choices=choices,
        )  # fmt: skip
        # The case oracle also keeps the inputs and a float64 copy of the inputs. If the inputs are float32, the two
        # together take 3 times the size of the inputs file.
        self._case_oracles[key] = (case_oracle, _count_bytes(case_oracle.expected) + 3 * path.stat().st_size)
        self._evict()
        return case_oracle

    def _look_up(self, name: str | None, changed: Mapping[str, Tensor], compute: Callable[[], Expected]) -> Expected:
        """Read expected values from the cache of earlier runs, or compute and store them.

        ``name`` is the key of the case; None if its values cannot be stored. ``changed`` are the tensors in place of
        the case's.
        """
        if self._kept is None or name is None:
            return compute()
        key = hashlib.sha256(name.encode() + tensor_file.encode(dict(changed))).hexdigest() if changed else name
        found = self._kept.read(key)
        if found is not None:
            return _from_plain(tensor_file.decode(found))
        computed = compute()
        self._kept.write(key, tensor_file.encode(_to_plain(computed)))
        return computed

    def _drop_idle(self, choices: Choices, case: Case, operator: Operator, path: Path) -> Choices:
        """Return the choices with the default in place of each policy that changes no expected value of the case."""
        if choices.hidden_rows == "nan":  # the comparison, not the oracle, sets NaN in outputs
            choices = replace(choices, hidden_rows="zero")
        if not case.differentiates:
            choices = replace(choices, detached_weights=False, hidden_row_gradients="exact")
        if choices == DEFAULT_CHOICES:
            return choices
        inputs = self._read_inputs(path)
        if choices.padded_queries == "own" and not operator.padded_rows(case, inputs):
            choices = replace(choices, padded_queries="answered")
        if "weights" not in inputs.cotangents:
            choices = replace(choices, detached_weights=False)
        if not operator.hidden_rows(case, inputs):
            choices = replace(choices, hidden_rows="zero", hidden_row_gradients="exact")
        return choices

    def _read_inputs(self, path: Path) -> Inputs:
        return self._drawn[1] if self._drawn is not None and self._drawn[0] == path else load_inputs(path)

    def _evict(self) -> None:
        """Move the least recently used expected values to disk until the memory limit holds.

        The expected values of the newest entry stay in memory. Values for which the disk has no room are discarded.
        """
        total = sum(count for _, count in self._case_oracles.values())
        while total > self._memory_bytes and len(self._case_oracles) > 1:
            key, (case_oracle, count) = self._case_oracles.popitem(last=False)
            total -= count
            if key not in self._stored and count <= self._disk_bytes:
                path = self._folder / f"{len(self._stored)}.expected"
                tensor_file.write(path, _to_plain(case_oracle.expected))
                self._stored[key] = path
                self._disk_bytes -= count


def _count_bytes(expected: Expected) -> int:
    return sum(tensor.nbytes for tensor in (*expected.quantities.values(), *expected.hidden_rows.values()))


def _to_plain(expected: Expected) -> dict[str, Any]:
    return {
        "quantities": expected.quantities,
        "allowances": {name: asdict(allowance) for name, allowance in expected.allowances.items()},
        "hidden_rows": expected.hidden_rows,
    }


def _from_plain(plain: dict[str, Any]) -> Expected:
    allowances = {name: Allowance(**fields) for name, fields in plain["allowances"].items()}
    return Expected(quantities=plain["quantities"], allowances=allowances, hidden_rows=plain["hidden_rows"])
