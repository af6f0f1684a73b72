"""Parsers of values: each takes the words of a command line, or the values of Python and TOML, and returns one form.

A parser raises ValueError or TypeError for what it cannot read; the field whose value it is says what it needs.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "Length",
    "choose_from",
    "choose_several",
    "format_value",
    "parse_bytes",
    "parse_count",
    "parse_counts",
    "parse_flag",
    "parse_lengths",
    "parse_path",
    "parse_paths",
    "parse_positive",
    "parse_seconds",
    "parse_seed",
    "parse_shard",
    "parse_shares",
    "parse_text",
    "parse_texts",
    "parse_words",
]

# A length: a number of tokens, or the numbers of queries and keys.
Length = int | tuple[int, int]
# A memory limit of this many bytes or more is refused: the operating system cannot set such a limit.
MOST_BYTES = 2**62
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def format_value(value: Any) -> str:
    """Return a value as it is written on a command line: a list with commas, and a pair of lengths with a colon."""
    if not isinstance(value, tuple | list):
        return str(value)
    return ",".join(":".join(map(str, one)) if isinstance(one, tuple | list) else str(one) for one in value)


def parse_count(value: Any) -> int:
    """Return a whole number of at least 1."""
    return _parse_int(value, least=1)


def parse_seed(value: Any) -> int:
    """Return a whole number of at least 0."""
    return _parse_int(value, least=0)


def parse_counts(value: Any) -> tuple[int, ...]:
    """Return whole numbers of at least 1, ascending."""
    return tuple(sorted(set(map(parse_count, _split(value)))))


def parse_lengths(value: Any) -> tuple[Length, ...]:
    """Return lengths, ascending."""
    pairs = sorted({(keys, queries) for queries, keys in map(_parse_length, _split(value))})
    return tuple(queries if queries == keys else (queries, keys) for keys, queries in pairs)


def parse_shares(value: Any) -> tuple[float, ...]:
    """Return numbers above 0 and below 1, ascending, with the six digits that the id of a case has."""
    found = sorted({float(f"{_parse_float(one):g}") for one in _split(value)})
    if not 0 < found[0] <= found[-1] < 1:
        raise ValueError(value)
    return tuple(found)


def parse_positive(value: Any) -> float:
    """Return a finite number above 0."""
    found = _parse_float(value)
    if not 0 < found < math.inf:
        raise ValueError(value)
    return found


def parse_seconds(value: Any) -> float:
    """Return a finite number of seconds above 0; a text may end in "s"."""
    return parse_positive(value.removesuffix("s") if isinstance(value, str) else value)


def parse_bytes(value: Any) -> int:
    """Return a number of bytes; a text may have a unit such as GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", str(value))
    if not found or not 0 < (number := int(float(found[1]) * _UNITS[found[2] or ""])) < MOST_BYTES:
        raise ValueError(value)
    return number


def parse_shard(value: Any) -> tuple[int, int]:
    """Return I and N of part I of N."""
    index, count = map(parse_count, value.split("/") if isinstance(value, str) else value)
    if index > count:
        raise ValueError(value)
    return index, count


def parse_text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def parse_texts(value: Any) -> tuple[str, ...]:
    """Return texts without repeats; a text alone may have commas."""
    return tuple(dict.fromkeys(map(parse_text, [value] if isinstance(value, str) else value)))


def parse_words(value: Any) -> tuple[str, ...]:
    """Return words without repeats."""
    return tuple(dict.fromkeys(map(parse_text, _split(value))))


def choose_from(allowed: Sequence[str]) -> Callable[[Any], str]:
    """Return a parser of one of these words."""

    def parse(value: Any) -> str:
        return allowed[allowed.index(value)]

    return parse


def choose_several(allowed: Sequence[str]) -> Callable[[Any], tuple[str, ...]]:
    """Return a parser of one or several of these words."""

    def parse(value: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(choose_from(allowed), _split(value))))

    return parse


def parse_flag(value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def parse_path(value: Any) -> Path:
    """Return a path that is not empty."""
    return value if isinstance(value, Path) else Path(parse_text(value))


def parse_paths(value: Any) -> tuple[Path, ...]:
    """Return paths."""
    return tuple(map(parse_path, [value] if isinstance(value, str | Path) else value))


def _split(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [word.strip() for word in value.split(",")]
    return list(value) if isinstance(value, Iterable) else [value]


def _parse_int(value: Any, *, least: int) -> int:
    if isinstance(value, str):
        number = int(value) if value.isdecimal() else -1
    elif isinstance(value, bool):
        raise TypeError(value)
    else:
        number = operator.index(value)
    if number < least:
        raise ValueError(value)
    return number


def _parse_float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _parse_length(value: Any) -> tuple[int, int]:
    parts = value.split(":") if isinstance(value, str) else value if isinstance(value, tuple | list) else [value]
    numbers = [parse_count(part.strip() if isinstance(part, str) else part) for part in parts]
    if len(numbers) > 2:
        raise ValueError(value)
    return numbers[0], numbers[-1]
