"""Tests of figures: what they show and name, that texts from runs stay texts, and that their bytes are reproducible."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from numpy.typing import NDArray

from attnbench.analysis.answers import Answer
from attnbench.analysis.stats import Estimate
from attnbench.analysis.summary import Column, Conformance, Place, SpeedCell, SummaryRow, SummaryTable
from attnbench.report.figures import drawings
from attnbench.report.figures.curves import LEAST, MOST, Curves, draw_curves, find_range
from attnbench.report.figures.drawings import Drawing, draw_table, draw_tables
from attnbench.report.figures.labels import LONGEST, clean, make_labels, measure_width, wrap
from attnbench.report.figures.looks import find_looks
from attnbench.report.figures.points import list_panels, measure_ratio, measure_time
from attnbench.report.figures.shrinking import shrink
from attnbench.report.figures.style import BACKGROUNDS, COLOURS, DARK, INK, MARKERS, OTHERS, choose_looks
from attnbench.report.figures.svg_files import read_size

Vector = NDArray[np.float64]
REFERENCE = "torch_mha"
PLACE = Place(machine="some-cpu", device="cpu", dtype="float32", threads=2)
# Times as multiples of the reference's time, at each of three lengths.
RATIOS = {"quick": (0.5, 0.8, 1.25), "near": (1.0, 0.8, 1.0), "naive_loop": (39.0, 42.0, 3.0)}
LENGTHS = (64, 128, 256)
FORM = "multihead/B1.E256.H4/bias/mask=none/regime=plain/seed=0"
# From sRGB to XYZ. Source: IEC 61966-2-1.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# What readers without one kind of cone see, in linear sRGB. Source: Machado, Oliveira and Fernandes (2009), severity 1.
SIGHTS = {
    "all colours": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039],
    ]),
}  # fmt: skip
HOSTILE = {
    "$x$": "$x$",
    "</text><script>alert()": "</text><script>alert()",
    "a\x00b": "a\ufffdb",
    "\u202eabc\u200f": "\ufffdabc\ufffd",
    "x" * 10_000: f"{'x' * 14}…{'x' * 13}",
    "": "(no name)",
    "two\nlines\ttab": "two lines tab",
    "&amp; \"'<b>": "&amp; \"'<b>",
}


def estimate(value: float) -> Estimate:
    """Return an estimate with an interval of 10 % on both sides."""
    return Estimate(value=value, low=0.9 * value, high=1.1 * value, level=0.95, processes=7)


def make_table(ratios: Mapping[str, Sequence[float]] = RATIOS, *, place: Place = PLACE) -> SummaryTable:
    """Make a table of one pass; the reference takes 1 ms at length 64 and grows with the length."""
    columns = [Column(pass_="forward", mode="inference", queries=n, keys=n, case=str(n)) for n in LENGTHS]
    rows = []
    for name, values in {REFERENCE: (1.0,) * 3, **ratios}.items():
        cells = {
            column: SpeedCell(
                time_ns=estimate(ratio * column.keys / 64 * 1e6),
                ratio=None if name == REFERENCE else estimate(ratio),
                mark="baseline" if name == REFERENCE else "undecided",
                state="" if name == REFERENCE else "unknown",
                peak_bytes=column.keys * 4096,
                run="one",
            )
            for column, ratio in zip(columns, values, strict=True)
        }
        rows.append(SummaryRow(subject=name, conformance=Conformance(verdict="yes"), cells=cells))
    return SummaryTable(place=place, form=FORM, baseline=REFERENCE, columns=tuple(columns), rows=tuple(rows))


def disturb(table: SummaryTable, name: str) -> SummaryTable:
    """Make the comparisons of an implementation inconclusive."""
    rows = [
        replace(row, cells={column: replace(cell, state="inconclusive") for column, cell in row.cells.items()})
        if row.subject == name
        else row
        for row in table.rows
    ]
    return replace(table, rows=tuple(rows))


def draw_all(*tables: SummaryTable) -> list[Drawing]:
    """Draw the figures of these tables as a report does."""
    return list(draw_tables(tables, find_looks(tables)))


def read_texts(svg: bytes) -> list[str]:
    """Return the texts that an SVG file draws; a file that is no XML fails."""
    root = ET.fromstring(svg)  # made by the test
    assert not [one for one in root.iter() if one.tag.endswith(("script", "foreignObject"))]
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]
    return [one.text or "" for one in root.iter() if one.tag.endswith("}text")]


# Colours


def _linear(colour: str) -> Vector:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear: Vector) -> Vector:
    xyz = XYZ @ np.clip(linear, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(one: str, other: str) -> float:
    high, low = sorted((float((XYZ @ _linear(colour))[1]) for colour in (one, other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SIGHTS)
def test_contenders_are_told_apart_with_every_kind_of_colour_vision(sight: str, dark: bool) -> None:
    """Any two colours of contenders and of the reference are at least 13 apart in CIELAB, on a light and a dark page.

    The distance of two colours that are just told apart is about 2.3.
    """
    shown = [DARK[colour] if dark else colour for colour in (*COLOURS, INK)]
    points = [_lab(SIGHTS[sight] @ _linear(colour)) for colour in shown]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(points, 2)) >= 13


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_is_readable_on_its_page(dark: bool) -> None:
    """Every colour of a curve has a contrast of 3 with the page, as WCAG 1.4.11 asks of graphics."""
    for colour in (*COLOURS, INK, OTHERS):
        assert _contrast(DARK[colour] if dark else colour, BACKGROUNDS[dark]) >= 3, colour


def test_no_two_contenders_look_alike_even_in_grey() -> None:
    """Markers of the first eight contenders differ, so grey print tells them apart; colour and marker never repeat."""
    names = [f"name{number:02}" for number in range(40)]
    looks = choose_looks([*names, "grey"], {REFERENCE}, names)
    assert len({(look.colour, look.marker) for name, look in looks.items() if name != "grey"}) == 41
    assert len({looks[name].marker for name in names[: len(MARKERS)]} | {looks[REFERENCE].marker}) == len(MARKERS) + 1
    assert not looks["grey"].contends
    assert looks["grey"].colour == OTHERS


def test_labels_are_short_visible_and_differ() -> None:
    """A long name keeps both ends, a direction mark becomes visible, and labels that would be alike are numbered."""
    long = [f"{'a' * 40}{number}{'b' * 40}" for number in range(3)]
    labels = make_labels(long)
    assert len(set(labels.values())) == 3
    assert all(len(label) <= LONGEST + len(" (3)") for label in labels.values())
    assert clean("my_attention.py:" + "M" * 30 + "Attention").endswith("Attention")
    assert clean("\ud800\ufffe\u2066") == "\ufffd\ufffd\ufffd"
    assert clean(" \n ") == "(no name)"
    assert measure_width(["WWWW"], 9) > measure_width(["iiii"], 9)
    assert wrap("one two three", measure_width(["one two"], 9), 9) == ["one two", "three"]


def test_shrinking_changes_no_text() -> None:
    """Numbers and colours in a text stay as they are; coordinates lose digits below a hundredth of a point."""
    text = 'd="1.234567" fill: #1d2024 rotate(-0 1 2)'
    name = html.escape(text, quote=False)
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><defs><style>*{}</style></defs><g id="g1"><text x="1.234567" '
        f'style="fill: #1d2024" transform="rotate(-0 1 2)">{name}</text></g></svg>'
    )
    small = shrink(svg.encode(), dark=DARK, style="")
    assert read_texts(small) == [text]
    assert b'x="1.23"' in small
    assert b"transform" not in small
    assert f"@media (prefers-color-scheme: dark){{.s0{{fill: {DARK[INK]}}}}}".encode() in small


def test_the_size_of_a_drawing_is_read_in_pixels() -> None:
    """Points become CSS pixels; a file without a size in points has none."""
    assert read_size(b'<?xml version="1.0"?><svg height="75pt" width="150pt">') == (200, 100)
    assert read_size(b'<svg width="100%">') == read_size(b"no drawing") == (0, 0)


def test_a_table_has_three_figures_and_the_first_shows_ratios() -> None:
    """Ratio, time and memory are drawn; without times there is the memory alone, and nothing without values."""
    assert [one.stem for one in draw_all(make_table())] == ["ratio", "time", "memory"]
    table = make_table()
    rows = [
        replace(row, cells={column: SpeedCell(peak_bytes=cell.peak_bytes) for column, cell in row.cells.items()})
        for row in table.rows
    ]
    assert [one.stem for one in draw_all(replace(table, rows=tuple(rows)))] == ["memory"]
    assert draw_all(replace(table, rows=())) == []


def test_what_is_used_and_the_fastest_have_colours() -> None:
    """Answers come first, then the rows of the first table; the baseline has the colour of ink, others are grey."""
    many = make_table({f"name{number}": (1.0,) * 3 for number in range(10)})
    answered = replace(many, answers={many.columns[0]: Answer(name="name9", regret=0.0)})
    looks = find_looks([answered])
    assert looks[REFERENCE].colour == INK
    assert looks["name9"].contends
    assert [name for name, look in looks.items() if not look.contends] == ["name5", "name6", "name7", "name8"]


def test_disturbed_values_are_signs_beside_the_curves() -> None:
    """A disturbed time is a +, and no curve leads through it; its ratio is not drawn."""
    table = disturb(make_table(), "quick")
    panels = list(list_panels(table, measure_time))
    figure = draw_curves(
        Curves(kind="time", panels=panels, looks=find_looks([table]), baseline=REFERENCE, label="time")
    )
    signs = [list(line.get_xdata()) for line in figure.axes[0].lines if line.get_marker() == "+"]
    assert list(LENGTHS) in signs
    assert "quick" not in next(iter(list_panels(table, measure_ratio))).curves


def test_queries_that_differ_from_keys_have_a_panel_of_their_own() -> None:
    """Decoding steps do not lie on the curve of whole sequences."""
    table = make_table()
    column = Column(pass_="forward", mode="inference", queries=1, keys=512, case="1:512")
    rows = tuple(
        replace(row, cells={**row.cells, column: SpeedCell(time_ns=estimate(1e6), run="one")}) for row in table.rows
    )
    panels = list(list_panels(replace(table, columns=(*table.columns, column), rows=rows), measure_time))
    assert [panel.title for panel in panels] == ["forward", "forward, 1 query"]
    assert {point.length for point in panels[1].points} == {512}


def test_the_axis_of_ratios_is_bounded() -> None:
    """Ratios near 1 fill the panel; ratios far from 1 are marked at its edge."""
    near = list(list_panels(make_table({"near": (1.0,) * 3}), measure_ratio))
    far = list(list_panels(make_table(), measure_ratio))
    assert find_range(near)[1] < 1.2
    assert (find_range(far)[0] > LEAST, find_range(far)[1]) == (True, MOST)
    table = make_table()
    curves = Curves(kind="ratio", panels=far, looks=find_looks([table]), baseline=REFERENCE, label="ratio")
    markers = [line.get_marker() for line in draw_curves(curves).axes[0].lines]
    assert markers.count("^") >= 2


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_numbers_are_not_drawn(value: float) -> None:
    """A value that has no logarithm is no point."""
    table = make_table({"odd": (value, 1.0, 1.0)})
    panel = next(iter(list_panels(table, measure_time)))
    assert [point.length for point in panel.curves["odd"]] == [128, 256]
    assert len(draw_all(table)) == 3


@pytest.mark.parametrize("count", [1, 2])
def test_hostile_names_are_drawn_as_text(count: int) -> None:
    """A name is drawn as one cleaned line in every figure, whatever it holds, with one table and with two."""
    places = [PLACE._replace(machine=" ".join(HOSTILE), threads=number) for number in range(count)]
    every = draw_all(*(make_table(dict.fromkeys(HOSTILE, (0.5, 0.6, 0.7)), place=place) for place in places))
    assert len(every) == 3 * count
    for drawing in every:
        assert set(HOSTILE.values()) <= set(read_texts(drawing.svg))
        assert clean(drawing.shows, 100_000) == drawing.shows
        assert "<script" not in drawing.svg.decode()


def test_the_same_data_give_the_same_bytes_and_the_colours_of_a_dark_page() -> None:
    """Two drawings are equal byte for byte; the style of an SVG file replaces every light colour that it draws."""
    one, other = (draw_all(make_table()) for _ in range(2))
    assert [(a.svg, a.png) for a in one] == [(b.svg, b.png) for b in other]
    light, dark = one[0].svg.decode().partition("@media (prefers-color-scheme: dark)")[::2]
    used = [colour for colour in DARK if colour in light]
    assert len(used) >= 5
    assert all(DARK[colour] in dark for colour in used)


@pytest.mark.extended
def test_figures_of_a_report_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first table always has figures; of others only those within the limits, whose files name the place."""
    tables = [make_table(place=PLACE._replace(threads=number)) for number in range(6)]
    assert len(draw_all(*tables)) == 3 * drawings.MOST_TABLES
    assert len({one.stem for one in draw_all(*tables)}) == 3 * drawings.MOST_TABLES
    monkeypatch.setattr(drawings, "MOST_CALLS", 1)
    assert len(draw_all(*tables)) == 3


def test_a_figure_says_what_it_shows() -> None:
    """The text for readers who do not see a figure names the least and the most at the longest length."""
    ratio, time, memory = draw_table(make_table(), find_looks([make_table()]))
    assert "near" in ratio.shows
    assert all("forward at 256" in one.shows for one in (ratio, time, memory))
    assert not any(one.wide for one in (ratio, time, memory))
