"""Lists of cases: the levels of suites, the hash of a list, and its division into parts."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar, get_args

__all__ = ["LEVELS", "NESTED", "Level", "digest", "shard"]

Level = Literal["quick", "core", "full", "slow", "gpu", "huge"]
LEVELS: tuple[Level, ...] = get_args(Level)
# Each of these levels contains the cases of the level before it. The other levels ("gpu", "huge") are
# separate, and run only if they are named.
NESTED: tuple[Level, ...] = ("quick", "core", "full", "slow")

T = TypeVar("T")


def digest(case_ids: Iterable[str]) -> str:
    """Return a short hash of a list of case ids; two runs with equal hashes had the same cases."""
    return hashlib.sha256("\n".join(sorted(case_ids)).encode()).hexdigest()[:12]


def shard(cases: Sequence[T], index: int, count: int) -> Sequence[T]:
    """Split the cases into ``count`` parts, and return part number ``index``, counted from 1."""
    return cases[index - 1 :: count]
