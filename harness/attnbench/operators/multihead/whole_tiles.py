"""Cases of whole tiles: lengths and heads for which kernels have branches of their own.

Such a branch takes multiples of 64 keys with heads of 64 or 128 features, and as many queries or the single query of a
decoding step. It can be wrong under one mask, or in one dtype, and right everywhere else. No further argument is used,
because a key more, or the weights, would leave the branch.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["WHOLE_TILES", "fill_row"]

# Some masks hide all keys of a sequence or of a row. Larger lengths would take much longer.
WHOLE_TILES: Mapping[str, tuple[Any, ...]] = {
    "lengths": ((128, 128), (64, 192), (1, 256)),
    "masks": (
        ("", ""), ("hint", ""), ("bool2d", ""), ("float3d", "pad"), ("", "pad"), ("", "padempty"), ("empty2d", ""),
    ),
    "layout": ((2, True), (1, True), (3, False)),
    "heads": ((2, 64), (1, 128)),
    "dtype": ("float32", "bfloat16", "float16"),
    "mode": ("inference", "train"),
    "regime": ("plain", "peaked"),
}  # fmt: skip
# Values of the other factors of the first covering array.
REST: Mapping[str, Any] = {
    "sharing": "", "widths": (None, None), "bias": True, "add_bias_kv": False, "add_zero_attn": False, "weights": "",
    "dropout": 0.0,
}  # fmt: skip


def fill_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the first covering array that has the values of a row of this one."""
    attention, padding = row["masks"]
    others = {name: value for name, value in row.items() if name != "masks"}
    return {**REST, **others, "attention": attention, "padding": padding}
