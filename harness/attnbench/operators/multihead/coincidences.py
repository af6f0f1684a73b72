"""Cases in which sizes coincide: equal sizes, and lengths that are multiples of a tile or one beyond.

An implementation may tell an axis, or the kind of a mask, by its length, and may have a branch for sizes that a tile
divides. Such code is right at the sizes of most other cases, which are all different.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

from attnbench.cases import DTYPES

__all__ = ["COINCIDENT", "TRIPLES", "is_coincident", "resolve_row"]

# Names of sizes that a row has before its lengths are known. Such a name as a number of queries or keys means that
# there are as many.
SIZES = ("batch", "heads", "head_dim", "embed_dim", "batch*heads")
# Pairs of the numbers of queries and keys. Each size is the number of queries in one pair, and that of keys in another.
EQUAL: tuple[tuple[str, str], ...] = (
    ("batch", "heads"), ("heads", "embed_dim"), ("head_dim", "batch"), ("embed_dim", "batch*heads"),
    ("batch*heads", "head_dim"), ("batch", "batch"), ("heads", "heads"), ("head_dim", "head_dim"),
)  # fmt: skip
# Multiples of 16, of 64 and of 128, and one beyond a multiple.
TILES = ((32, 48), (64, 64), (128, 128), (65, 33), (129, 129))
# Largest number of pairs of a query and a key with more than one sequence: the time grows with the pairs.
PAIRS = 2048
# Pairs of attn_mask and key_padding_mask: one form of each kind, alone and beside a mask of another kind.
ALONE = (("", ""), ("float2d", ""), ("", "pad"))
# Where sizes are equal, the kind of a mask may be told wrongly by its shape.
MASKS = {
    EQUAL: (*ALONE, ("bool2d", ""), ("float3d", ""), ("bool3d", "padall")),
    TILES: (*ALONE, ("hint", ""), ("bool2d", "padfloat")),
}
# Every coincidence meets every value of every other factor.
COINCIDENT: Mapping[str, tuple[Any, ...]] = {
    "lengths": (*EQUAL, *TILES),
    "masks": tuple(dict.fromkeys(mask for masks in MASKS.values() for mask in masks)),
    # Pairs of batch size and batch_first. With 5 or 7 sequences there are up to 35 pairs of sequence and head, and no
    # multiple of 16. "heads" means as many sequences as heads.
    "layout": ((2, True), (7, True), (5, False), ("heads", True), ("heads", False), (1, True), (None, False)),
    # Heads of width 36 are wider than 32 and of no multiple of 8.
    "heads": ((3, 8), (4, 5), (2, 36), (5, 3)),
    "dtype": DTYPES,
    "mode": ("inference", "train"),
    "sharing": ("", "self_attention"),
    "extra": ("", "add_bias_kv", "add_zero_attn"),
    "weights": ("", "heads", "average"),
}
# The values that are left of some factors where triples of values are combined.
TRIPLES: Mapping[str, tuple[Any, ...]] = {
    "layout": ((7, True), ("heads", False), (1, True), (None, False)),
    "heads": ((3, 8), (4, 5)),
    "extra": ("", "add_zero_attn"),
}


def is_coincident(row: Mapping[str, Any]) -> bool:
    """Return whether a row, complete or partial, has the coincidence that its lengths name, and no other."""
    names = ("layout", "heads", "lengths", "sharing", "masks")
    choices = ([row[name]] if name in row else COINCIDENT[name] for name in names)
    return any(
        _are_combined(lengths, masks) and _is_unambiguous(layout, heads, lengths, sharing)
        for layout, heads, lengths, sharing, masks in product(*choices)
    )


def _are_combined(lengths: tuple[int | str, int | str], mask: tuple[str, str]) -> bool:
    return any(lengths in some and mask in masks for some, masks in MASKS.items())


@cache
def _is_unambiguous(
    layout: tuple[int | str | None, bool], heads: tuple[int, int], lengths: tuple[int | str, int | str], sharing: str
) -> bool:
    """Return whether sizes are equal only where their names say so, and long sequences are alone in their batch."""
    sizes = _list_sizes(layout, heads)
    if any(isinstance(one, str) and one not in sizes for one in lengths):
        return False
    queries, keys = (_resolve(one, sizes) for one in lengths)
    if sharing and queries != keys:
        return False
    if queries * keys > PAIRS and layout[0] not in (1, None):
        return False
    # A number of queries or keys that has a name equals the size of this name. The number of heads may also be that of
    # the sequences, and one sequence makes batch * heads the number of heads.
    named = sum(isinstance(one, str) for one in lengths)
    counts = Counter(sizes.values())
    equal = sum(counts[one] for one in (queries, keys))
    return equal == named and (queries == keys) == (lengths[0] == lengths[1])


def _list_sizes(layout: tuple[int | str | None, bool], heads: tuple[int, int]) -> dict[str, int]:
    """Return the sizes that lengths may equal, by name; without a batch axis those with sequences are left out."""
    count, width = heads
    sizes = {"heads": count, "head_dim": width, "embed_dim": count * width}
    batch = count if layout[0] == "heads" else layout[0]
    return sizes if batch is None else {"batch": int(batch), **sizes, "batch*heads": int(batch) * count}


def _resolve(length: int | str, sizes: Mapping[str, int]) -> int:
    return sizes[length] if isinstance(length, str) else length


def resolve_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the first covering array that has the sizes and the other values of a row of this one."""
    (batch, batch_first), (attention, padding) = row["layout"], row["masks"]
    sizes = _list_sizes(row["layout"], row["heads"])
    return {
        "dtype": row["dtype"],
        "mode": row["mode"],
        "layout": (sizes["batch"] if batch == "heads" else batch, batch_first),
        "sharing": row["sharing"],
        "widths": (None, None),
        "attention": attention,
        "padding": padding,
        "bias": True,
        "add_bias_kv": row["extra"] == "add_bias_kv",
        "add_zero_attn": row["extra"] == "add_zero_attn",
        "weights": row["weights"],
        "dropout": 0.0,
        "heads": row["heads"],
        "lengths": tuple(_resolve(one, sizes) for one in row["lengths"]),
        # Fewer checks run on peaked logits.
        "regime": "peaked",
    }
