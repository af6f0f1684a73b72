"""Draws curves against length: a panel for each pass, and a legend at the right."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from attnbench.report.figures.labels import make_labels, measure_width, wrap
from attnbench.report.figures.points import Panel
from attnbench.report.figures.style import MUTED, OTHERS, SETTINGS, SIZE, SMALL, Look
from attnbench.report.figures.ticks import set_log_axis, set_ratio_axis
from attnbench.report.numbers import format_bytes, format_seconds, format_thousands
from attnbench.words.figures import Kind

__all__ = ["Curves", "draw_curves", "find_range"]

# Widths in inches; 96 CSS pixels are an inch. ``PANEL``: of a panel. ``LABELS``: of the labels at the left.
# ``BETWEEN``: between two panels. ``KEY``: of the legend, at least. Two panels with a legend are about as wide as the
# text of the page, 1184 px.
PANEL, LABELS, BETWEEN, KEY = 4.4, 0.8, 0.35, 1.95
# Heights in inches. ``AREA``: of the plotted area, at least. ``FOOT``: of the lengths below it. ``HEAD``: of the names
# of passes above it. ``ENTRY``: of a line of the legend. ``LINE``: of a line of the place above the panels.
AREA, FOOT, HEAD, ENTRY, LINE = 2.35, 0.5, 0.34, 0.155, 0.17
# Width of the symbol of the legend with its gaps, in inches.
SYMBOL = 0.5
# Most curves without a colour, and most labelled lengths of an axis.
MOST_OTHERS, MOST_TICKS = 16, 9
# Free space beside the shortest and the longest length, as a factor of the length.
MARGIN = 1.25
# Width of a line and size of a marker, in points: of curves in colour, and of grey ones.
COLOURED, GREY = (1.7, 5.0), (0.9, 3.5)
# ``LEAST``, ``MOST``: smallest and largest ratio inside a panel; what is slower is no choice, whether 5 or 500 times.
# ``NARROWEST``: smallest factor between 1 and the ends, so that noise of a percent does not fill a panel.
LEAST, MOST, NARROWEST = 0.25, 4.0, 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A figure of curves: what to draw, and how."""

    kind: Kind
    panels: Sequence[Panel]
    looks: Mapping[str, Look]
    baseline: str
    # Label of the y axis, and the text above the panels; the latter may be empty.
    label: str
    place: str = ""


def draw_curves(curves: Curves) -> Figure:
    """Return the figure."""
    names = _choose_names(curves)
    with mpl.rc_context(SETTINGS):
        handles = _make_handles(curves, names)
        key = max(KEY, SYMBOL + measure_width([str(one.get_label()) for one in handles], SMALL) + 0.1)
        count = len(curves.panels)
        width = LABELS + count * PANEL + (count - 1) * BETWEEN + key
        lines = wrap(curves.place, width - 0.3, SIZE) if curves.place else []
        above = HEAD + LINE * len(lines)
        area = max(AREA, ENTRY * len(handles) + 0.1 - FOOT)
        height = above + area + FOOT
        figure = Figure(figsize=(width, height))
        every: list[Axes] = []
        for index, panel in enumerate(curves.panels):
            left = (LABELS + index * (PANEL + BETWEEN)) / width
            box = (left, FOOT / height, PANEL / width, area / height)
            axes = figure.add_axes(box, sharey=every[0] if every else None)
            axes.set_title(panel.title, loc="left", fontsize=SIZE + 0.5, fontweight="bold", pad=7)
            axes.tick_params(length=3, width=0.6, labelleft=not every)
            every.append(axes)
            _set_lengths(axes, panel)
            _draw_panel(axes, panel, names, curves.looks)
        every[0].set_ylabel(curves.label)
        _set_values(every, curves, names)
        for index, line in enumerate(lines):
            figure.text(0.1 / width, 1 - (0.13 + LINE * index) / height, line, color=MUTED, va="center")
        colours = [MUTED if one.get_color() == OTHERS else str(one.get_color()) for one in handles]
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1 - (key - 0.05) / width, 1 - (above - 0.12) / height),
            fontsize=SMALL, labelcolor=colours, borderaxespad=0, borderpad=0, labelspacing=0.28, handlelength=1.9,
            handletextpad=0.7,
        )  # fmt: skip
    return figure


def _choose_names(curves: Curves) -> list[str]:
    """Return the implementations to draw, grey ones first; of too many grey ones, those with the least values."""
    drawn = [name for name in curves.looks if any(name in panel.curves for panel in curves.panels)]
    colour = [name for name in drawn if curves.looks[name].contends]
    least = {
        name: min(point.value for panel in curves.panels for point in panel.curves.get(name, ()))
        for name in drawn
        if name not in colour
    }
    return [*sorted(least, key=least.__getitem__)[:MOST_OTHERS], *reversed(colour)]


def _make_handles(curves: Curves, names: Sequence[str]) -> list[Line2D]:
    """Return the entries of the legend in the order of the looks, which is the same in all figures of a report."""
    ordered = [name for name in curves.looks if name in names]
    labels = make_labels(ordered)
    return [
        Line2D(
            [], [], color=look.colour, marker=look.marker, linestyle=look.line,
            linewidth=(COLOURED if look.contends else GREY)[0], markersize=(COLOURED if look.contends else GREY)[1],
            markerfacecolor=look.colour if look.contends else "none",
            label=labels[name] + (" (baseline)" if name == curves.baseline else ""),
        )
        for name in ordered
        for look in (curves.looks[name],)
    ]  # fmt: skip


def _set_lengths(axes: Axes, panel: Panel) -> None:
    """Make the x axis logarithmic, with a tick at each length, or at some of them if there are many."""
    lengths = sorted({point.length for point in panel.points})
    step = -(-len(lengths) // MOST_TICKS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, ["" if i % step else format_thousands(n) for i, n in enumerate(lengths)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(lengths[0] / MARGIN, lengths[-1] * MARGIN)
    axes.set_xlabel("length L, in tokens")


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str], looks: Mapping[str, Look]) -> None:
    """Draw the curves with their intervals; a disturbed value is a grey cross, and no curve leads through it."""
    for order, name in enumerate(names):
        points, look = panel.curves.get(name, ()), looks[name]
        kept = [point for point in points if not point.disturbed]
        width, size = COLOURED if look.contends else GREY
        above = (4 if look.contends else 2) + order / len(names)
        axes.plot(
            [point.length for point in kept], [point.value for point in kept], color=look.colour, marker=look.marker,
            linestyle=look.line, linewidth=width, markersize=size, markeredgewidth=0.7,
            markerfacecolor=look.colour if look.contends else "none", solid_capstyle="round", zorder=above,
        )  # fmt: skip
        axes.vlines(
            [point.length for point in kept], [point.low for point in kept], [point.high for point in kept],
            colors=look.colour, linewidths=width * 0.7, zorder=3.5,
        )  # fmt: skip
        lost = [point for point in points if point.disturbed]
        axes.plot(
            [point.length for point in lost], [point.value for point in lost], color=OTHERS, marker="+", linestyle="",
            markersize=6, zorder=2,
        )  # fmt: skip


def _set_values(every: Sequence[Axes], curves: Curves, names: Sequence[str]) -> None:
    """Set the y axes, which the panels share."""
    if curves.kind == "time":
        set_log_axis(every[0], lambda ns: format_seconds(ns / 1e9), base=10)
    elif curves.kind == "memory":
        set_log_axis(every[0], format_bytes, base=2)
    else:
        _set_ratios(every, curves, names)


def find_range(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the ends of an axis of ratios: wide enough for the intervals, at least 1.1 and at most 4 from 1."""
    points = [point for panel in panels for point in panel.points]
    low = min([1 / NARROWEST, *(point.low / 1.04 for point in points)])
    high = max([NARROWEST, *(point.high * 1.04 for point in points)])
    return max(low, LEAST), min(high, MOST)


def _set_ratios(every: Sequence[Axes], curves: Curves, names: Sequence[str]) -> None:
    """Set the axes of ratios, and mark what lies outside at their edges."""
    low, high = find_range(curves.panels)
    every[0].set_yscale("log", base=2)
    set_ratio_axis(every[0], low, high)
    room = 2 ** (math.log2(high / low) * 0.03)
    every[0].set_ylim(low / room, high * room)
    for axes, panel in zip(every, curves.panels, strict=True):
        axes.axhline(1, color=MUTED, linewidth=0.8, zorder=1.5)
        for name in names:
            for point in panel.curves.get(name, ()):
                if not low <= point.value <= high:
                    marker, edge = ("^", high) if point.value > high else ("v", low)
                    colour = curves.looks[name].colour
                    axes.plot(point.length, edge, marker=marker, color=colour, markersize=6, clip_on=False, zorder=6)
