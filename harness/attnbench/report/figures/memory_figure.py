"""Figure: peak memory of a call against length, both on logarithmic axes."""

from collections.abc import Mapping

from attnbench.report.figures.drawing import Sketch
from attnbench.report.figures.panels import Panels, draw_panels, find_beyond
from attnbench.report.figures.rows import describe_ends, keep_drawable, name_left_out
from attnbench.report.figures.style import Look
from attnbench.report.figures.ticks import set_log_axis
from attnbench.report.numbers import format_bytes
from attnbench.report.series import Series

__all__ = ["sketch_memory"]

READING = (
    "Peak bytes of a call above its inputs; lower is less. Both axes are logarithmic. Where the length doubles, "
    "memory that grows with L doubles, and memory that grows with L², as the L × L matrix of weights, quadruples. "
    "Where curves coincide, those beneath are drawn wider."
)
TITLE = "Peak memory"


def sketch_memory(series: Series, looks: Mapping[str, Look], place: str) -> Sketch:
    """Sketch the peak memory of a call against length; calls that need no memory above their inputs are left out."""
    rows = keep_drawable(series.memory, "peak_bytes", "peak_bytes", "peak_bytes")
    if rows.empty:
        return Sketch(name="memory", title=TITLE, notes=("no call has a measured peak above 0",))
    figure, notes = draw_panels(
        Panels(
            rows=rows, looks=looks, reference=series.reference, label="peak memory above the inputs", place=place,
            finish=lambda parts: set_log_axis(parts[0][0], format_bytes, base=2),
            beyond=find_beyond(rows, series.untimed),
        )
    )  # fmt: skip
    left_out = series.memory.drop(rows.index)
    return Sketch(
        name="memory",
        title=TITLE,
        reading=READING,
        coloured=True,
        shows=describe_ends(rows, series.reference, format_bytes, ("least", "most")),
        notes=(*notes, *name_left_out(left_out, "peak of 0 or measured twice")),
        figure=figure,
    )
