"""Draws the figures of a report: time, ratio, rate and memory against length, and the ratios at each length."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.report.figures.drawing import TALLEST, Drawing, SeriesFigures, Sketch
from attnbench.report.figures.forest_figure import sketch_forest
from attnbench.report.figures.labels import clean
from attnbench.report.figures.map_figure import plot_map
from attnbench.report.figures.memory_figure import sketch_memory
from attnbench.report.figures.rate_figure import sketch_rate
from attnbench.report.figures.ratio_figure import sketch_ratio
from attnbench.report.figures.saving import draw
from attnbench.report.figures.style import Look
from attnbench.report.figures.svg_files import encode, read_size
from attnbench.report.figures.time_figure import sketch_time
from attnbench.report.maps import MapTable
from attnbench.report.series import Series

__all__ = ["draw_figures", "draw_maps"]

SKETCHES: tuple[Callable[[Series, Mapping[str, Look], str], Sketch], ...] = (
    sketch_time, sketch_ratio, sketch_forest, sketch_rate, sketch_memory,
)  # fmt: skip
# Longest label of a series in a figure, in characters; it takes two lines.
LONGEST_PLACE = 200
# Starts of the notes that explain a mark; such a note holds for every figure of a report.
EXPLAINED = ("×", "▲", "▼", "◂", "▸", "A hollow point")


def draw_maps(tables: Iterable[MapTable], looks: Mapping[str, Look]) -> dict[str, bytes]:
    """Draw each of these maps, and return the bytes of the files by name."""
    figures = {table.stem: plot_map(table, looks) for table in tables}
    return {f"{stem}.{kind}": draw(figure, kind) for stem, figure in figures.items() for kind in ("svg", "png")}


def draw_figures(series: Sequence[Series], looks: Mapping[str, Look], coloured: str) -> list[SeriesFigures]:
    """Draw the figures of each series that has any; ``coloured`` says which implementations are in colour."""
    places = Counter(one.place for one in series)
    made = []
    for one in series:
        label = one.heading if places[one.place] > 1 else one.place.label
        place = clean(label, LONGEST_PLACE) if len(series) > 1 else ""
        made.append(_draw_series(one, looks, place) if one.drawn else SeriesFigures(drawings=(), missing=()))
    return list(_tell_once(made, coloured))


def _tell_once(figures: Iterable[SeriesFigures], coloured: str) -> Iterator[SeriesFigures]:
    """Yield the figures; a sentence on how to read a figure is left out if an earlier figure has the same sentence.

    What is in colour, ``coloured``, is the same in all figures of a report, so that only the first one says it.
    """
    told: set[str] = set()
    for one in figures:
        drawings = []
        for drawing in one.drawings:
            sentences = (drawing.reading, *[coloured] * drawing.coloured)
            notes = tuple(note for note in drawing.notes if note not in told or not note.startswith(EXPLAINED))
            reading = " ".join(text for text in sentences if text not in told)
            drawings.append(replace(drawing, reading=reading, notes=notes))
            told |= {*sentences, *drawing.notes}
        yield replace(one, drawings=tuple(drawings))


def _draw_series(series: Series, looks: Mapping[str, Look], place: str) -> SeriesFigures:
    sketches = [sketch(series, looks, place) for sketch in SKETCHES]
    drawings = tuple(_save(sketch, series.suffix, place) for sketch in sketches if sketch.figure is not None)
    # If nothing was timed, this is the one reason of all figures but the figure of memory.
    timed = not series.timings.empty
    missing = [
        ("; ".join(one.notes) if timed or one.name == "memory" else "nothing was timed", one.title)
        for one in sketches
        if one.figure is None
    ]
    return SeriesFigures(drawings=drawings, missing=tuple(_explain_missing(missing)))


def _save(sketch: Sketch, suffix: str, place: str) -> Drawing:
    """Draw a sketch as SVG and as PNG."""
    assert sketch.figure is not None
    svg = draw(sketch.figure, "svg")
    width, height = read_size(svg)
    title = f"{sketch.title}: {place}" if place else sketch.title
    return Drawing(
        stem=sketch.name + suffix, title=sketch.title, reading=sketch.reading, coloured=sketch.coloured,
        folded=sketch.folded or height > TALLEST,
        shows=f"{title}. {sketch.shows}",
        notes=sketch.notes, svg=svg, png=draw(sketch.figure, "png"), uri=encode(svg), width=width, height=height,
    )  # fmt: skip


def _explain_missing(missing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each reason why figures are not drawn."""
    titles: dict[str, list[str]] = {}
    for why, title in missing:
        titles.setdefault(why, []).append(title)
    for why, own in titles.items():
        yield f"Not drawn: {', '.join(own)}. Reason: {why}."
