"""The plots of a report as parts of its page: heading, explanation and SVG markup."""

import re
from collections.abc import Mapping

from markupsafe import Markup

from attnbench.report import plots
from attnbench.report.series import Series

__all__ = ["PLOTS", "inline", "inline_figures"]

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

# Largest width of a drawing on the page, in CSS pixels per point of the SVG file's width. With this factor, a drawing
# with two panels fills the page.
PX_PER_PT = 1.65


def inline_figures(series: Series, files: Mapping[str, bytes]) -> list[tuple[str, str, Markup]]:
    """Return heading, explanation and drawing of each plot of a series whose drawing is in ``files``."""
    return [
        (title, reading, inline(files[f"{name}{series.suffix}.svg"].decode(), f"{name}{series.suffix}"))
        for name, title, reading in PLOTS
        if f"{name}{series.suffix}.svg" in files
    ]


def inline(svg: str, name: str) -> Markup:
    """Convert the text of an SVG file into markup that can be embedded in the page.

    The XML prologue is removed, ``name`` is put before every id, and the colours become those of the page.

    matplotlib escapes every text that it draws, so names from run files cannot insert markup into the page.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # Without a largest width, a drawing with one panel would be stretched to the width of a drawing with two panels.
    drawing = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', _limit_width, drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = drawing.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for colour, variable in ((plots.INK, "--ink"), (plots.MUTED, "--soft"), (plots.RULE, "--axis")):
        drawing = drawing.replace(colour, f"var({variable})")
    return Markup(drawing)  # noqa: S704  # made by matplotlib, see above


def _limit_width(opening: re.Match[str]) -> str:
    return f'{opening[1]} role="img" style="max-width:{float(opening[2]) * PX_PER_PT:.0f}px"'
