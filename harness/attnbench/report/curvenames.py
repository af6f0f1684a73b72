"""Names of curves, each beside the end of its own, none upon another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

__all__ = ["SIZE", "End", "place", "room"]

# Font size of names, in points, and how far those beside a panel stand from it, as a share of its width.
SIZE, BESIDE = 8.5, 0.055
# Least distance of two names of one line, as a share of a panel's height.
APART = 0.058
# Line from a name to the end of its curve.
LEADER: dict[str, Any] = {
    "arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5),
}  # fmt: skip
POINTS_PER_INCH = 72
# Room beyond the widest name, in inches: what is drawn in pixels is a little wider than its outline.
MARGIN = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a curve ends, and whose it is."""

    name: str
    colour: str
    length: int
    value: float
    # Longer calls were predicted to take too long.
    beyond: bool


def room(names: Sequence[str], panel: float) -> float:
    """Room that names need at the right of a panel of this width.

    Unit: inches.
    """
    font = FontProperties(family="DejaVu Sans")
    widest = max(float(TextPath((0, 0), name, SIZE, prop=font).get_extents().x1) for name in names)
    return BESIDE * panel + widest / POINTS_PER_INCH + MARGIN


def place(axes: Axes, ends: Sequence[End], longest: int) -> None:
    """Names of curves that reach the longest length at the right of the panel, of the others where they end."""
    low, high = axes.get_ylim()

    def height(end: End) -> float:
        return math.log(end.value / low) / math.log(high / low)

    for length, group in groupby(sorted(ends, key=lambda end: (end.length, height(end))), key=lambda end: end.length):
        together = list(group)
        lines = 1 + (length < longest and any(end.beyond for end in together))
        for end, moved in zip(together, spread([height(end) for end in together], APART * lines), strict=True):
            if length < longest:
                axes.annotate(
                    f"{end.name}\nbeyond the limit" if end.beyond else end.name, xy=(end.length, moved),
                    xycoords=("data", "axes fraction"), xytext=(8, 0), textcoords="offset points", color=end.colour,
                    va="center", linespacing=1.1, fontsize=SIZE,
                )  # fmt: skip
            else:
                axes.annotate(
                    end.name, xy=(1, height(end)), xytext=(1 + BESIDE, moved), xycoords="axes fraction",
                    textcoords="axes fraction", color=end.colour, va="center", ha="left", annotation_clip=False,
                    fontsize=SIZE, arrowprops=LEADER | {"color": end.colour},
                )  # fmt: skip


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Ascending places moved as little as keeps each so far ``apart`` from the next.

    Neighbours that are too near form a block around the mean of what they want; blocks that meet are joined.
    """

    def bottom(block: Sequence[float]) -> float:
        return sum(block) / len(block) - apart * (len(block) - 1) / 2

    blocks: list[list[float]] = []
    for wanted in places:
        blocks.append([wanted])
        while len(blocks) > 1 and bottom(blocks[-1]) < bottom(blocks[-2]) + apart * len(blocks[-2]):
            last = blocks.pop()
            blocks[-1] += last
    moved = [bottom(block) + apart * index for block in blocks for index in range(len(block))]
    # Nor does one stand above the panel or below it.
    floor = [max(place, apart * index) for index, place in enumerate(moved)]
    return [min(place, 1 - apart * (len(floor) - 1 - index)) for index, place in enumerate(floor)]
