"""Reads result files of asv, of the benchmarks that ``attnbench.asv`` makes.

Source: asv 0.6.6, ``asv/results.py`` (file format 2).
"""

import ast
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["PARAMETERS", "AsvFile", "AsvValue", "is_asv_file", "list_asv_files", "parse_asv_file"]

FORMAT = 2
PREFIX = "track_"
# Names of the parameters; the last two are parameters only where dtypes or masks are chosen.
PARAMETERS = ("implementation", "length", "pass", "dtype", "mask")
# What the benchmarks of ``attnbench.asv`` measure. The times are in nanoseconds.
QUANTITIES = frozenset(
    {
        "time_ns", "time_ratio", "time_ratio_low", "time_ratio_high", "peak_bytes", "saved_bytes", "workspace_bytes",
        "kernel_calls", "flop",
    }
)  # fmt: skip
# What is n/a where an implementation refuses a call or fails its checks, and never because of other work; and the name
# under which it is told whether it was measured: 1, or 0 if it is n/a.
WITNESS, MEASURED = "peak_bytes", "measured"
# A folder with this file has the results of a machine; asv writes others beside it and above it.
MACHINE, OTHERS = "machine.json", frozenset({"machine.json", "benchmarks.json"})


class _Machine(msgspec.Struct):
    machine: str


class _File(msgspec.Struct):
    """The fields of a result file that are read here."""

    commit_hash: str
    # Date of the commit, in milliseconds since 1970.
    date: int
    env_name: str
    params: _Machine
    result_columns: list[str]
    results: dict[str, list[Any]]
    version: int


class AsvValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number that a benchmark measured."""

    # Module and class of the benchmark.
    suite: str
    quantity: str
    # Version of the benchmark, which ``attnbench.asv`` raises if a number changes its meaning.
    version: str
    # Values of ``PARAMETERS``; dtype and mask only where they are parameters.
    words: tuple[str, ...]
    value: float


class AsvFile(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a result file: those of one commit, machine and environment."""

    commit: str
    # Date of the commit; UTC, in the format of ISO 8601.
    date: str
    machine: str
    environment: str
    values: tuple[AsvValue, ...]
    # Why benchmarks were left out.
    problems: tuple[str, ...]


def list_asv_files(folder: Path) -> Iterator[Path]:
    """Yield the result files of asv in a folder and its subfolders."""
    for machine in sorted(folder.rglob(MACHINE)):
        yield from sorted(file for file in machine.parent.glob("*.json") if file.name not in OTHERS)


def is_asv_file(stored: object) -> bool:
    """Whether decoded JSON looks like a result file of asv."""
    return isinstance(stored, Mapping) and {"commit_hash", "result_columns"} <= stored.keys()


def parse_asv_file(content: bytes) -> AsvFile:
    """Return the values of a result file.

    Raises: ValueError where it is no whole result file of asv.
    """
    try:
        # asv writes NaN, which only Python's own parser takes.
        file = msgspec.convert(json.loads(content), _File)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no whole result file of asv: {error}") from error
    if file.version != FORMAT:
        raise ValueError(f"asv's format {file.version} is not known, only {FORMAT}")
    values: list[AsvValue] = []
    problems = []
    for name, stored in file.results.items():
        suite, _, own = name.rpartition(".")
        if own.removeprefix(PREFIX) not in QUANTITIES or not own.startswith(PREFIX):
            continue
        try:
            found = dict(zip(file.result_columns, stored, strict=False))
            values += _read_benchmark(suite, own.removeprefix(PREFIX), found)
        except (TypeError, ValueError) as error:
            problems.append(f"{name} is no benchmark of attnbench.asv: {error}")
    return AsvFile(
        commit=file.commit_hash, date=datetime.fromtimestamp(file.date / 1000, UTC).isoformat(),
        machine=file.params.machine, environment=file.env_name, values=tuple(values), problems=tuple(problems),
    )  # fmt: skip


def _read_benchmark(suite: str, quantity: str, stored: Mapping[str, Any]) -> list[AsvValue]:
    """Return the values of a benchmark that are numbers, and of ``WITNESS`` also whether it was measured.

    Raises: TypeError, ValueError where its parameters or values are not those of ``attnbench.asv``.
    """
    params, values = stored.get("params") or [], stored.get("result")
    if not stored or values is None:
        return []
    if len(params) not in (len(PARAMETERS), len(PARAMETERS) - 2):
        raise ValueError(f"its parameters must be {', '.join(PARAMETERS)}, and it has {len(params)}")
    version = str(stored.get("version") or "")
    found = []
    for words, value in zip(itertools.product(*params), values, strict=True):
        if value is None:  # the benchmark failed
            continue
        read = tuple(map(_read_word, words))
        int(read[1])  # the length
        # NaN is n/a. A time, a ratio or a counter is never negative.
        numbers = {quantity: float(value)} if math.isfinite(value) and value >= 0 else {}
        numbers |= {MEASURED: float(bool(numbers))} if quantity == WITNESS else {}
        found += [
            AsvValue(suite=suite, quantity=name, version=version, words=read, value=number)
            for name, number in numbers.items()
        ]
    return found


def _read_word(word: str) -> str:
    """Return a parameter as it was given; asv stores what ``repr`` makes of it."""
    try:
        return str(ast.literal_eval(word))
    except (ValueError, SyntaxError):
        return word
