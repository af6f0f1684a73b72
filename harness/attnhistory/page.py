"""A history as one self-contained HTML file: its tables, and a chart of each series that has steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from attnbench.report.page import make_environment, render_template
from attnhistory.series import History, Series
from attnhistory.texts import (
    TITLE,
    format_value,
    list_commands,
    list_notes,
    list_skipped,
    name_point,
    name_series,
    name_step,
    tabulate,
)

__all__ = ["MOST_CHARTS", "render"]

# Size of a chart and the space around its line, in CSS pixels.
WIDTH, HEIGHT, MARGIN = 640, 140, 16
# Most charts on a page; each has about 100 bytes of HTML for each commit.
MOST_CHARTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """A point in a chart; ``x`` and ``y`` in CSS pixels."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chart:
    title: str
    steps: tuple[str, ...]
    marks: tuple[_Mark, ...]
    # Places of the steps, in CSS pixels: between the two points.
    lines: tuple[float, ...]
    least: str
    most: str
    first: str
    last: str


def render(history: History, *, everything: bool) -> str:
    """Return the HTML page of a history."""
    text = (resources.files("attnhistory") / "templates" / "history.html.j2").read_text(encoding="utf-8")
    moved = [series for series in history.series if series.steps]
    return render_template(
        make_environment().from_string(text),
        title=TITLE,
        notes=list(list_notes(history)),
        tables=tabulate(history, everything=everything),
        commands=list(list_commands(history)),
        skipped=list(list_skipped(history)),
        charts=[_draw(series) for series in moved[:MOST_CHARTS]],
        left_out=max(0, len(moved) - MOST_CHARTS),
        size=(WIDTH, HEIGHT, MARGIN),
    )


def _draw(series: Series) -> _Chart:
    quantity, points = series.key.quantity, series.points
    marks = tuple(_place(series))
    places = [points.index(step.later) for step in series.steps]
    values = [point.value for point in points]
    return _Chart(
        title=name_series(series.key),
        steps=tuple(name_step(quantity, step) for step in series.steps),
        marks=marks,
        lines=tuple((marks[place - 1].x + marks[place].x) / 2 for place in places),
        least=format_value(quantity, min(values)),
        most=format_value(quantity, max(values)),
        first=name_point(points[0]),
        last=name_point(points[-1]),
    )


def _place(series: Series) -> Iterator[_Mark]:
    """Yield the points of a series with steps, evenly spaced, and its values between the edges of the chart."""
    values = [point.value for point in series.points]
    least, span = min(values), max(values) - min(values)
    across, down = (WIDTH - 2 * MARGIN) / (len(values) - 1), HEIGHT - 2 * MARGIN
    for number, point in enumerate(series.points):
        shown = format_value(series.key.quantity, point.value)
        yield _Mark(
            x=round(MARGIN + number * across, 1),
            y=round(HEIGHT - MARGIN - down * (point.value - least) / span, 1),
            label=f"{name_point(point)}: {shown}",
        )
