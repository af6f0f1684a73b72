"""Figure: ratio of times to the reference against length; what lies outside of ¼ to 4 is named at the edge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from attnbench.analysis.plain_names import join_words
from attnbench.report.figures.drawing import Sketch
from attnbench.report.figures.labels import clean, make_labels
from attnbench.report.figures.panels import AREA, Panels, draw_panels, find_beyond
from attnbench.report.figures.rows import describe_ends, keep_drawable, name_left_out, name_single
from attnbench.report.figures.style import MUTED, SMALL, Look
from attnbench.report.figures.ticks import set_ratio_axis
from attnbench.report.numbers import format_count, format_digits, format_thousands
from attnbench.report.series import Series
from attnbench.report.tables import INCONCLUSIVE

__all__ = ["find_range", "select_ratios", "sketch_ratio"]

# ``LEAST``, ``MOST``: smallest and largest ratio inside a panel. An implementation that is slower than this is no
# choice, whether 5 or 500 times slower.
LEAST, MOST = 0.25, 4.0
# Smallest factor between 1 and the ends of the axis, so that noise of a percent does not fill a panel.
NARROWEST = 1.1
# ``NAMED``: height of a name at the edge of a panel, in inches. ``MOST_NAMED``: most names at one edge.
NAMED, MOST_NAMED = 0.16, 5
READING = (
    "Time divided by the time of {reference} on the same case; below the line at 1 is faster than the reference. A bar "
    "is the confidence interval; where it comes within 1 % of the line, it is not decided which is faster. At each "
    "length, the points in colour stand side by side."
)
# On which side of a panel an implementation lies outside, by its mark.
EDGES = {"▲": "above", "▼": "below"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """An implementation that has ratios above or below a panel."""

    name: str
    text: str
    # Length at which the text stands: the shortest one with a ratio outside.
    length: int


def sketch_ratio(series: Series, looks: Mapping[str, Look], place: str) -> Sketch:
    """Sketch the ratio of times to the reference against length."""
    reference = clean(series.reference)
    title = f"Ratio to {reference}"
    rows = select_ratios(series.timings)
    others = rows[rows["implementation"] != series.reference]
    disturbed = series.timings[series.timings["state"] == INCONCLUSIVE]
    compared = disturbed[disturbed["implementation"] != series.reference]
    if others.empty:
        why = "all comparisons are inconclusive" if len(disturbed) else f"no call was timed together with {reference}"
        return Sketch(name="ratio", title=title, notes=(why,))
    limits = find_range(others)
    figure, notes = draw_panels(
        Panels(
            rows=rows, looks=looks, reference=series.reference, label=f"time ÷ time of {reference}", place=place,
            side_by_side=True, finish=lambda parts: _finish(parts, looks, limits),
            beyond=find_beyond(rows, series.untimed),
        )
    )  # fmt: skip
    without = series.timings.drop([*rows.index, *disturbed.index])
    return Sketch(
        name="ratio",
        title=title,
        reading=READING.format(reference=reference),
        coloured=True,
        shows=describe_ends(rows, series.reference, lambda value: f"{format_digits(value)}", ("fastest", "slowest")),
        notes=(
            *_find_crossovers(others),
            *_explain_edges(others, limits),
            *notes,
            *name_left_out(compared, INCONCLUSIVE, "comparison"),
            *name_left_out(without, "without a ratio"),
            *name_single(rows),
        ),
        figure=figure,
    )


def select_ratios(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a ratio that is not inconclusive, ready to draw."""
    return keep_drawable(timings[timings["state"] != INCONCLUSIVE], "ratio", "ratio_low", "ratio_high")


def find_range(rows: pd.DataFrame, narrowest: float = NARROWEST) -> tuple[float, float]:
    """Return the ends of the axis: wide enough for these ratios and their intervals, and at most ¼ to 4.

    Both ends are at least the factor ``narrowest`` away from 1.
    """
    low = min(float(rows["low"].min()) / 1.04, 1 / narrowest) if len(rows) else 1 / narrowest
    high = max(float(rows["high"].max()) * 1.04, narrowest) if len(rows) else narrowest
    return max(low, LEAST), min(high, MOST)


def _find_crossovers(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence that names what is faster than the reference at some lengths, and slower at others."""
    found = []
    for (pass_, name), own in rows.groupby(["pass", "implementation"]):
        faster, slower = (own[own["state"] == state]["length"] for state in ("faster", "slower"))
        if len(faster) and len(slower):
            lengths = [", ".join(format_thousands(int(n)) for n in sorted(one)) for one in (faster, slower)]
            found.append(f"{clean(str(name))} ({pass_}: faster at L = {lengths[0]}, slower at L = {lengths[1]})")
    if rows["length"].nunique() < 2:
        return ()
    if not found:
        return (_deny_crossovers(rows),)
    more = [f"{len(found) - MOST_NAMED} others"] if len(found) > MOST_NAMED else []
    return (f"Crossovers: {join_words([*found[:MOST_NAMED], *more])}.",)


def _deny_crossovers(rows: pd.DataFrame) -> str:
    """Return the sentence that no crossover is decided, or that no implementation has points on both sides of 1."""
    crossing = [
        clean(str(name))
        for (_, name), own in rows.groupby(["pass", "implementation"])
        if own["value"].min() < 1 < own["value"].max()
    ]
    names = list(dict.fromkeys(crossing))
    if not names:
        return "No crossover: the points of each implementation are all on one side of the line."
    more = [format_count(len(names) - MOST_NAMED, "other")] if len(names) > MOST_NAMED else []
    verb = "has" if len(names) == 1 else "have"
    return (
        f"No decided crossover: {join_words([*names[:MOST_NAMED], *more])} {verb} points on both sides of the line, "
        "but no verdict of faster at one length and of slower at another."
    )


def _explain_edges(rows: pd.DataFrame, limits: tuple[float, float]) -> tuple[str, ...]:
    """Return what the marks at the edges of the panels mean, if there are any."""
    present = {"▲": (rows["value"] > limits[1]).any(), "▼": (rows["value"] < limits[0]).any()}
    return tuple(f"{mark} names implementations {EDGES[mark]} the panel." for mark, there in present.items() if there)


def _finish(parts: Sequence[tuple[Axes, pd.DataFrame]], looks: Mapping[str, Look], limits: tuple[float, float]) -> None:
    """Clip the curves at the limits, and name what lies outside in rows between the limits and the edges."""
    low, high = limits
    above = [_find_outside(part, part["value"] > high, "▲") for _, part in parts]
    below = [_find_outside(part, part["value"] < low, "▼") for _, part in parts]
    rows = [max(map(len, edge)) for edge in (above, below)]
    for axes, part in parts:
        _clip(axes, low, high)
        for sign, outside, edge in (("^", part["value"] > high, high), ("v", part["value"] < low, low)):
            for name, length in zip(part[outside]["implementation"], part[outside]["length"], strict=True):
                axes.plot(length, edge, marker=sign, color=looks[name].colour, markersize=6, clip_on=False, zorder=6)
        axes.axhline(1, color=MUTED, linewidth=0.8, zorder=1.5)
    first = parts[0][0]
    first.set_yscale("log", base=2)
    set_ratio_axis(first, low, high)
    height = first.get_position().height * first.figure.get_figheight()  # type: ignore[union-attr]  # never a subfigure
    per_inch = math.log2(high / low) / max(height - NAMED * sum(rows) - 0.2, AREA / 3)
    first.set_ylim(low * 2 ** (-per_inch * (NAMED * rows[1] + 0.08)), high * 2 ** (per_inch * (NAMED * rows[0] + 0.08)))
    for (axes, _), names, others in zip(parts, above, below, strict=True):
        for edge, direction, found in ((high, 1, names), (low, -1, others)):
            for index, one in enumerate(found):
                y = edge * 2 ** (direction * per_inch * (NAMED * (index + 0.5) + 0.06))
                _write(axes, one, y, looks)


def _clip(axes: Axes, low: float, high: float) -> None:
    """Clip what is drawn in a panel, so that a curve leaves it at the limits in its own direction."""
    left, right = axes.get_xlim()
    window = Rectangle((left, low), right - left, high - low, transform=axes.transData)
    for artist in (*axes.lines, *axes.collections):
        artist.set_clip_path(window)


def _find_outside(part: pd.DataFrame, outside: "pd.Series[bool]", sign: str) -> list[Outside]:
    """Return the implementations outside of a panel at one edge, those nearest to the panel first."""
    rows = part[outside].sort_values(["value", "implementation"], ascending=sign == "▲", kind="stable")
    labels = make_labels(rows["implementation"].unique())
    found = []
    for name, label in labels.items():
        own = rows[rows["implementation"] == name].sort_values("length")
        ratios = [f"{format_digits(value, 2)}" for value in (own["value"].min(), own["value"].max())]
        words = ratios[0] if ratios[0] == ratios[1] else " to ".join(ratios)
        found.append(Outside(name=name, text=f"{sign} {label} {words}", length=int(own["length"].iloc[0])))
    if len(found) > MOST_NAMED:
        rest = found[MOST_NAMED - 1 :]
        text = f"{sign} {len(rest)} others"
        found = [*found[: MOST_NAMED - 1], Outside(name=rest[0].name, text=text, length=rest[0].length)]
    return found


def _write(axes: Axes, one: Outside, y: float, looks: Mapping[str, Look]) -> None:
    """Write the name of an implementation outside of the panel, at its length but inside of the panel's width."""
    left, right = (math.log2(end) for end in axes.get_xlim())
    share = (math.log2(one.length) - left) / (right - left)
    side = "left" if share < 0.35 else "right" if share > 0.65 else "center"
    colour = looks[one.name].colour if looks[one.name].contends else MUTED
    axes.text(one.length, y, one.text, color=colour, fontsize=SMALL, ha=side, va="center", clip_on=False, zorder=6)
