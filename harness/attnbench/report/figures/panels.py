"""Figures of curves against length: a panel for each pass, and a legend at the right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from attnbench.report.figures.contenders import rank
from attnbench.report.figures.labels import make_labels, measure_width, wrap
from attnbench.report.figures.style import MUTED, OTHERS, SETTINGS, SIZE, SMALL, Look
from attnbench.report.numbers import format_count, format_thousands

__all__ = ["Panels", "draw_panels", "find_beyond"]

# Widths in inches; 96 CSS pixels are an inch. ``PANEL``: of a panel. ``LABELS``: of the labels at the left.
# ``BETWEEN``: between two panels. ``KEY``: of the legend, at least. Two panels with a legend are about as wide as the
# text of the page, 1184 px.
PANEL, LABELS, BETWEEN, KEY = 4.4, 0.8, 0.35, 1.95
# Heights in inches. ``AREA``: of the plotted area, at least. ``FOOT``: of the lengths below it. ``HEAD``: of the names
# of passes above it.
AREA, FOOT, HEAD = 2.35, 0.5, 0.34
# Heights in inches. ``ENTRY``: of a line of the legend. ``LINE``: of a line of the place above the panels.
ENTRY, LINE = 0.155, 0.17
# Width of the symbol of the legend with its gaps, in inches.
SYMBOL = 0.5
# ``MOST_OTHERS``: most curves of implementations that are no contenders. ``MOST_TICKS``: most labelled lengths of an
# axis.
MOST_OTHERS, MOST_TICKS = 16, 9
# Free space beside the shortest and the longest length, as a factor of the length.
MARGIN = 1.25
# Curves that stand side by side spread over this share of the distance between two neighbouring lengths.
APART = 0.24
# Width of a line and size of a marker, in points. ``LOWEST`` and ``HIGHEST``: of the lowest and of the highest curve in
# colour, where curves lie on one another. ``ALONE``: of curves side by side. ``GREY``: of grey curves.
LOWEST, HIGHEST, ALONE, GREY = (3.4, 8.5), (1.4, 4.5), (1.7, 5.0), (0.9, 3.5)
# This text is in the reason of each call that was not timed because its predicted time exceeds the work limit. A curve
# that ends before such a call has a cross at its end.
BEYOND = "--work-limit"
# How a value from disturbed calls is drawn, and what the mark means.
PLUS = "+"
DISTURBED = (
    "A grey + is disturbed: other work took the cores during too many of its calls. No curve leads through it, and it "
    "is not to be compared."
)
CROSS = "× at the end of a curve: longer calls were predicted to exceed the work limit and were not started."


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """What to draw: rows with the columns ``value``, ``low`` and ``high``, and how."""

    rows: pd.DataFrame
    looks: Mapping[str, Look]
    reference: str
    # Label of the y axis.
    label: str
    # Text above the panels: the place, if the report has several.
    place: str = ""
    # Function that sets up the y axes after all curves are drawn.
    finish: Callable[[Sequence[tuple[Axes, pd.DataFrame]]], None]
    # Names of curves that end at the work limit, by pass.
    beyond: Mapping[str, frozenset[str]]
    # Entries of the legend for lines that are no implementations.
    extra: Sequence[Line2D] = ()
    # Whether the largest values are the best, so that they are kept if there are too many curves.
    largest: bool = False
    # Whether the points of contenders at one length stand side by side. This suits flat curves only: a steep curve that
    # is moved to the right seems to be lower. If False, a lower curve is wider, so that it shows below curves that lie
    # on it.
    side_by_side: bool = False


def draw_panels(panels: Panels) -> tuple[Figure, tuple[str, ...]]:
    """Draw the panels, and return the figure and notes on what is left out."""
    names, left_out = _choose_names(panels)
    if not all(found.isdisjoint(names) for found in panels.beyond.values()):
        left_out = (*left_out, CROSS)
    rows = panels.rows[panels.rows["implementation"].isin(names)]
    if _flag_disturbed(rows).any():
        left_out = (*left_out, DISTURBED)
    passes = sorted(rows["pass"].unique())
    with mpl.rc_context(SETTINGS):
        handles = _make_handles(panels, names)
        key = max(KEY, SYMBOL + measure_width([str(one.get_label()) for one in handles], SMALL) + 0.1)
        width = LABELS + len(passes) * PANEL + (len(passes) - 1) * BETWEEN + key
        lines = wrap(panels.place, width - 0.3, SIZE) if panels.place else []
        above = HEAD + LINE * len(lines)
        area = max(AREA, ENTRY * len(handles) + 0.1 - FOOT)
        figure = Figure(figsize=(width, above + area + FOOT))
        height = figure.get_figheight()
        every: list[Axes] = []
        for index, name in enumerate(passes):
            left = (LABELS + index * (PANEL + BETWEEN)) / width
            box = (left, FOOT / height, PANEL / width, area / height)
            axes = figure.add_axes(box, sharey=every[0] if every else None)
            axes.set_title(name, loc="left", fontsize=SIZE + 0.5, fontweight="bold", pad=7)
            axes.tick_params(length=3, width=0.6, labelleft=not every)
            every.append(axes)
        every[0].set_ylabel(panels.label)
        parts = [(axes, rows[rows["pass"] == name]) for axes, name in zip(every, passes, strict=True)]
        for (axes, part), name in zip(parts, passes, strict=True):
            _set_lengths(axes, part)
            _draw_curves(axes, part, names, panels, panels.beyond.get(name, frozenset()))
        panels.finish(parts)
        for index, line in enumerate(lines):
            figure.text(0.1 / width, 1 - (0.13 + LINE * index) / height, line, color=MUTED, va="center")
        colours = [MUTED if one.get_color() == OTHERS else str(one.get_color()) for one in handles]
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1 - (key - 0.05) / width, 1 - (above - 0.12) / height),
            fontsize=SMALL, labelcolor=colours, borderaxespad=0, borderpad=0, labelspacing=0.28,
            handlelength=1.9, handletextpad=0.7,
        )  # fmt: skip
    return figure, left_out


def _flag_disturbed(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which values are from disturbed calls; a table without this knowledge, as that of memory, has none."""
    return rows["calls"] == "disturbed" if "calls" in rows else pd.Series(data=False, index=rows.index)


def find_beyond(rows: pd.DataFrame, untimed: pd.DataFrame) -> dict[str, frozenset[str]]:
    """Return for each pass the implementations whose longer calls were predicted to exceed the work limit."""
    limited = untimed[untimed["reason"].str.contains(BEYOND, regex=False)] if len(untimed) else untimed
    ends = {(pass_, name): own["length"].max() for (pass_, name), own in rows.groupby(["pass", "implementation"])}
    found: dict[str, set[str]] = {}
    for pass_, name, length in zip(limited["pass"], limited["implementation"], limited["length"], strict=True):
        if length > ends.get((pass_, name), length):
            found.setdefault(pass_, set()).add(name)
    return {pass_: frozenset(names) for pass_, names in found.items()}


def _choose_names(panels: Panels) -> tuple[list[str], tuple[str, ...]]:
    """Return the implementations to draw, grey ones first, and a note if some are left out."""
    rows = panels.rows.assign(rated=1 / panels.rows["value"] if panels.largest else panels.rows["value"])
    ranked = rank(rows, "rated")
    colour = [name for name in panels.looks if name in ranked and panels.looks[name].contends]
    grey = [name for name in ranked if not panels.looks[name].contends]
    missing = len(grey) - MOST_OTHERS
    if missing <= 0:
        return [*reversed(grey), *reversed(colour)], ()
    note = f"Without {format_count(missing, 'slower implementation')}, which timings.csv has."
    return [*reversed(grey[:MOST_OTHERS]), *reversed(colour)], (note,)


def _make_handles(panels: Panels, names: Sequence[str]) -> list[Line2D]:
    """Return the entries of the legend in the order of the looks, which is the same in all figures of a report."""
    ordered = [name for name in panels.looks if name in names]
    labels = make_labels(ordered)
    handles = [
        Line2D(
            [], [], color=look.colour, marker=look.marker, linestyle=look.line,
            linewidth=(ALONE if look.contends else GREY)[0], markersize=(ALONE if look.contends else GREY)[1],
            markerfacecolor=look.colour if look.contends else "none",
            label=labels[name] + (" (reference)" if name == panels.reference else ""),
        )
        for name in ordered
        for look in (panels.looks[name],)
    ]  # fmt: skip
    handles += panels.extra
    if any(name in names for found in panels.beyond.values() for name in found):
        handles.append(
            Line2D([], [], color=MUTED, marker="x", linestyle="", markersize=7, label="ends at the work limit")
        )
    if _flag_disturbed(panels.rows[panels.rows["implementation"].isin(names)]).any():
        handles.append(Line2D([], [], color=MUTED, marker=PLUS, linestyle="", markersize=6, label="disturbed"))
    return handles


def _set_lengths(axes: Axes, part: pd.DataFrame) -> None:
    """Make the x axis logarithmic, with a tick at each length, or at some of them if there are many."""
    lengths = sorted(int(length) for length in part["length"].unique())
    step = -(-len(lengths) // MOST_TICKS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, ["" if i % step else format_thousands(n) for i, n in enumerate(lengths)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(lengths[0] / MARGIN, lengths[-1] * MARGIN)
    axes.set_xlabel("length L, in tokens")


def _draw_curves(axes: Axes, part: pd.DataFrame, names: Sequence[str], panels: Panels, beyond: frozenset[str]) -> None:
    """Draw the curves, grey ones below the others, with intervals and with crosses at the work limit."""
    colour = [name for name in names if panels.looks[name].contends and name in set(part["implementation"])]
    moved = _spread(part, colour, panels.reference) if panels.side_by_side else {}
    sizes = {name: _choose_size(colour, name, alone=panels.side_by_side) for name in colour}
    labels = make_labels(names)
    bars: list[tuple[float, float, float, str, float]] = []
    for key, rows in part.sort_values("length", kind="stable").groupby("implementation", sort=False):
        name = str(key)
        look, above = panels.looks[name], (4 if name in sizes else 2) + names.index(name) / len(names)
        (width, size), fill = sizes.get(name, GREY), look.colour if look.contends else "none"
        x, disturbed = rows["length"] * moved.get(name, 1.0), _flag_disturbed(rows)
        bars += [
            (at, low, high, look.colour, width * 0.7)
            for at, low, high, grey in zip(x, rows["low"], rows["high"], disturbed, strict=True)
            if not grey
        ]
        if disturbed.any():
            axes.plot(
                x[disturbed], rows["value"][disturbed], color=OTHERS, marker=PLUS, linestyle="", markersize=6, zorder=2
            )
        axes.plot(
            x, rows["value"].mask(disturbed), color=look.colour, marker=look.marker, linestyle=look.line,
            linewidth=width, markersize=size, markeredgewidth=0.7, markerfacecolor=fill, solid_capstyle="round",
            zorder=above,
        )  # fmt: skip
        if name in beyond:
            axes.plot(
                x.iloc[-1], rows["value"].iloc[-1], marker="x", color=look.colour, markersize=9, markeredgewidth=1.6,
                zorder=above,
            )  # fmt: skip
            if len(rows) == 1:
                # Without a curve, only the faint marker would lead from the cross to the legend, so the cross gets a
                # name.
                axes.annotate(
                    labels[name], (x.iloc[-1], rows["value"].iloc[-1]), (7, 0), textcoords="offset points",
                    color=look.colour if look.contends else MUTED, fontsize=SMALL, va="center", zorder=7,
                )  # fmt: skip
    if not bars:
        return
    at, low, high, colours, widths = map(list, zip(*bars, strict=True))
    axes.vlines(at, low, high, colors=colours, linewidths=widths, zorder=3.5)


def _choose_size(names: Sequence[str], name: str, *, alone: bool) -> tuple[float, float]:
    """Return width and marker size of a curve; of curves that lie on one another, the lowest is the widest."""
    if alone or len(names) == 1:
        return ALONE
    share = names.index(name) / (len(names) - 1)
    return (LOWEST[0] + share * (HIGHEST[0] - LOWEST[0]), LOWEST[1] + share * (HIGHEST[1] - LOWEST[1]))


def _spread(part: pd.DataFrame, names: Sequence[str], reference: str) -> dict[str, float]:
    """Return, for each name but the reference, the factor by which its lengths are multiplied.

    The reference stays on the lines of the grid, and the others stand on both sides of the reference.
    """
    lengths = sorted(part["length"].unique())
    nearest = min((b / a for a, b in pairwise(lengths)), default=2.0)
    others = [name for name in names if name != reference]
    half = len(others) // 2
    places = [index - half + (index >= half) for index in range(len(others))]
    most = max(map(abs, places), default=1)
    return {name: nearest ** (APART / 2 * place / most) for name, place in zip(others, places, strict=True)}
