"""The report as one self-contained HTML file: styles and plots are embedded."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from attnbench.report import plots
from attnbench.report.content import LEGEND, Content
from attnbench.report.listings import make_listings
from attnbench.report.numbers import format_bytes, format_digits, format_interval, format_ratio, format_thousands
from attnbench.report.sentences import INCONCLUSIVE, describe_machine, explain_times
from attnbench.report.series import Series
from attnbench.report.tables import find_reference

__all__ = ["MEASURES", "PLOTS", "Grid", "inline", "make_environment", "make_grids", "render"]

# Plots of a series. Each has a name, with which its file name begins, a heading and an explanation.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A quantity that the report tabulates: heading of its table, and the data frame and column that contain it."""

    title: str
    frame: str
    column: str


MEASURES = (
    Measure(title="Time of a call, ms", frame="timings", column="median_ns"),
    Measure(title="End to end, ms", frame="timings", column="end_to_end_ns"),
    Measure(title="Replay as a CUDA graph, ms", frame="timings", column="graph_ns"),
    Measure(title="Rate, Gflop/s", frame="timings", column="gflop_per_s"),
    Measure(title="Building and preparing, ms", frame="timings", column="build_ns"),
    Measure(title="First call, ms", frame="timings", column="first_call_ns"),
    Measure(title="Peak memory above the inputs, MiB", frame="memory", column="peak_bytes"),
    Measure(
        title="Workspace at the peak, neither output nor gradient, MiB",
        frame="memory",
        column="workspace_bytes",
    ),
    Measure(title="Saved for backward, MiB", frame="memory", column="saved_bytes"),
    Measure(title="Physical peak, MiB", frame="memory", column="physical_bytes"),
    Measure(title="Reserved on the device, MiB", frame="memory", column="reserved_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Table of one quantity in one pass: one row per implementation, one column per length.

    A cell is a tuple of lines: a number, and the explanations below this number.
    """

    title: str
    pass_: str
    lengths: tuple[int, ...]
    rows: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def render(content: Content, files: Mapping[str, bytes]) -> str:
    """Return the HTML page of a report; ``files`` maps file names to contents, among them the SVG plots."""
    return (
        make_environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            legend=LEGEND,
            machine=describe_machine,
            explain_times=explain_times,
            listings=make_listings,
            measured=[(one, _inline_figures(one, files), list(make_grids(one))) for one in content.series],
        )
    )


def make_environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates, with their filters; it escapes HTML markup in every text."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("attnbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = _add_breaks
    made.filters["unbroken"] = _join_numbers
    return made


def make_grids(series: Series) -> list[Grid]:
    """Return the tables of a series: one for each measure and pass with at least one value."""
    frames = {"timings": series.timings, "memory": series.memory}
    made = []
    for measure in MEASURES:
        frame = frames[measure.frame]
        frame = frame[frame[measure.column].notna()]
        made += [_make_grid(measure, str(name), part) for name, part in frame.groupby("pass")]
    return made


def _make_grid(measure: Measure, name: str, part: pd.DataFrame) -> Grid:
    lengths = tuple(sorted(int(length) for length in part["length"].unique()))
    rows = []
    for implementation, own in part.groupby("implementation", sort=False):
        by_length: dict[int, Any] = {row["length"]: row for _, row in own.iterrows()}
        rows.append((str(implementation), tuple(_format_cell(measure, by_length.get(n)) for n in lengths)))
    title = measure.title
    if measure.column == "median_ns" and (part["measure"] == "device").any():
        title = "Time of a call on the device, ms"
    return Grid(title=title, pass_=name, lengths=lengths, rows=tuple(rows))


def _format_cell(measure: Measure, row: Any) -> tuple[str, ...]:
    """Return a number and the lines below it: interval and speed verdict, percentage of the ceiling, or exact bytes."""
    if row is None:
        return ("–",)
    value = row[measure.column]
    if measure.frame == "memory":
        if measure.column != "physical_bytes":
            return format_digits(value / 2**20), f"{format_thousands(int(value))} B"
        outside = row["outside_bytes"]
        lines = [] if pd.isna(outside) else [f"{format_bytes(outside)} outside the allocator"]
        return format_digits(value / 2**20), *lines
    if measure.column == "gflop_per_s":
        share = [] if pd.isna(row["share"]) else [f"{row['share'] * 100:.0f} % of the {row['bound']} ceiling"]
        # A rate is marked as inconclusive if it was computed from a time with an inconclusive speed verdict.
        return format_digits(value), *share, *([INCONCLUSIVE] if row["state"] == INCONCLUSIVE else [])
    if measure.column != "median_ns":
        return (format_digits(value / 1e6),)
    interval = format_interval(row["low_ns"] / 1e6, row["high_ns"] / 1e6)
    if row["device"] != "cpu" and row["measure"] == "wall":
        interval += ", end to end"
    if not row["state"] or row["implementation"] == find_reference(row["case"]):
        return format_digits(value / 1e6), interval
    if pd.isna(row["ratio"]):
        return format_digits(value / 1e6), interval, row["state"]
    ratio = f"{format_ratio(row['ratio'])} ({format_interval(row['ratio_low'], row['ratio_high'])})"
    return format_digits(value / 1e6), interval, ratio, row["state"]


def _inline_figures(series: Series, files: Mapping[str, bytes]) -> list[tuple[str, str, Markup]]:
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


def _add_breaks(text: str) -> Markup:
    """Allow line breaks in a long name after a slash, a dot, an underscore or a plus sign."""
    return Markup("<wbr>").join(re.split(r"(?<=[/._+])", text))


def _join_numbers(text: str) -> str:
    """Prevent line breaks between a number and the word after it."""
    return re.sub(r"(\d) (?=[a-z0-9])", "\\1\u00a0", text)
