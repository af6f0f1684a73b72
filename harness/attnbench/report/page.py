"""The report as one HTML file that needs no other: styles and plots stand inside it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from attnbench.report import plots
from attnbench.report.content import LEGEND, Content
from attnbench.report.listings import listings
from attnbench.report.numbers import bytes_text, digits, interval_text, ratio_text, thousands
from attnbench.report.sentences import INCONCLUSIVE, machine_text, under_times
from attnbench.report.series import Series
from attnbench.report.tables import reference

__all__ = ["MEASURES", "PLOTS", "Grid", "environment", "grids", "inline", "render"]

# Name of a plot, its heading, and how it is read.
PLOTS = (
    (
        "time",
        "Time",
        "Both axes are logarithmic, so a straight line is a power law: time that grows with L² rises two decades for "
        "each decade of length. Bars are intervals of the median.",
    ),
    (
        "memory",
        "Peak memory",
        "Bytes above the inputs at the highest point of a call; a curve that climbs twice as steeply as another holds "
        "the L × L matrix of weights, the flatter one does not.",
    ),
    (
        "speed",
        "Speed relative to the reference",
        "Above the line at 1 is faster than the reference, below it slower; an interval that crosses the line "
        "does not tell which. Calls whose contest is inconclusive are left out.",
    ),
)


# Width of a drawing at its largest, in pixels for each of its points: two panels fill the page.
PX_PER_PT = 1.65


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number of a table: its heading, the frame and column that it is read from, and what stands under it."""

    title: str
    frame: str
    column: str


MEASURES = (
    Measure(title="Time of a call, ms", frame="timings", column="median_ns"),
    Measure(title="From end to end, ms", frame="timings", column="end_to_end_ns"),
    Measure(title="Graph replayed on the device, ms", frame="timings", column="graph_ns"),
    Measure(title="Rate, Gflop/s", frame="timings", column="gflop_per_s"),
    Measure(title="Building and preparing, ms", frame="timings", column="build_ns"),
    Measure(title="First call, ms", frame="timings", column="first_call_ns"),
    Measure(title="Peak memory above the inputs, MiB", frame="memory", column="peak_bytes"),
    Measure(
        title="Of the peak neither output nor gradient, MiB",
        frame="memory",
        column="workspace_bytes",
    ),
    Measure(title="Saved for backward, MiB", frame="memory", column="saved_bytes"),
    Measure(title="Physical peak, MiB", frame="memory", column="physical_bytes"),
    Measure(title="Taken from the device, MiB", frame="memory", column="reserved_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Table of one measure in one pass: implementations by lengths; a cell is a number and the lines under it."""

    title: str
    pass_: str
    lengths: tuple[int, ...]
    rows: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def render(content: Content, files: Mapping[str, bytes]) -> str:
    """Page of a report whose plots are among the files."""
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            content=content,
            legend=LEGEND,
            machine=machine_text,
            under_times=under_times,
            listings=listings,
            measured=[(one, _figures(one, files), list(grids(one))) for one in content.series],
        )
    )


def environment() -> jinja2.Environment:
    """Where templates are found, and what they may call; every text is escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("attnbench.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["breakable"] = _breakable
    made.filters["unbroken"] = _unbroken
    return made


def grids(series: Series) -> list[Grid]:
    """Tables of a series, those without a number left out."""
    frames = {"timings": series.timings, "memory": series.memory}
    made = []
    for measure in MEASURES:
        frame = frames[measure.frame]
        frame = frame[frame[measure.column].notna()]
        made += [_grid(measure, str(name), part) for name, part in frame.groupby("pass")]
    return made


def _grid(measure: Measure, name: str, part: pd.DataFrame) -> Grid:
    lengths = tuple(sorted(int(length) for length in part["length"].unique()))
    rows = []
    for implementation, own in part.groupby("implementation", sort=False):
        by_length: dict[int, Any] = {row["length"]: row for _, row in own.iterrows()}
        rows.append((str(implementation), tuple(_cell(measure, by_length.get(n)) for n in lengths)))
    title = measure.title
    if measure.column == "median_ns" and (part["measure"] == "device").any():
        title = "Time of a call on the device, ms"
    return Grid(title=title, pass_=name, lengths=lengths, rows=tuple(rows))


def _cell(measure: Measure, row: Any) -> tuple[str, ...]:
    """Number of a table, and under it what it is worth: interval and contest, share of the ceiling, or exact bytes."""
    if row is None:
        return ("–",)
    value = row[measure.column]
    if measure.frame == "memory":
        if measure.column != "physical_bytes":
            return digits(value / 2**20), f"{thousands(int(value))} B"
        outside = row["outside_bytes"]
        told = [] if pd.isna(outside) else [f"{bytes_text(outside)} outside the allocator"]
        return digits(value / 2**20), *told
    if measure.column == "gflop_per_s":
        share = [] if pd.isna(row["share"]) else [f"{row['share'] * 100:.0f} % of the {row['bound']} ceiling"]
        # No number that other work had a part in stands without saying so.
        return digits(value), *share, *([INCONCLUSIVE] if row["state"] == INCONCLUSIVE else [])
    if measure.column != "median_ns":
        return (digits(value / 1e6),)
    interval = interval_text(row["low_ns"] / 1e6, row["high_ns"] / 1e6)
    if row["device"] != "cpu" and row["measure"] == "wall":
        interval += ", from end to end"
    if not row["state"] or row["implementation"] == reference(row["case"]):
        return digits(value / 1e6), interval
    if pd.isna(row["ratio"]):
        return digits(value / 1e6), interval, row["state"]
    ratio = f"{ratio_text(row['ratio'])} ({interval_text(row['ratio_low'], row['ratio_high'])})"
    return digits(value / 1e6), interval, ratio, row["state"]


def _figures(series: Series, files: Mapping[str, bytes]) -> list[tuple[str, str, Markup]]:
    """Heading, reading and drawing of each plot that was made."""
    return [
        (title, reading, inline(files[f"{name}{series.suffix}.svg"].decode(), f"{name}{series.suffix}"))
        for name, title, reading in PLOTS
        if f"{name}{series.suffix}.svg" in files
    ]


def inline(svg: str, name: str) -> Markup:
    """Drawing to stand inside a page: no prologue, names of its own, and the page's colours and fonts for text.

    matplotlib escapes every text that it draws, so nothing in it is markup of anybody else.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    # A drawing of one panel would otherwise be stretched to the width of two.
    drawing = re.sub(r'(<svg[^>]*?) width="([\d.]+)pt"', _limited, drawing, count=1)
    drawing = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", drawing, count=1)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = drawing.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    for colour, variable in ((plots.INK, "--ink"), (plots.MUTED, "--soft"), (plots.RULE, "--axis")):
        drawing = drawing.replace(colour, f"var({variable})")
    return Markup(drawing)  # noqa: S704  # made by matplotlib, see above


def _limited(opening: re.Match[str]) -> str:
    return f'{opening[1]} role="img" style="max-width:{float(opening[2]) * PX_PER_PT:.0f}px"'


def _breakable(text: str) -> Markup:
    """Long name that may be broken after a slash, a dot or an underscore."""
    return Markup("<wbr>").join(re.split(r"(?<=[/._+])", text))


def _unbroken(text: str) -> str:
    """Text in which no number is parted from the word that it counts."""
    return re.sub(r"(\d) (?=[a-z0-9])", "\\1\u00a0", text)
