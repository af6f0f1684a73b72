"""Names of curves, each beside the end of its own, none upon another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

__all__ = ["SIZE", "End", "place", "room"]

# Font size of names, in points, and how far those beside a panel stand from it, as a share of its width.
SIZE, BESIDE = 8.5, 0.055
# How far a name inside a panel stands from the end of its curve, as a share of the panel's width; and how far its line
# stays away from that end, which has a mark, in points.
INSIDE, MARK = 0.03, 5
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
    return BESIDE * panel + max(map(_width, names)) + MARGIN


def place(axes: Axes, ends: Sequence[End], longest: int, panel: float) -> None:
    """Names of curves that reach the longest length at the right of a panel of this width, of the others inside it."""
    low, high = axes.get_ylim()

    def height(end: End) -> float:
        return math.log(end.value / low) / math.log(high / low)

    ordered = [(end, height(end)) for end in sorted(ends, key=height)]
    _place_beside(axes, [(end, wanted) for end, wanted in ordered if end.length == longest])
    _place_inside(axes, [(end, wanted) for end, wanted in ordered if end.length < longest], panel)


def _place_beside(axes: Axes, ends: Sequence[tuple[End, float]]) -> None:
    """Names at the right of a panel, of ends with their heights."""
    for (end, height), moved in zip(ends, spread([height for _, height in ends], APART), strict=True):
        axes.annotate(
            end.name, xy=(1, height), xytext=(1 + BESIDE, moved), xycoords="axes fraction",
            textcoords="axes fraction", color=end.colour, va="center", ha="left", annotation_clip=False,
            fontsize=SIZE, arrowprops=LEADER | {"color": end.colour},
        )  # fmt: skip


def _place_inside(axes: Axes, ends: Sequence[tuple[End, float]], panel: float) -> None:
    """Names inside a panel, of ends with their heights, off the curves and off one another."""
    curves = [_share(axes, line.get_xydata()) for line in axes.lines]
    taken: list[Bbox] = []
    for end, height in ends:
        name = f"{end.name}\nbeyond the limit" if end.beyond else end.name
        left = float(_share(axes, [(end.length, end.value)])[0, 0]) + INSIDE
        right = left + max(map(_width, name.split("\n"))) / panel
        half = APART * (1 + name.count("\n")) / 2
        names = [(box.y0, box.y1) for box in taken if box.x0 < right and left < box.x1]
        moved = clear(height, half, [span for curve in curves if (span := _within(curve, left, right))] + names)
        taken.append(Bbox.from_extents(left, moved - half, right, moved + half))
        axes.annotate(
            name, xy=(end.length, end.value), xytext=(left, moved), textcoords="axes fraction", color=end.colour,
            va="center", linespacing=1.1, fontsize=SIZE, arrowprops=LEADER | {"color": end.colour, "shrinkB": MARK},
        )  # fmt: skip


def clear(wanted: float, half: float, taken: Sequence[tuple[float, float]]) -> float:
    """The place nearest to the wanted one, inside the panel, where nothing taken comes within ``half``.

    The wanted one, kept inside, where there is none.
    """
    wanted = min(max(wanted, half), 1 - half)
    edges = [wanted, *(high + half for _, high in taken), *(low - half for low, _ in taken)]
    free = [
        place
        for place in edges
        # Sums of one edge and back are equal up to rounding alone.
        if half <= place <= 1 - half
        and all(high <= place - half + 1e-9 or low >= place + half - 1e-9 for low, high in taken)
    ]
    return min(free, key=lambda place: abs(place - wanted), default=wanted)


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


def _width(name: str) -> float:
    """Of a name as drawn, in inches."""
    font = FontProperties(family="DejaVu Sans")
    return float(TextPath((0, 0), name, SIZE, prop=font).get_extents().x1) / POINTS_PER_INCH


def _share(axes: Axes, points: Any) -> Any:
    """Points of the data as shares of the panel's width and height."""
    return (axes.transScale + axes.transLimits).transform(points)


def _within(points: Any, left: float, right: float) -> tuple[float, float] | None:
    """The lowest and the highest of a line between two places; None where it has no part there."""
    left, right = max(left, points[0, 0]), min(right, points[-1, 0])
    if left > right:
        return None
    # Of a broken line the extremes lie at its corners or at the two places.
    inside = points[(left <= points[:, 0]) & (points[:, 0] <= right), 1]
    heights = [*inside, *np.interp([left, right], points[:, 0], points[:, 1])]
    return float(min(heights)), float(max(heights))
