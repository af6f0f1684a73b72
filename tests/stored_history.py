"""Result files of asv with chosen values, in the format in which asv 0.6.6 writes them."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

__all__ = ["COLUMNS", "SUITE", "store", "write_asv"]

SUITE = "attention.Attention"
COLUMNS = [
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
    "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
]  # fmt: skip
# Time of the first commit and between two commits, in milliseconds since 1970.
START, DAY = 1_795_261_861_000, 86_400_000


def store(values: Mapping[str, object], params: list[list[str]]) -> dict[str, object]:
    """Return the field ``results``: the same value of a benchmark for all its parameters; trailing fields are cut."""
    count = len(list(itertools.product(*params)))
    return {f"{SUITE}.track_{name}": [[value] * count, params, "1", 1, 2.5] for name, value in values.items()}


def write_asv(
    folder: Path, number: int, values: Mapping[str, object], *, params: list[list[str]] | None = None,
    machine: str = "some-cpu", **changed: object,
) -> Path:  # fmt: skip
    """Write the result file of the commit ``number`` with a value of each benchmark, and return its path."""
    commit = f"{number:08x}" + "0" * 32
    params = params or [["'mine.py:attend'"], ["128"], ["'forward'"]]
    content = {
        "commit_hash": commit, "env_name": "virtualenv-py3.11-torch2.13.0", "date": START + number * DAY,
        "params": {"machine": machine, "python": "3.11"}, "python": "3.11", "requirements": {}, "env_vars": {},
        "result_columns": COLUMNS, "results": store(values, params), "durations": {}, "version": 2,
    }  # fmt: skip
    own = folder / machine
    own.mkdir(parents=True, exist_ok=True)
    (own / "machine.json").write_text(json.dumps({"machine": machine, "version": 1}))
    path = own / f"{commit[:8]}-virtualenv-py3.11-torch2.13.0.json"
    path.write_text(json.dumps(content | changed))
    return path
