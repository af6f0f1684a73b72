"""Reads result files of asv, of the benchmarks that ``attnbench.asv`` makes.

Source: asv 0.6.6, ``asv/results.py`` (file format 2).
"""

import ast
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from attnbench.asv import PARAMETERS
from attnhistory.points import COUNTERS, RATIO, Key, Point, Quantity, Reading, Skipped

__all__ = ["read_asv"]

FORMAT = 2
PREFIX = "track_"
QUANTITIES: Mapping[str, Quantity] = {f"{PREFIX}{name}": name for name in (*COUNTERS, RATIO)}


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


def read_asv(path: Path) -> Iterator[Reading | Skipped]:
    """Yield the values of a result file, and what is left out and why."""
    try:
        # asv writes NaN, which only Python's own parser takes.
        file = msgspec.convert(json.loads(path.read_bytes()), _File)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError) as error:
        yield Skipped(path=str(path), reason=f"it is no whole result file of asv: {error}")
        return
    if file.version != FORMAT:
        yield Skipped(path=str(path), reason=f"asv's format {file.version} is not known, only {FORMAT}")
        return
    columns = {name: dict(zip(file.result_columns, stored, strict=False)) for name, stored in file.results.items()}
    for name, stored in columns.items():
        suite, _, own = name.rpartition(".")
        if own not in QUANTITIES:
            continue
        try:
            ends = [columns.get(f"{suite}.{own}_{end}", {}) for end in ("low", "high")]
            yield from _read_benchmark(file, suite, QUANTITIES[own], stored, ends)
        except (TypeError, ValueError) as error:
            yield Skipped(path=str(path), reason=f"{name} is no benchmark of attnbench.asv: {error}")


def _read_benchmark(
    file: _File, suite: str, quantity: Quantity, stored: Mapping[str, Any], ends: Sequence[Mapping[str, Any]]
) -> Iterator[Reading]:
    """Yield the values of a benchmark; ``ends`` are those of the ends of its intervals, which may be empty.

    Raises: TypeError, ValueError where its parameters or values are not those of ``attnbench.asv``.
    """
    date = datetime.fromtimestamp(file.date / 1000, UTC).isoformat()
    lows, highs = map(_read_values, ends)
    for words, value in _read_values(stored).items():
        if quantity == RATIO and not value:
            continue
        implementation, *rest = words
        case = " ".join(f"{name}={word}" for name, word in zip(PARAMETERS[1:], rest, strict=False))
        key = Key(
            machine=file.params.machine, environment=f"{file.env_name}, {suite}", implementation=implementation,
            case=case, length=int(rest[0]), quantity=quantity, version=str(stored.get("version") or ""),
        )  # fmt: skip
        # An end may be n/a where the value is not.
        low, high = lows.get(words) or None, highs.get(words) or None
        yield Reading(key=key, point=Point(commit=file.commit_hash, date=date, value=value, low=low, high=high))


def _read_values(stored: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
    """Return the values of a benchmark that are numbers, by the words of its parameters.

    Raises: TypeError, ValueError where they are not those of ``attnbench.asv``.
    """
    params, values = stored.get("params") or [], stored.get("result")
    if not stored or values is None:
        return {}
    if len(params) not in (len(PARAMETERS), len(PARAMETERS) - 2):
        raise ValueError(f"its parameters must be {', '.join(PARAMETERS)}, and it has {len(params)}")
    found = {}
    for words, value in zip(itertools.product(*params), values, strict=True):
        # None: the benchmark failed. NaN: n/a. A ratio or a counter is never negative.
        if value is not None and math.isfinite(value) and value >= 0:
            found[tuple(map(_read_word, words))] = float(value)
    return found


def _read_word(word: str) -> str:
    """Return a parameter as it was given; asv stores what ``repr`` makes of it."""
    try:
        return str(ast.literal_eval(word))
    except (ValueError, SyntaxError):
        return word
