"""Cases of whole tiles, without soft-cap and with the scale that follows from the width."""

from collections.abc import Mapping
from typing import Any

from attnbench.operators.whole_tiles import TILED, VALUES

__all__ = ["WHOLE_TILES", "fill_row"]

# Factors of the first covering array that a mask consists of.
PARTS = ("causal", "window", "added", "ragged")
WHOLE_TILES: Mapping[str, tuple[Any, ...]] = {
    "lengths": TILED,
    "masks": (
        ("", None, "", False), ("causal_br", None, "", False), ("causal_tl", None, "", True), ("", None, "", True),
        ("causal_br", 20, "", False), ("", None, "bias2d", False), ("causal_br", None, "bias4d", True),
    ),
    "batch": (2, 1, 3),
    "heads": ((2, None), (4, 2)),
    "widths": ((64, None), (128, None)),
    **VALUES,
}  # fmt: skip


def fill_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the first covering array that has the values of a row of this one."""
    others = {name: value for name, value in row.items() if name != "masks"}
    return {**others, **dict(zip(PARTS, row["masks"], strict=True)), "softcap": 0.0, "scale": 0.0}
