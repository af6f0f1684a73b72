"""Figure: a crossover map, with what to use and its bound in each cell."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnbench.report.figures.labels import clean, measure_width, wrap
from attnbench.report.figures.style import INK, MUTED, RULE, SETTINGS, SIZE, SMALL, Look
from attnbench.report.maps import MapTable, ShownCell

__all__ = ["plot_map"]

# Lengths in inches. ``LINE``: height of a line of text. ``PAD``: space around the text of a cell. ``SYMBOL``: width of
# a marker with its gap. ``HEAD``: height of the labels of the columns. ``APART``: space between two cells.
# ``NARROWEST``: smallest width of a cell.
LINE, PAD, SYMBOL, HEAD, APART, NARROWEST = 0.17, 0.09, 0.17, 0.26, 0.03, 1.2
# Longest title, in characters; it takes about three lines of a figure with three columns.
LONGEST_TITLE = 300
# Opacity of the colour of a cell; text on it has a contrast of at least 7.
TINT = 0.16
# Opacity of the colour of the baseline, which is dark.
GREY_TINT = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of text in a cell, with the look of its marker."""

    text: str
    look: Look | None = None
    bold: bool = False


def plot_map(table: MapTable, looks: Mapping[str, Look]) -> Figure:
    """Return the figure of a map; ``looks`` are those of the implementations."""
    grid = [[list(_list_lines(cell, looks)) for cell in cells] for _, cells in table.rows]
    with mpl.rc_context(SETTINGS):
        return _plot(table, grid, looks)


def _list_lines(cell: ShownCell, looks: Mapping[str, Look]) -> Iterator[_Line]:
    """Yield the lines of a cell: what to use with its marker, its ratio and its bound; or why there is no answer."""
    if not cell.name:
        yield _Line(text=clean(cell.reason))
        return
    yield _Line(text=clean(cell.name), look=looks.get(cell.name), bold=True)
    yield from (_Line(text=text) for text in (cell.ratio, cell.bound) if text)


def _plot(table: MapTable, grid: list[list[list[_Line]]], looks: Mapping[str, Look]) -> Figure:
    lines = [line for row in grid for cell in row for line in cell]
    # Bold text is wider by a tenth.
    texts = measure_width([line.text for line in lines], SIZE * 1.1) + SYMBOL
    columns = [clean(words) for words in table.columns]
    labels = [clean(label) for label, _ in table.rows]
    cell = max(NARROWEST, texts, measure_width(columns, SIZE)) + 2 * PAD
    left = measure_width(labels, SIZE) + 0.2
    heights = [max(map(len, row)) * LINE + 2 * PAD for row in grid]
    width = left + len(columns) * cell + 0.1
    title = wrap(clean(f"{table.place}. {table.title}", LONGEST_TITLE), width - 0.2, SIZE)
    above = len(title) * LINE + 0.1
    height = above + HEAD + sum(heights) + 0.1
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    # Coordinates are inches from the upper left corner.
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    for index, line in enumerate(title):
        axes.text(0.1, 0.13 + LINE * index, line, color=MUTED, va="center")
    for index, words in enumerate(columns):
        axes.text(left + index * cell + PAD, above + HEAD / 2, words, color=MUTED, va="center")
    top = above + HEAD
    for label, row, high, (_, cells) in zip(labels, grid, heights, table.rows, strict=True):
        axes.text(0.1, top + PAD + LINE / 2, label, color=MUTED, va="center")
        for index, (own, shown) in enumerate(zip(row, cells, strict=True)):
            look = looks.get(shown.name)
            _draw_cell(axes, own, (left + index * cell, top), (cell - APART, high - APART), look, shown)
        top += high
    return figure


def _draw_cell(
    axes: Axes, lines: list[_Line], corner: tuple[float, float], size: tuple[float, float], look: Look | None,
    shown: ShownCell,
) -> None:  # fmt: skip
    """Draw a cell: in the colour of what to use, and only as an outline without an answer."""
    if shown.name:
        fill, tint = (look.colour, TINT) if look and look.colour != INK else (INK, GREY_TINT)
        axes.add_patch(Rectangle(corner, *size, facecolor=fill, alpha=tint, linewidth=0))
    axes.add_patch(Rectangle(corner, *size, facecolor="none", edgecolor=RULE, linewidth=0.5))
    for index, line in enumerate(lines):
        x, y = corner[0] + PAD, corner[1] + PAD + LINE * (index + 0.5)
        if line.look is not None:
            fill = line.look.colour if line.look.contends else "none"
            axes.plot(
                x + 0.05, y, marker=line.look.marker, markersize=6, color=line.look.colour, markerfacecolor=fill,
                linestyle="",
            )  # fmt: skip
        colour = INK if shown.name else MUTED
        at = x + (SYMBOL if line.look is not None else 0)
        weight = "bold" if line.bold else "normal"
        axes.text(at, y, line.text, color=colour, va="center", fontsize=SIZE if line.bold else SMALL, fontweight=weight)
