"""Labels of curves, each beside the end of its curve, without overlap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

__all__ = ["SIZE", "End", "compute_room", "place"]

# ``SIZE``: font size of curve names, in points. ``BESIDE``: gap between a panel and the curve names at its right, as a
# fraction of the panel's width.
SIZE, BESIDE = 8.5, 0.055
# Distance of a name inside a panel from the end of its curve, as a fraction of the panel's width.
INSIDE = 0.03
# Gap between the leader line of a name and the marker at the end of its curve, in points.
MARK = 5
# Smallest vertical distance between two one-line names, as a fraction of the panel's height.
APART = 0.058
# Style of the leader line from a name to the end of its curve, as matplotlib's ``arrowprops``.
LEADER: dict[str, Any] = {
    "arrowstyle": "-", "linewidth": 0.6, "alpha": 0.7, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5),
}  # fmt: skip
POINTS_PER_INCH = 72
# Free space at the right of the widest name, in inches. The width of a name is measured on the outlines of its letters;
# rasterized text is a little wider.
MARGIN = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a curve, with the curve's name and colour."""

    name: str
    colour: str
    length: int
    value: float
    # Whether the curve ends because calls on longer sequences were predicted to exceed the work limit.
    beyond: bool


def compute_room(names: Sequence[str], panel: float) -> float:
    """Return the width, in inches, that the names need at the right of a panel of width ``panel`` (inches)."""
    return BESIDE * panel + max(map(_measure_width, names)) + MARGIN


def place(axes: Axes, ends: Sequence[End], longest: int, panel: float) -> None:
    """Draw the name of each curve: at the right of the panel if the curve reaches ``longest``, else inside the panel.

    ``panel`` is the panel's width in inches.
    """
    low, high = axes.get_ylim()

    def height(end: End) -> float:
        return math.log(end.value / low) / math.log(high / low)

    ordered = [(end, height(end)) for end in sorted(ends, key=height)]
    _place_beside(axes, [(end, wanted) for end, wanted in ordered if end.length == longest])
    _place_inside(axes, [(end, wanted) for end, wanted in ordered if end.length < longest], panel)


def _place_beside(axes: Axes, ends: Sequence[tuple[End, float]]) -> None:
    """Draw curve names at the right of a panel.

    ``ends`` pairs the end of each curve with its y position, as a fraction of the panel's height.
    """
    for (end, height), moved in zip(ends, spread([height for _, height in ends], APART), strict=True):
        axes.annotate(
            end.name, xy=(1, height), xytext=(1 + BESIDE, moved), xycoords="axes fraction",
            textcoords="axes fraction", color=end.colour, va="center", ha="left", annotation_clip=False,
            fontsize=SIZE, arrowprops=LEADER | {"color": end.colour},
        )  # fmt: skip


def _place_inside(axes: Axes, ends: Sequence[tuple[End, float]], panel: float) -> None:
    """Draw curve names inside a panel, where they overlap neither curves nor other names.

    ``ends`` pairs the end of each curve with its y position, as a fraction of the panel's height.
    """
    curves = [_convert_to_shares(axes, line.get_xydata()) for line in axes.lines]
    taken: list[Bbox] = []
    for end, height in ends:
        name = f"{end.name}\nbeyond the limit" if end.beyond else end.name
        left = float(_convert_to_shares(axes, [(end.length, end.value)])[0, 0]) + INSIDE
        right = left + max(map(_measure_width, name.split("\n"))) / panel
        half = APART * (1 + name.count("\n")) / 2
        names = [(box.y0, box.y1) for box in taken if box.x0 < right and left < box.x1]
        moved = find_clear_place(
            height, half, [span for curve in curves if (span := _find_extent(curve, left, right))] + names
        )
        taken.append(Bbox.from_extents(left, moved - half, right, moved + half))
        axes.annotate(
            name, xy=(end.length, end.value), xytext=(left, moved), textcoords="axes fraction", color=end.colour,
            va="center", linespacing=1.1, fontsize=SIZE, arrowprops=LEADER | {"color": end.colour, "shrinkB": MARK},
        )  # fmt: skip


def find_clear_place(wanted: float, half: float, taken: Sequence[tuple[float, float]]) -> float:
    """Return the position nearest to ``wanted`` at which a name overlaps no interval of ``taken``.

    A position is the vertical centre of the name, and ``half`` is half the height of the name. All arguments are
    fractions of the panel's height. If the name overlaps an interval at every position, return ``wanted``, moved into
    the panel.
    """
    wanted = min(max(wanted, half), 1 - half)
    edges = [wanted, *(high + half for _, high in taken), *(low - half for low, _ in taken)]
    free = [
        place
        for place in edges
        # The tolerance 1e-9 is for rounding errors: ``(edge + half) - half`` may differ from ``edge``.
        if half <= place <= 1 - half
        and all(high <= place - half + 1e-9 or low >= place + half - 1e-9 for low, high in taken)
    ]
    return min(free, key=lambda place: abs(place - wanted), default=wanted)


def spread(places: Sequence[float], apart: float) -> list[float]:
    """Return these ascending positions, moved as little as possible until neighbours are at least ``apart`` apart.

    Positions and ``apart`` are fractions of the panel's height. Neighbours that are too close form a block, centred on
    the mean of their positions. Blocks that overlap are merged.
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
    # Keep every position between the bottom (0) and the top (1) of the panel.
    floor = [max(place, apart * index) for index, place in enumerate(moved)]
    return [min(place, 1 - apart * (len(floor) - 1 - index)) for index, place in enumerate(floor)]


def _measure_width(name: str) -> float:
    """Return the width of a name as drawn, in inches."""
    if not name.strip():  # matplotlib has no extent for a text without a glyph
        return 0.0
    font = FontProperties(family="DejaVu Sans")
    return float(TextPath((0, 0), name, SIZE, prop=font).get_extents().x1) / POINTS_PER_INCH


def _convert_to_shares(axes: Axes, points: Any) -> Any:
    """Convert (x, y) points in data coordinates to fractions of the panel's width and height."""
    return (axes.transScale + axes.transLimits).transform(points)


def _find_extent(points: Any, left: float, right: float) -> tuple[float, float] | None:
    """Return the lowest and the highest y of a curve between x = ``left`` and ``right``; None if no part lies there."""
    left, right = max(left, points[0, 0]), min(right, points[-1, 0])
    if left > right:
        return None
    # The extremes of a piecewise linear curve are at one of its points, at ``left`` or at ``right``.
    inside = points[(left <= points[:, 0]) & (points[:, 0] <= right), 1]
    heights = [*inside, *np.interp([left, right], points[:, 0], points[:, 1])]
    return float(min(heights)), float(max(heights))
