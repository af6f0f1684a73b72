"""Bytes of figures: SVG and PNG files that are equal for equal data."""

import io
import warnings
from typing import Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from attnbench.report.figures.shrinking import shrink
from attnbench.report.figures.style import DARK, SETTINGS

__all__ = ["draw"]

# Resolution of a PNG file, in dots per inch.
RESOLUTION = 110
# Fonts of an SVG file: those of the page. The layout has room for DejaVu Sans, the widest of them.
FONT = 'text{font-family: ui-sans-serif, system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important}'


def draw(figure: Figure, kind: Literal["svg", "png"]) -> bytes:
    """Return the bytes of an SVG or PNG file of the figure, without a date, which would differ each time.

    The SVG has the colours of a light page, and a style that replaces them on a dark one.
    """
    stream = io.BytesIO()
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        # A character that DejaVu Sans lacks is a box in a PNG. In an SVG the browser takes it from another font.
        warnings.filterwarnings("ignore", r"(?s)Glyph .* missing from", UserWarning)
        if kind == "svg":
            figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": "attnbench"})
        else:
            figure.savefig(stream, format="png", dpi=RESOLUTION, facecolor="white", metadata={"Software": "attnbench"})
    drawn = stream.getvalue()
    return shrink(drawn, dark=DARK, style=FONT) if kind == "svg" else drawn
