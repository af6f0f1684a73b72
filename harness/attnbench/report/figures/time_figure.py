"""Figure: time of a call against length, both on logarithmic axes."""

from collections.abc import Mapping

from attnbench.report.figures.drawing import Sketch
from attnbench.report.figures.panels import Panels, draw_panels, find_beyond
from attnbench.report.figures.rows import describe_ends, keep_drawable, name_left_out, name_single
from attnbench.report.figures.style import Look
from attnbench.report.figures.ticks import set_log_axis
from attnbench.report.numbers import format_seconds
from attnbench.report.series import Series

__all__ = ["sketch_time"]

READING = (
    "Lower is faster. Both axes are logarithmic: where the length doubles, a time that grows with L² quadruples. Bars "
    "are confidence intervals of the median. Where curves coincide, those beneath are drawn wider."
)


def sketch_time(series: Series, looks: Mapping[str, Look], place: str) -> Sketch:
    """Sketch the time of a call against length."""
    title = "Time of a call" + (" on the device" if (series.timings["measure"] == "device").any() else "")
    rows = keep_drawable(series.timings, "median_ns", "low_ns", "high_ns")
    if rows.empty:
        return Sketch(name="time", title=title, notes=("no call has a time above 0",))
    figure, notes = draw_panels(
        Panels(
            rows=rows, looks=looks, reference=series.reference, label=title.lower(), place=place,
            finish=lambda parts: set_log_axis(parts[0][0], lambda ns: format_seconds(ns / 1e9), base=10),
            beyond=find_beyond(rows, series.untimed),
        )
    )  # fmt: skip
    left_out = series.timings.drop(rows.index)
    return Sketch(
        name="time",
        title=title,
        reading=READING,
        coloured=True,
        shows=describe_ends(rows, series.reference, lambda ns: format_seconds(ns / 1e9), ("fastest", "slowest")),
        notes=(*notes, *name_left_out(left_out, "time not above 0 or measured twice"), *name_single(rows)),
        figure=figure,
    )
