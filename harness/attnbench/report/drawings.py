"""The plots of a report as parts of its page: heading, explanation and the address of an image."""

import base64
from collections.abc import Mapping

from attnbench.report.series import Series

__all__ = ["PLOTS", "embed", "list_figures"]

# Plots of a series: the first word of the file name, the heading and the explanation of each.
PLOTS = (
    (
        "time",
        "Time",
        "Both axes are logarithmic, so a straight line is a power law: time that grows with L² rises two decades for "
        "each decade of length. Bars are confidence intervals of the median.",
    ),
    (
        "memory",
        "Peak memory",
        "Peak bytes of a call above its inputs. If a curve is twice as steep as another one, its implementation stores "
        "the L × L matrix of weights, and the implementation of the flatter curve does not.",
    ),
    (
        "speed",
        "Speed relative to the reference",
        "Points above the line at 1 are faster than the reference, points below the line slower. An interval that "
        "crosses the line decides neither. Calls with an inconclusive speed verdict are left out.",
    ),
)


def list_figures(series: Series, files: Mapping[str, bytes]) -> list[tuple[str, str, str]]:
    """Return heading, explanation and address of the drawing of each plot of a series that is in ``files``."""
    return [
        (title, reading, embed(files[f"{name}{series.suffix}.svg"]))
        for name, title, reading in PLOTS
        if f"{name}{series.suffix}.svg" in files
    ]


def embed(svg: bytes) -> str:
    """Return the address of an image that contains an SVG file; a browser shows it, and runs nothing in it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
