"""What a figure module returns, and what the page and the Markdown file show of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["TALLEST", "Drawing", "SeriesFigures", "Sketch"]

# Tallest figure that the page shows without unfolding, in CSS pixels: most of a window 900 pixels high.
TALLEST = 640
# Narrowest figure, in CSS pixels, that is ``wide``: one with two panels.
WIDE = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A figure that is not written yet, with its texts; without a figure, ``notes`` says why."""

    # Start of the names of the figure's files.
    name: str
    title: str
    # How to read the figure, in a sentence or two.
    reading: str = ""
    # Whether the page says at this figure which implementations are in colour.
    coloured: bool = False
    # Whether the page shows the figure only when it is unfolded, however small it is.
    folded: bool = False
    # What the figure shows, for readers who do not see it.
    shows: str = ""
    # What is left out of the figure, or noteworthy in it.
    notes: tuple[str, ...] = ()
    figure: "Figure | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure of the report as its files and texts."""

    # Name of the figure's files, without ``.svg`` or ``.png``.
    stem: str
    title: str
    # How to read the figure; empty if an earlier figure has the same sentences.
    reading: str
    # Whether ``reading`` may end with what is in colour.
    coloured: bool
    # Whether the page shows the figure only when it is unfolded.
    folded: bool
    shows: str
    notes: tuple[str, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesFigures:
    """The figures of one series, and sentences about the figures that are not drawn."""

    drawings: tuple[Drawing, ...]
    missing: tuple[str, ...]
