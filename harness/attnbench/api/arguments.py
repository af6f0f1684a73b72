"""Arguments of Python as the values of the command's options; one value and a list of values are both taken."""

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from attnbench.api.axes import Length

__all__ = ["list_counts", "list_lengths", "list_shares", "list_words", "require_count", "require_positive"]


def list_counts(argument: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Return whole numbers of at least 1, ascending.

    Raises: ValueError for anything else.
    """
    found = _as_list(value)
    if not all(map(_is_count, found)):
        raise ValueError(f"{argument} must be whole numbers of at least 1, got {value!r}; for example [128, 256]")
    return tuple(sorted(set(found)))


def list_lengths(argument: str, value: int | Sequence[Length]) -> tuple[Length, ...]:
    """Return lengths, ascending; a pair is the numbers of queries and keys.

    Raises: ValueError for anything else.
    """
    found: dict[tuple[int, int], Length] = {}
    for one in _as_list(value):
        pair = (one, one) if _is_count(one) else one
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(_is_count, pair)):
            raise ValueError(
                f"{argument} must be whole numbers of at least 1, or pairs (queries, keys), got {value!r}; for example "
                "[128, 256], or [(1, 512)] for one query and 512 keys"
            )
        queries, keys = pair
        found[keys, queries] = queries if queries == keys else (queries, keys)
    return tuple(found[key] for key in sorted(found))


def list_shares(argument: str, value: float | Sequence[float]) -> tuple[float, ...]:
    """Return numbers above 0 and below 1, ascending, with the six digits that the id of a case has.

    Raises: ValueError for anything else.
    """
    found = _as_list(value)
    if not all(isinstance(share, float) and 0 < share < 1 for share in found):
        raise ValueError(f"{argument} must be numbers above 0 and below 1, got {value!r}; for example 0.3")
    return tuple(sorted({float(f"{share:g}") for share in found}))


def list_words(argument: str, value: str | Sequence[str], allowed: Collection[str] = ()) -> tuple[str, ...]:
    """Return words without repeats; if ``allowed`` has words, each must be one of these.

    Raises: ValueError for anything else.
    """
    found = _as_list(value)
    if not all(isinstance(word, str) and word and (not allowed or word in allowed) for word in found):
        known = f"of {', '.join(allowed)}" if allowed else "text"
        raise ValueError(f"{argument} must be one or several {known}, got {value!r}")
    return tuple(dict.fromkeys(found))


def require_count(argument: str, value: int | None, most: int | None = None) -> None:
    """Check a whole number of at least 1 and of at most ``most``; None is allowed.

    Raises: ValueError for anything else.
    """
    if value is not None and not (_is_count(value) and (most is None or value <= most)):
        at_most = "" if most is None else f" and at most {most}"
        raise ValueError(f"{argument} must be a whole number of at least 1{at_most}, got {value!r}")


def require_positive(argument: str, value: float | None) -> None:
    """Check a finite number above 0; None is allowed.

    Raises: ValueError for anything else.
    """
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{argument} must be a number above 0, got {value!r}")


def _as_list(value: Any) -> list[Any]:
    single = isinstance(value, str | Path) or not isinstance(value, Iterable)
    return [value] if single else list(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
