"""Figure: for each length, the ratios to the reference with their intervals, in order (a forest plot)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnbench.analysis.plain_names import join_words
from attnbench.analysis.speed_verdict import EFFECT
from attnbench.report.figures.drawing import Sketch
from attnbench.report.figures.labels import clean, make_labels, measure_width, wrap
from attnbench.report.figures.ratio_figure import find_range, select_ratios
from attnbench.report.figures.style import INK, MUTED, SETTINGS, SIZE, SMALL, Look
from attnbench.report.figures.ticks import set_ratio_axis
from attnbench.report.numbers import format_digits, format_thousands
from attnbench.report.series import Series
from attnbench.report.tables import INCONCLUSIVE

__all__ = ["sketch_forest"]

TITLE = "Ratio at each length"
# Lengths in inches. ``WIDTH``: largest width of the figure, unless a single panel needs more; figures with two panels
# are about as wide. ``ROW``: height of a row. ``HEAD`` and ``FOOT``: heights above and below the rows of a panel.
# ``NARROWEST``: smallest width of a plotted area. ``GAP``: space at the right of a panel. ``LINE``: height of a line of
# the place.
WIDTH, ROW, HEAD, FOOT, NARROWEST, GAP, LINE = 12.15, 0.165, 0.3, 0.27, 1.0, 0.15, 0.17
# ``MOST_COLUMNS``: most panels side by side. ``MOST_ROWS``: most rows of a panel. ``MOST_LENGTHS``: most lengths of a
# pass. ``MOST_TOGETHER``: most rows of the figure, about two screens of them; ``FEWEST_LENGTHS`` of a pass are shown
# nevertheless.
MOST_COLUMNS, MOST_ROWS, MOST_LENGTHS, MOST_TOGETHER, FEWEST_LENGTHS = 3, 24, 12, 240, 3
TEXT = SMALL
# Smallest factor between 1 and the ends of the axis: the band of the threshold is then a fifth of the panel.
CLOSEST = 1.05
READING = (
    "Each row is an implementation; the fastest is first. The point is its time divided by the time of {reference}, "
    "and the bar is the confidence interval of this ratio. Left of the line at 1 is faster. The grey band is the "
    "threshold of ±{effect:g} %."
)
HOLLOW = "A hollow point has the verdict unknown: too few processes, or an interval that crosses the threshold."
EDGES = {"◂": "on the left", "▸": "on the right"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The rows of one pass and one length, the fastest first, and the number of rows that are left out."""

    pass_: str
    length: int
    rows: pd.DataFrame
    # Text beside each row: its ratio and interval, or why it has no ratio.
    texts: tuple[str, ...]
    missing: int = 0


def sketch_forest(series: Series, looks: Mapping[str, Look], place: str) -> Sketch:
    """Sketch the ratios to the reference at each length, in order, with their intervals as numbers."""
    timings = series.timings
    rows = select_ratios(timings)
    others = rows[rows["implementation"] != series.reference]
    if others.empty:
        return Sketch(name="forest", title=TITLE, notes=("no call has a ratio to the reference",))
    disturbed = timings[timings["state"] == INCONCLUSIVE].drop_duplicates(
        ["implementation", "pass", "length"], keep="last"
    )
    panels, notes = _choose_panels(rows, disturbed, series.reference)
    names = make_labels(sorted({str(name) for panel in panels for name in panel.rows["implementation"]}))
    contending = others[[looks[name].contends for name in others["implementation"]]]
    limits = find_range(contending, CLOSEST)
    with mpl.rc_context(SETTINGS):
        figure = _draw(panels, names, looks=looks, limits=limits, place=place)
    return Sketch(
        name="forest",
        title=TITLE,
        reading=READING.format(reference=clean(series.reference), effect=EFFECT * 100),
        shows=_describe_panels(panels, names),
        notes=(*notes, *_explain_marks(panels, limits)),
        figure=figure,
    )


def _choose_panels(rows: pd.DataFrame, disturbed: pd.DataFrame, reference: str) -> tuple[list[Panel], tuple[str, ...]]:
    """Return a panel for each pass and length, and notes on what is left out."""
    panels, notes = [], []
    names = {*rows["implementation"], *disturbed["implementation"]}
    most_lengths = MOST_TOGETHER // (min(len(names), MOST_ROWS) * rows["pass"].nunique())
    most_lengths = max(FEWEST_LENGTHS, min(most_lengths, MOST_LENGTHS))
    for name, part in rows.groupby("pass"):
        lengths = sorted(int(length) for length in part["length"].unique())
        chosen = sorted({lengths[round(i * (len(lengths) - 1) / (most_lengths - 1))] for i in range(most_lengths)})
        if len(lengths) > len(chosen):
            notes.append(f"{name}: {len(chosen)} of {len(lengths)} lengths; timings.csv has all.")
        for length in chosen:
            own = part[part["length"] == length].sort_values(["value", "implementation"], kind="stable")
            lost = disturbed[(disturbed["pass"] == name) & (disturbed["length"] == length)]
            every = pd.concat([own, lost]) if len(lost) else own
            kept = every.iloc[:MOST_ROWS]
            if reference not in set(kept["implementation"]):
                kept = pd.concat([kept.iloc[:-1], own[own["implementation"] == reference]])
            texts = tuple(_describe(row, reference) for row in kept.to_dict("records"))
            missing = len(every) - len(kept)
            panels.append(Panel(pass_=str(name), length=length, rows=kept, texts=texts, missing=missing))
    most = max(panel.missing for panel in panels)
    if most > 0:
        notes.append(f"Up to {most} implementations of a length are left out; timings.csv has all.")
    return panels, tuple(notes)


def _explain_marks(panels: Sequence[Panel], limits: tuple[float, float]) -> Iterator[str]:
    """Yield the meanings of those marks in these panels that other figures may lack."""
    rows = pd.concat([panel.rows for panel in panels])
    rows = rows[rows["state"] != INCONCLUSIVE]
    if (rows["state"] == "unknown").any():
        yield HOLLOW
    outside = {"◂": (rows["value"] < limits[0]).any(), "▸": (rows["value"] > limits[1]).any()}
    for mark, there in outside.items():
        if there:
            yield f"{mark} is a point outside of the panel {EDGES[mark]}; its number is beside it."


def _describe(row: Mapping[Any, Any], reference: str) -> str:
    """Return the ratio of a row with its interval, or why there is none."""
    if row["state"] == INCONCLUSIVE:
        return INCONCLUSIVE
    if row["implementation"] == reference:
        return "1 (reference)"
    value = format_digits(float(row["ratio"]))
    if row["processes"] == 1:
        return f"{value}, 1 process, no interval"
    return f"{value} [{format_digits(float(row['low']))} to {format_digits(float(row['high']))}]"


def _describe_panels(panels: Sequence[Panel], names: Mapping[str, str]) -> str:
    """Describe each panel for readers who do not see it: the three fastest with their ratios."""
    parts = []
    for panel in panels:
        fastest = [
            f"{names[name]} {text}"
            for name, text in list(zip(panel.rows["implementation"], panel.texts, strict=True))[:3]
        ]
        parts.append(f"{panel.pass_} at L = {format_thousands(panel.length)}: {join_words(fastest)}")
    return f"The fastest: {'; '.join(parts)}."


def _draw(
    panels: Sequence[Panel],
    names: Mapping[str, str],
    *,
    looks: Mapping[str, Look],
    limits: tuple[float, float],
    place: str,
) -> Figure:
    """Draw the panels in a grid: the passes below one another, and the lengths of a pass side by side."""
    texts = [text for panel in panels for text in panel.texts]
    left, right = (measure_width(words, TEXT) + 0.15 for words in (names.values(), texts))
    most = max(1, min(MOST_COLUMNS, int(WIDTH / (left + NARROWEST + right + GAP))))
    bands = [
        own[start : start + most]
        for pass_ in dict.fromkeys(panel.pass_ for panel in panels)
        for own in ([panel for panel in panels if panel.pass_ == pass_],)
        for start in range(0, len(own), most)
    ]
    columns = max(map(len, bands))
    cell = max(WIDTH / MOST_COLUMNS, left + NARROWEST + right + GAP) if columns < most else WIDTH / most
    cell = max(cell, left + NARROWEST + right + GAP)
    width = columns * cell
    lines = wrap(place, width - 0.2, SIZE) if place else []
    heights = [HEAD + ROW * max(len(panel.rows) for panel in band) + FOOT for band in bands]
    height = sum(heights) + LINE * len(lines)
    figure = Figure(figsize=(width, height))
    for index, line in enumerate(lines):
        figure.text(0.1 / width, 1 - (0.1 + LINE * index) / height, line, color=MUTED, va="center")
    top = height - LINE * len(lines)
    for band, tall in zip(bands, heights, strict=True):
        for index, panel in enumerate(band):
            area = ROW * len(panel.rows)
            box = (index * cell + left, top - HEAD - area, cell - left - right - GAP, area)
            axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
            _draw_panel(axes, panel, names, looks, limits)
            axes.text(
                (0.1 - left) / box[2], 1 + 0.12 / area, f"{panel.pass_}, L = {format_thousands(panel.length)}",
                transform=axes.transAxes, fontsize=SIZE, fontweight="bold", va="center",
            )  # fmt: skip
        top -= tall
    return figure


def _draw_panel(
    axes: Axes, panel: Panel, names: Mapping[str, str], looks: Mapping[str, Look], limits: tuple[float, float]
) -> None:
    """Draw the rows of a panel: name, point with interval, and numbers."""
    low, high = limits
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(len(panel.rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.axvspan(1 - EFFECT, 1 + EFFECT, color=MUTED, alpha=0.16, linewidth=0)
    axes.axvline(1, color=MUTED, linewidth=0.7)
    set_ratio_axis(axes, low, high, horizontal=True)
    axes.tick_params(axis="x", length=2, width=0.5, labelsize=TEXT, pad=1.5)
    for y, (row, text) in enumerate(zip(panel.rows.to_dict("records"), panel.texts, strict=True)):
        look = looks[row["implementation"]]
        words: dict[str, Any] = {"fontsize": TEXT, "va": "center", "transform": axes.get_yaxis_transform()}
        colour = look.colour if look.contends else MUTED
        axes.text(-0.08 / _width(axes), y, names[row["implementation"]], ha="right", color=colour, **words)
        axes.text(1 + 0.08 / _width(axes), y, text, ha="left", color=INK if look.contends else MUTED, **words)
        if row["state"] != INCONCLUSIVE:
            _draw_row(axes, y, row, look, limits)


def _draw_row(axes: Axes, y: int, row: Mapping[Any, Any], look: Look, limits: tuple[float, float]) -> None:
    """Draw the point and the interval of a row, or an arrow at the edge if the point lies outside of the panel."""
    low, high = limits
    value, ends = float(row["value"]), (float(row["low"]), float(row["high"]))
    if ends[1] >= low and ends[0] <= high:
        axes.hlines(y, max(ends[0], low), min(ends[1], high), color=look.colour, linewidth=1.3, zorder=3)
    outside = value < low or value > high
    marker = ("<" if value < low else ">") if outside else look.marker
    face = "none" if row["state"] == "unknown" and not outside else look.colour
    axes.plot(
        min(max(value, low), high), y, marker=marker, color=look.colour, markerfacecolor=face, markersize=4,
        markeredgewidth=0.9, clip_on=False, zorder=4,
    )  # fmt: skip


def _width(axes: Axes) -> float:
    """Return the width of a panel in inches."""
    return axes.get_position().width * axes.figure.get_figwidth()  # type: ignore[union-attr]  # never a subfigure
