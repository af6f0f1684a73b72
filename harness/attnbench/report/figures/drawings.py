"""The figures of a report: ratio, time and peak memory of each table against length, as files and on the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.summary import SummaryTable
from attnbench.report.case_forms import describe_form
from attnbench.report.figures.curves import Curves, draw_curves
from attnbench.report.figures.labels import clean
from attnbench.report.figures.points import Measure, Panel, list_panels, measure_peak, measure_ratio, measure_time
from attnbench.report.figures.saving import draw
from attnbench.report.figures.style import Look
from attnbench.report.figures.svg_files import encode, read_size
from attnbench.report.numbers import format_bytes, format_digits, format_seconds
from attnbench.report.slugs import make_slug
from attnbench.words.figures import FIGURES, Kind, describe_ends
from attnbench.words.summary import describe_place

__all__ = ["Drawing", "draw_table", "draw_tables"]

# Most tables with figures. A table of 14 implementations with 70 calls takes two seconds of processor time and 250 kB
# of the page. ``MOST_CALLS``: most calls in the figures of all tables; those of the first one are always drawn.
MOST_TABLES, MOST_CALLS = 4, 600
# Longest label of a place in a figure, in characters; it takes two lines.
LONGEST_PLACE = 200
# Narrowest figure that is wide, in CSS pixels: one with two panels.
WIDE = 900
KINDS: Mapping[Kind, Measure] = {"ratio": measure_ratio, "time": measure_time, "memory": measure_peak}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure as its files and texts."""

    kind: Kind
    # Place and form of the table.
    place: str
    # Name of the figure's files, without ``.svg`` or ``.png``.
    stem: str
    title: str
    reading: str
    # What the figure shows, for readers who do not see it.
    shows: str
    svg: bytes
    png: bytes
    # ``uri``: data URI of the SVG file. ``width``, ``height``: size of the figure, in CSS pixels.
    uri: str
    width: int
    height: int

    @property
    def wide(self) -> bool:
        """Whether the figure has panels side by side, so that a narrow page must scroll it."""
        return self.width >= WIDE


def draw_tables(tables: Sequence[SummaryTable], looks: Mapping[str, Look]) -> Iterator[Drawing]:
    """Yield the figures of the first tables that have any values."""
    measured = [table for table in tables if any(row.cells for row in table.rows)]
    calls = 0
    for place, table in enumerate(measured[:MOST_TABLES]):
        calls += sum(len(row.cells) for row in table.rows)
        if place == 0 or calls <= MOST_CALLS:
            yield from draw_table(table, looks, several=len(measured) > 1)


def draw_table(table: SummaryTable, looks: Mapping[str, Look], *, several: bool = False) -> Iterator[Drawing]:
    """Yield the figures of a table; ``several``: the report has others, so that the place is in names and figures."""
    label = f"{describe_place(table.place)}: {describe_form(table.form)}"
    suffix = "-" + make_slug(*map(str, table.place), table.form) if several else ""
    for kind, measure in KINDS.items():
        if panels := list(list_panels(table, measure)):
            text = FIGURES[kind]
            place = clean(label, LONGEST_PLACE)
            curves = Curves(
                kind=kind, panels=panels, looks=looks, baseline=table.baseline,
                label=text.label.format(baseline=clean(table.baseline)), place=place if several else "",
            )  # fmt: skip
            yield _save(curves, f"{kind}{suffix}", place)


def _save(curves: Curves, stem: str, place: str) -> Drawing:
    """Draw a figure as SVG and as PNG."""
    figure, text = draw_curves(curves), FIGURES[curves.kind]
    svg = draw(figure, "svg")
    width, height = read_size(svg)
    title = text.title.format(baseline=clean(curves.baseline))
    return Drawing(
        kind=curves.kind, place=place, stem=stem, title=title,
        reading=text.reading.format(baseline=clean(curves.baseline)),
        shows=f"{title}, {place}. {_describe(curves)}",
        svg=svg, png=draw(figure, "png"), uri=encode(svg), width=width, height=height,
    )  # fmt: skip


def _describe(curves: Curves) -> str:
    formats = {"time": lambda ns: format_seconds(ns / 1e9), "memory": format_bytes, "ratio": format_digits}
    return describe_ends(map(_list_ends, curves.panels), formats[curves.kind])


def _list_ends(panel: Panel) -> tuple[str, int, list[tuple[str, float]]]:
    """Return the values of a panel at its longest length."""
    length = max(point.length for point in panel.points)
    values = [(clean(name), curve[-1].value) for name, curve in panel.curves.items() if curve[-1].length == length]
    return panel.title, length, values
