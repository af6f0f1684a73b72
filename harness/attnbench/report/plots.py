"""Plots of time, memory and speed against length, as SVG and PNG files; the same data always give identical files."""

import io
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from attnbench.report import curvenames
from attnbench.report.curvenames import End
from attnbench.report.numbers import format_bytes, format_seconds

__all__ = ["INK", "MUTED", "Look", "choose_looks", "draw", "plot_memory", "plot_speed", "plot_time"]

# ``INK``: colour of titles. ``MUTED``: colour of labels. ``RULE``: colour of axes and grid lines. All three are
# readable on white and on near-black. The HTML page replaces them with its own colours.
INK, MUTED, RULE = "#77797f", "#808289", "#8a8c92"
# Colours of the curves: Okabe and Ito's palette for colour-blind readers, with its extremes shifted towards mid-tones
# and without yellow.
# Source: https://jfly.uni-koeln.de/color/
COLOURS = ("#3185c5", "#d9650f", "#119a75", "#c2689c", "#c98b06", "#53a9d6", "#8f74cf", "#b5504a")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p")
# Line styles of the first eight implementations, of the next eight, and of all others.
LINES = ("-", "--", ":")
# This text is in the reason of each call that was not timed because its predicted time exceeds the work limit. A curve
# that ends before such a call has a cross at its end.
BEYOND = "--work-limit"

SETTINGS: Any = {  # ``Any``: matplotlib's type hint accepts only its own literals as keys
    "svg.hashsalt": "attnbench",
    "svg.fonttype": "none",
    # Do not draw text between dollar signs as a formula.
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": curvenames.SIZE,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
}

# ``PANEL`` and ``HEIGHT``: width of a panel and height of a figure, in inches. ``LABELS``: width of the tick and axis
# labels at the left of a panel, in inches.
PANEL, HEIGHT, LABELS = 3.6, 3.5, 0.85
# ``FEWEST_TICKS``: smallest number of ticks of a y axis. Ticks are at powers of the base of the axis. If these are too
# few and the base is 10, ticks are at the multiples ``STEPS`` of powers of ten.
FEWEST_TICKS, STEPS = 4, (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The style of one implementation in every plot of a report."""

    colour: str
    marker: str
    line: str = "-"
    width: float = 1.5


def choose_looks(implementations: Collection[str], references: Collection[str]) -> dict[str, Look]:
    """Choose a style for each implementation; a reference has the colour of the text."""
    made = dict.fromkeys(references, Look(colour=INK, marker="o", width=2.2))
    for index, name in enumerate(sorted(set(implementations) - set(references))):
        again, place = divmod(index, len(COLOURS))
        marker = MARKERS[(place + again * len(MARKERS) // 2) % len(MARKERS)]
        made[name] = Look(colour=COLOURS[place], marker=marker, line=LINES[min(again, len(LINES) - 1)])
    return made


def plot_time(timings: pd.DataFrame, untimed: pd.DataFrame, styles: dict[str, Look]) -> Figure | None:
    """Plot the time of a call against length: medians and their confidence intervals, one panel per pass."""
    frame = timings.assign(value=timings["median_ns"], low=timings["low_ns"], high=timings["high_ns"])
    label = "time of a call" + (" on the device" if (timings["measure"] == "device").any() else "")
    return _draw_panels(frame, untimed, styles, label=label, text=lambda ns: format_seconds(ns / 1e9))


def plot_memory(memories: pd.DataFrame, untimed: pd.DataFrame, styles: dict[str, Look]) -> Figure | None:
    """Plot the peak memory of a call above its inputs against length, one panel per pass; peaks of 0 are left out."""
    frame = memories[memories["peak_bytes"] > 0]
    frame = frame.assign(value=frame["peak_bytes"], low=frame["peak_bytes"], high=frame["peak_bytes"])
    return _draw_panels(frame, untimed, styles, label="peak memory above the inputs", text=format_bytes, base=2)


def plot_speed(timings: pd.DataFrame, untimed: pd.DataFrame, styles: dict[str, Look], reference: str) -> Figure | None:
    """Plot the speed relative to the reference against length; values above 1 are faster.

    Calls with an inconclusive speed verdict are left out.
    """
    frame = timings[timings["ratio"].notna() & (timings["state"] != "inconclusive")]
    # Inverting a ratio of times swaps the ends of its confidence interval.
    frame = frame.assign(value=1 / frame["ratio"], low=1 / frame["ratio_high"], high=1 / frame["ratio_low"])
    return _draw_panels(
        frame, untimed, styles, label=f"speed relative to {reference}", text=lambda value: f"{value:g}×"
    )


def draw(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """Return the bytes of an SVG or PNG file of the figure; the file contains no date, which would differ each time."""
    stream = io.BytesIO()
    with mpl.rc_context(SETTINGS):
        if kind == "svg":
            figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": "attnbench"})
        else:
            figure.savefig(stream, format="png", dpi=200, facecolor="white", metadata={"Software": "attnbench"})
    return stream.getvalue()


def _draw_panels(
    frame: pd.DataFrame,
    untimed: pd.DataFrame,
    styles: dict[str, Look],
    *,
    label: str,
    text: Callable[[float], str],
    base: int = 10,
) -> Figure | None:
    """Return a figure with a panel of curves for each pass, or None if ``frame`` is empty.

    ``label`` is the label of the y axis. The axis is logarithmic with base ``base``, and ``text`` formats its ticks.
    """
    if frame.empty:
        return None
    passes = sorted(frame["pass"].unique())
    with mpl.rc_context(SETTINGS):
        names = curvenames.compute_room(sorted(frame["implementation"].unique()), PANEL)
        figure = Figure(figsize=(len(passes) * (LABELS + PANEL + names), HEIGHT))
        every = figure.subplots(1, len(passes), squeeze=False, sharey=True)[0]
        ends = []
        for axes, name in zip(every, passes, strict=True):
            part = frame[frame["pass"] == name]
            _set_up_axes(axes, part, text=text, base=base)
            axes.set_title(name, loc="left", fontsize=9.5, fontweight="bold", pad=10)
            axes.tick_params(labelleft=True)
            ends.append(_draw_curves(axes, part, untimed[untimed["pass"] == name], styles))
        # All panels share one y axis, and any curve may extend this axis. Ticks and names are therefore set last.
        every[0].set_ylim(*every[0].get_ylim())
        _set_ticks(every[0], base=base)
        for axes, own in zip(every, ends, strict=True):
            curvenames.place(axes, own, max(end.length for end in own), PANEL)
        every[0].set_ylabel(label)
        width = figure.get_figwidth()
        figure.subplots_adjust(
            left=LABELS / width, right=1 - names / width, top=0.89, bottom=0.135, wspace=(names + LABELS) / PANEL
        )
    return figure


def _set_up_axes(axes: Axes, part: pd.DataFrame, *, text: Callable[[float], str], base: int) -> None:
    lengths = sorted(part["length"].unique())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=base)
    axes.set_xticks(lengths, [f"{n:,}".replace(",", " ") for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.12)
    axes.set_xlabel("length L")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.tick_params(length=3, width=0.6)


def _set_ticks(axes: Axes, *, base: int) -> None:
    """Set the ticks of the y axis at powers of the base.

    If fewer than ``FEWEST_TICKS`` are visible and the base is 10, set ticks at the multiples ``STEPS`` of powers of
    ten. If the ticks are still too few, space them evenly.
    """
    low, high = axes.get_ylim()
    for subs in ((1.0,), STEPS) if base == 10 else ((1.0,),):
        axes.yaxis.set_major_locator(LogLocator(base=base, subs=subs))
        if sum(low <= tick <= high for tick in axes.yaxis.get_majorticklocs()) >= FEWEST_TICKS:
            return
    unit = 1024.0 ** max(0, math.floor(math.log(high, 1024))) if base == 2 else 1.0
    even = MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(low / unit, high / unit)
    axes.set_yticks([tick * unit for tick in map(float, list(even)) if low <= tick * unit <= high])


def _draw_curves(axes: Axes, part: pd.DataFrame, untimed: pd.DataFrame, styles: dict[str, Look]) -> list[End]:
    """Draw the curves, mark the curves that end at the work limit, and return the end of every curve."""
    ends = []
    for name in [name for name in styles if name in set(part["implementation"])]:
        rows, look = part[part["implementation"] == name].sort_values("length"), styles[name]
        last = rows.iloc[-1]
        end = End(
            name=name,
            colour=look.colour,
            length=int(last["length"]),
            value=float(last["value"]),
            beyond=_ends_at_work_limit(untimed, name, int(last["length"])),
        )
        _draw_curve(axes, rows, look)
        if end.beyond:
            axes.plot(end.length, end.value, marker="x", color=look.colour, markersize=9, markeredgewidth=1.8)
        ends.append(end)
    return ends


def _draw_curve(axes: Axes, rows: pd.DataFrame, look: Look) -> None:
    axes.fill_between(rows["length"], rows["low"], rows["high"], color=look.colour, alpha=0.18, linewidth=0)
    axes.vlines(rows["length"], rows["low"], rows["high"], color=look.colour, linewidth=1)
    axes.plot(
        rows["length"], rows["value"], color=look.colour, marker=look.marker, markersize=4, linewidth=look.width,
        linestyle=look.line, solid_capstyle="round",
    )  # fmt: skip


def _ends_at_work_limit(untimed: pd.DataFrame, name: str, last: int) -> bool:
    """Whether a curve ends because calls on longer sequences were predicted to exceed the work limit."""
    own = untimed[(untimed["implementation"] == name) & (untimed["length"] > last)]
    return bool(own["reason"].str.contains(BEYOND, regex=False).any())
