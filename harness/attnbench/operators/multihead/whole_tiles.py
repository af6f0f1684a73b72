"""Cases of whole tiles. No further argument is used: a key more, or the weights, would leave the kernel's branch."""

from collections.abc import Mapping
from typing import Any

from attnbench.operators.whole_tiles import TILED, VALUES

__all__ = ["WHOLE_TILES", "fill_row"]

# Some masks hide all keys of a sequence or of a row.
WHOLE_TILES: Mapping[str, tuple[Any, ...]] = {
    "lengths": TILED,
    "masks": (
        ("", ""), ("hint", ""), ("bool2d", ""), ("float3d", "pad"), ("", "pad"), ("", "padempty"), ("empty2d", ""),
    ),
    "layout": ((2, True), (1, True), (3, False)),
    "heads": ((2, 64), (1, 128)),
    **VALUES,
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
