"""Figure: operations per second against length, with the rate that the machine's ceilings allow."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from attnbench.report.figures.drawing import Sketch
from attnbench.report.figures.panels import Panels, draw_panels
from attnbench.report.figures.rows import describe_ends, keep_drawable, name_left_out
from attnbench.report.figures.style import INK, Look
from attnbench.report.numbers import format_digits
from attnbench.report.series import Series

__all__ = ["sketch_rate"]

TITLE = "Rate against the measured ceiling"
READING = "Operations that the case needs, divided by the time of a call; higher is faster."
CEILING = (
    "The dashed line is the ceiling: the rate at the speed of a matrix product or of a copy, whichever takes longer, "
    "as measured on this machine in the same run. Short calls are far below it."
)
WITHOUT = "Without the ceiling, which was not measured in this run."
TOO_LOW = "Without the ceiling, which was measured too low: a call was faster than it allows."
# Unit of rates: at or above this many Gflop/s, a rate is in Tflop/s.
TERA = 1000.0


def sketch_rate(series: Series, looks: Mapping[str, Look], place: str) -> Sketch:
    """Sketch the rate of operations against length; there is no figure for an operator that counts no operations."""
    timings = series.timings
    # A rate is operations over time, so the ends of its interval follow from those of the time, swapped.
    flop_per_ns = timings["gflop_per_s"].astype(float)
    low = flop_per_ns * timings["median_ns"] / timings["high_ns"]
    high = flop_per_ns * timings["median_ns"] / timings["low_ns"]
    rows = keep_drawable(timings.assign(slowest=low, fastest=high), "gflop_per_s", "slowest", "fastest")
    if rows.empty:
        return Sketch(name="rate", title=TITLE, notes=("no operations were counted",))
    unit, divisor = ("Tflop/s", TERA) if rows["value"].max() >= TERA else ("Gflop/s", 1.0)
    rows = rows.assign(**{column: rows[column] / divisor for column in ("value", "low", "high")})
    ceiling = _find_ceiling(rows[:0] if series.exceeds_ceiling else rows, divisor)
    handle = [Line2D([], [], color=INK, linestyle="--", linewidth=1.2, label="ceiling of the machine")]
    figure, notes = draw_panels(
        Panels(
            rows=rows, looks=looks, reference=series.reference, label=f"rate, {unit}", place=place,
            finish=lambda parts: _finish(parts, ceiling), beyond={}, extra=handle if len(ceiling) else [],
            largest=True,
        )
    )  # fmt: skip
    shows = describe_ends(rows, series.reference, lambda rate: f"{format_digits(rate)} {unit}", ("slowest", "fastest"))
    top = f" Highest ceiling: {format_digits(ceiling['ceiling'].max())} {unit}." if len(ceiling) else ""
    return Sketch(
        name="rate",
        title=TITLE,
        # Times and ratios say the same of which implementation is faster.
        folded=True,
        reading=f"{READING} {CEILING}" if len(ceiling) else READING,
        shows=shows + top,
        notes=(
            *notes,
            *(() if len(ceiling) else (TOO_LOW if series.exceeds_ceiling else WITHOUT,)),
            *name_left_out(timings.drop(rows.index), "without a rate"),
        ),
        figure=figure,
    )


def _find_ceiling(rows: pd.DataFrame, divisor: float) -> pd.DataFrame:
    """Return the rate that the ceilings allow, by run, pass and length.

    ``share`` is the shortest possible time divided by the measured time. The rate divided by ``share`` is therefore the
    rate of a call that takes the shortest possible time.
    """
    known = rows[rows["share"].astype(float) > 0]
    rates = known["gflop_per_s"] / known["share"] / divisor
    return known.assign(ceiling=rates).drop_duplicates(["run", "pass", "length"])


def _finish(parts: Sequence[tuple[Axes, pd.DataFrame]], ceiling: pd.DataFrame) -> None:
    """Draw the ceilings, and begin the y axis at 0, so that a height is a share of the ceiling."""
    for axes, part in parts:
        name = part["pass"].iloc[0]
        for _, own in ceiling[ceiling["pass"] == name].groupby("run"):
            low, high = axes.get_xlim()
            ordered = own.sort_values("length")
            x = [low, *ordered["length"], high]
            rates = list(ordered["ceiling"])
            axes.plot(x, [rates[0], *rates, rates[-1]], color=INK, linestyle="--", linewidth=1.2, zorder=1.5)
            axes.set_xlim(low, high)
    first = parts[0][0]
    top = max([*(part["high"].max() for _, part in parts), *ceiling["ceiling"]])
    first.set_ylim(0, top * 1.06)
