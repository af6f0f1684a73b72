"""Kinds of values: each is read from the words of a command line, or from values of Python and TOML, into one form."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "BYTES", "COUNT", "COUNTS", "FLAG", "FOLDER", "LENGTHS", "PATHS", "POSITIVE", "SECONDS", "SEED", "SHARD", "SHARES",
    "TEXT", "TEXTS", "WORDS", "Kind", "Length", "format_value", "make_choice",
]  # fmt: skip

# A length: a number of tokens, or the numbers of queries and keys.
Length = int | tuple[int, int]
# A memory limit of this many bytes or more is refused: the operating system cannot set such a limit.
MOST_BYTES = 2**62
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of values."""

    # Returns the one form; raises ValueError, TypeError, AttributeError or OverflowError for what it cannot read.
    parse: Callable[[Any], Any]
    # What a value must be, an example, and the word of the command's help for it.
    need: str
    example: str = ""
    word: str = "TEXT"


def format_value(value: Any) -> str:
    """Return a value as it is written on a command line: a list with commas, and a pair of lengths with a colon."""
    if not isinstance(value, tuple | list):
        return str(value)
    return ",".join(":".join(map(str, one)) if isinstance(one, tuple | list) else str(one) for one in value)


def _parse_count(value: Any) -> int:
    return _parse_int(value, least=1)


def _parse_seed(value: Any) -> int:
    return _parse_int(value, least=0)


def _parse_counts(value: Any) -> tuple[int, ...]:
    return tuple(sorted(set(map(_parse_count, _split(value)))))


def _parse_lengths(value: Any) -> tuple[Length, ...]:
    pairs = sorted({(keys, queries) for queries, keys in map(_parse_length, _split(value))})
    return tuple(queries if queries == keys else (queries, keys) for keys, queries in pairs)


def _parse_shares(value: Any) -> tuple[float, ...]:
    """Return numbers above 0 and below 1, ascending, with the six digits that the id of a case has."""
    found = sorted({float(f"{_parse_float(one):g}") for one in _split(value)})
    if not 0 < found[0] <= found[-1] < 1:
        raise ValueError(value)
    return tuple(found)


def _parse_positive(value: Any) -> float:
    found = _parse_float(value)
    if not 0 < found < math.inf:
        raise ValueError(value)
    return found


def _parse_seconds(value: Any) -> float:
    """Return a finite number of seconds above 0; a text may end in "s"."""
    return _parse_positive(value.removesuffix("s") if isinstance(value, str) else value)


def _parse_bytes(value: Any) -> int:
    """Return a number of bytes; a text may have a unit such as GiB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]i?B)?", str(value))
    if not found or not 0 < (number := int(float(found[1]) * _UNITS[found[2] or ""])) < MOST_BYTES:
        raise ValueError(value)
    return number


def _parse_shard(value: Any) -> tuple[int, int]:
    index, count = map(_parse_count, value.split("/") if isinstance(value, str) else value)
    if index > count:
        raise ValueError(value)
    return index, count


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


def _parse_texts(value: Any) -> tuple[str, ...]:
    """Return texts without repeats; a text alone may have commas."""
    return tuple(dict.fromkeys(map(_parse_text, [value] if isinstance(value, str) else value)))


def _parse_words(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_parse_text, _split(value))))


def make_choice(allowed: Sequence[str], *, several: bool = False) -> Kind:
    """Return the kind of values that are one of these words, or several of them."""

    def choose(value: Any) -> str:
        return allowed[allowed.index(value)]

    def choose_several(value: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(choose, _split(value))))

    parse = choose_several if several else choose
    return Kind(parse=parse, need=f"one of {', '.join(allowed)}", word=f"[{'|'.join(allowed)}]")


def _parse_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _parse_path(value: Any) -> Path:
    return value if isinstance(value, Path) else Path(_parse_text(value))


def _parse_paths(value: Any) -> tuple[Path, ...]:
    return tuple(map(_parse_path, [value] if isinstance(value, str | Path) else value))


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
    numbers = [_parse_count(part.strip() if isinstance(part, str) else part) for part in parts]
    if len(numbers) > 2:
        raise ValueError(value)
    return numbers[0], numbers[-1]


COUNT = Kind(parse=_parse_count, need="a whole number of at least 1", example="10", word="NUMBER")
SEED = Kind(parse=_parse_seed, need="a whole number of at least 0", example="1", word="NUMBER")
COUNTS = Kind(parse=_parse_counts, need="whole numbers of at least 1", example="1,8", word="NUMBERS")
LENGTHS = Kind(
    parse=_parse_lengths, need="whole numbers of at least 1, or pairs of queries and keys",
    example="128,256, or 1:512 for one query and 512 keys", word="LENGTHS",
)  # fmt: skip
SHARES = Kind(parse=_parse_shares, need="numbers above 0 and below 1", example="0.3,0.5", word="SHARES")
POSITIVE = Kind(parse=_parse_positive, need="a number above 0", example="0.05", word="NUMBER")
SECONDS = Kind(parse=_parse_seconds, need="a number of seconds above 0", example="2.5", word="SECONDS")
BYTES = Kind(parse=_parse_bytes, need="a number of bytes", example="8GiB", word="BYTES")
SHARD = Kind(parse=_parse_shard, need="part I of N with 1 <= I <= N", example="1/4", word="I/N")
TEXT = Kind(parse=_parse_text, need="a name")
TEXTS = Kind(parse=_parse_texts, need="names or patterns")
WORDS = Kind(parse=_parse_words, need="words, separated by commas", example="none,causal", word="WORDS")
FLAG = Kind(parse=_parse_flag, need="true or false")
FOLDER = Kind(parse=_parse_path, need="a folder", example="results", word="DIRECTORY")
PATHS = Kind(parse=_parse_paths, need="paths of TOML files", word="FILE")
