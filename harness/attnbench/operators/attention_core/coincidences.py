"""Cases in which sizes coincide: equal sizes, and lengths that are multiples of a tile or one beyond.

The module of the same name of the operator ``multihead`` says why.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from attnbench.cases import DTYPES

__all__ = ["COINCIDENT", "is_coincident", "resolve_row"]

# Pairs of the numbers of queries and keys. A name means as many as the size of this name.
LENGTHS: tuple[tuple[int | str, int | str], ...] = (
    ("batch", "heads"), ("heads", "head_dim"), ("head_dim", "batch"), ("head_dim", "head_dim"),
    # Multiples of 16 and 128, and one beyond a multiple.
    (32, 48), (128, 128), (33, 65), (129, 129),
)  # fmt: skip
# Largest number of pairs of a query and a key with more than one sequence: the time grows with the pairs.
PAIRS = 2048
# Every coincidence meets every value of every other factor.
COINCIDENT: Mapping[str, tuple[Any, ...]] = {
    "lengths": LENGTHS,
    "mask": ("none", "causal_br", "bias2d", "causal_tl+ragged"),
    "batch": (2, 7, 1),
    "heads": ((3, None), (6, 2), (4, 2)),
    # Pairs of head_dim and head_dim_v. Widths of 36 are wider than 32 and of no multiple of 8.
    "widths": ((8, None), (8, 5), (36, None), (5, 12)),
    "dtype": DTYPES,
    "mode": ("inference", "train"),
}


def is_coincident(row: Mapping[str, Any]) -> bool:
    """Return whether a row, complete or partial, has the coincidence that its lengths name, and no other."""
    names = ("lengths", "batch", "heads", "widths")
    choices = ([row[name]] if name in row else COINCIDENT[name] for name in names)
    return any(_is_unambiguous(*values) for values in product(*choices))


@cache
def _is_unambiguous(
    lengths: tuple[int | str, int | str], batch: int, heads: tuple[int, int | None], widths: tuple[int, int | None]
) -> bool:
    """Return whether sizes are equal only where their names say so, and long sequences are alone in their batch."""
    sizes = _list_sizes(batch, heads, widths)
    queries, keys = (_resolve(one, sizes) for one in lengths)
    if queries * keys > PAIRS and batch > 1:
        return False
    counts = Counter(sizes.values())
    named = sum(isinstance(one, str) for one in lengths)
    return counts[queries] + counts[keys] == named and (queries == keys) == (lengths[0] == lengths[1])


def _list_sizes(batch: int, heads: tuple[int, int | None], widths: tuple[int, int | None]) -> dict[str, int]:
    shared, other = ({"key heads": heads[1]} if heads[1] else {}), ({"head_dim_v": widths[1]} if widths[1] else {})
    return {"batch": batch, "heads": heads[0], "head_dim": widths[0], **shared, **other}


def _resolve(length: int | str, sizes: Mapping[str, int]) -> int:
    return sizes[length] if isinstance(length, str) else length


def resolve_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the first covering array that has the sizes and the other values of a row of this one."""
    sizes, parts = _list_sizes(row["batch"], row["heads"], row["widths"]), row["mask"].split("+")
    return {
        "dtype": row["dtype"],
        "mode": row["mode"],
        "batch": row["batch"],
        "heads": row["heads"],
        "widths": row["widths"],
        "lengths": tuple(_resolve(one, sizes) for one in row["lengths"]),
        "causal": next((part for part in parts if part.startswith("causal")), ""),
        "window": None,
        "added": next((part for part in parts if part.startswith("bias")), ""),
        "ragged": "ragged" in parts,
        "softcap": 0.0,
        "scale": 0.0,
        # Fewer checks run on peaked logits.
        "regime": "peaked",
    }
