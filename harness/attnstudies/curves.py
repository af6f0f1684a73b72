"""Draws panels of curves in one style for all studies; the x axis is head_dim or a fraction."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from attnbench.report.figures.style import COLOURS, INK, MARKERS, MUTED, SETTINGS

__all__ = ["curve", "grid", "head_dims", "key", "level", "titled"]

# Lengths in inches. ``PANEL_WIDTH`` and ``PANEL_HEIGHT``: size of a panel. ``HEADER``: height of the title and the
# curve names above all panels.
PANEL_WIDTH, PANEL_HEIGHT, HEADER = 3.4, 2.5, 0.72
# Symbols before the curve names; they look like the first four markers in ``MARKERS``.
SYMBOLS = "■◆▲▼"


def grid(rows: int, columns: int, *, title: str, names: Mapping[str, str]) -> tuple[Figure, list[Axes]]:
    """Return a figure and its empty panels, below a title and the curve names; ``names`` maps names to colours."""
    with mpl.rc_context(SETTINGS):
        width, height = columns * PANEL_WIDTH + 0.3, rows * PANEL_HEIGHT + HEADER
        figure = Figure(figsize=(width, height))
        panels = figure.subplots(rows, columns, squeeze=False)
        figure.subplots_adjust(
            left=0.62 / width, right=1 - 0.15 / width, top=1 - (HEADER + 0.22) / height, bottom=0.45 / height,
            wspace=0.32, hspace=0.52,
        )  # fmt: skip
        figure.text(0.12 / width, 1 - 0.2 / height, title, fontsize=10, fontweight="bold", color=INK, va="center")
        key(figure, names)
    return figure, list(panels.flat)


def key(figure: Figure, names: Mapping[str, str], symbols: str = SYMBOLS) -> None:
    """Draw the names of the curves, or of bars, in a row below the title; ``names`` maps each name to its colour."""
    width, height = figure.get_size_inches()
    left = 0.12
    for (name, colour), symbol in zip(names.items(), symbols, strict=False):
        figure.text(
            left / width, 1 - 0.48 / height, f"{symbol} {name}", color=colour, fontsize=9, va="center", ha="left"
        )
        # A character of font size 9 is about 0.075 inches wide. The symbol and the gap to the next name take 0.4
        # inches.
        left += 0.075 * len(name) + 0.4


def titled(axes: Axes, title: str, *, x: str, y: str = "") -> None:
    """Set the title and the axis labels of a panel."""
    axes.set_title(title, loc="left", fontsize=9, color=INK, pad=6)
    axes.set_xlabel(x, color=MUTED)
    axes.set_ylabel(y, color=MUTED)
    axes.tick_params(length=3, width=0.6)


def head_dims(axes: Axes, widths: Sequence[int]) -> None:
    """Make the x axis logarithmic, with a labelled tick at each head_dim in ``widths``."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(widths), [str(width) for width in widths])
    axes.xaxis.set_minor_locator(NullLocator())


def level(axes: Axes, value: float, name: str) -> None:
    """Draw a dotted horizontal line at ``value``, and the text ``name`` above the left end of the line.

    The y axis is extended if there is no room for the text.
    """
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.15 * value))
    axes.axhline(value, color=MUTED, linewidth=0.8, linestyle=":")
    axes.annotate(
        name,
        xy=(0.02, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        fontsize=7.5,
        color=MUTED,
    )


def curve(axes: Axes, rows: pd.DataFrame, *, x: str, y: str, number: int) -> None:
    """Draw a curve of medians (column ``<y>``), and a band between quartiles (columns ``<y>_low`` and ``<y>_high``).

    ``number`` selects the colour and the marker.
    """
    look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number]}
    axes.fill_between(rows[x], rows[f"{y}_low"], rows[f"{y}_high"], color=COLOURS[number], alpha=0.16, linewidth=0)
    axes.plot(rows[x], rows[y], markersize=4, linewidth=1.6, solid_capstyle="round", clip_on=False, **look)
