"""Tests of figures: what they show and name, that texts from runs stay texts, and that their bytes are reproducible."""

import base64
import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attnbench.report import tables
from attnbench.report.decisions import collect_decisions
from attnbench.report.figures.contenders import describe_colours, find_contenders, find_looks
from attnbench.report.figures.drawing import SeriesFigures
from attnbench.report.figures.forest_figure import sketch_forest
from attnbench.report.figures.labels import LONGEST, clean, make_labels, measure_width, wrap
from attnbench.report.figures.memory_figure import sketch_memory
from attnbench.report.figures.rate_figure import sketch_rate
from attnbench.report.figures.ratio_figure import sketch_ratio
from attnbench.report.figures.series_figures import draw_figures
from attnbench.report.figures.shrinking import shrink
from attnbench.report.figures.style import BACKGROUNDS, COLOURS, DARK, INK, MARKERS, OTHERS, Look, choose_looks
from attnbench.report.figures.svg_files import read_size
from attnbench.report.figures.time_figure import sketch_time
from attnbench.report.page import make_environment
from attnbench.report.series import Place, Series
from attnbench.report.tables import INCONCLUSIVE

Vector = NDArray[np.float64]
REFERENCE = "torch_mha"
PLACE = Place(machine="some-cpu", device="cpu", dtype="float32", threads=2)
# Times as multiples of the reference's time, at each of three lengths.
RATIOS = {"quick": (0.5, 0.8, 1.25), "near": (1.0, 0.8, 1.0), "naive_loop": (39.0, 42.0, 3.0)}
LENGTHS = (64, 128, 256)
# Form of the cases, and the id of the case of a length.
FORM = "multihead/B1.E256.H4/bias/mask=none/regime=plain/seed=0"
CASE = "multihead/B1.L{0}.S{0}.E256.H4/bias/mask=none/regime=plain/seed=0/float32/cpu/inference"
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


def make_timings(ratios: Mapping[str, Sequence[float]] = RATIOS, **changes: object) -> pd.DataFrame:
    """Make timings of one pass: the reference takes 1 ms at length 64 and grows with the length."""
    rows = [
        {
            "implementation": name, "case": CASE.format(length), "pass": "forward", "length": length, "counted": 7,
            "of": 7, "median_ns": value * length / 64 * 1e6,
            "low_ns": value * length / 64 * 0.9e6, "high_ns": value * length / 64 * 1.1e6, "processes": 7,
            "measure": "wall", "state": "" if name == REFERENCE else "faster" if value < 1 else "slower",
            "ratio": value, "ratio_low": value * 0.99, "ratio_high": value * 1.01, "gflop_per_s": 50 / value,
            "share": 0.5 / value, "bound": "product", "run": "one",
        }
        for name, values in {REFERENCE: (1.0,) * 3, **ratios}.items()
        for length, value in zip(LENGTHS, values, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(tables.TIMINGS)).assign(**changes)


def make_series(timings: pd.DataFrame | None = None, *, place: Place = PLACE, suffix: str = "") -> Series:
    """Make a series of these timings, in which every timed call has a peak of memory."""
    timed = make_timings() if timings is None else timings
    memory = timed[["implementation", "case", "pass", "length", "run"]].assign(peak_bytes=timed["length"] * 4096)
    untimed = pd.DataFrame(columns=list(tables.UNTIMED))
    return Series(
        place=place, form=FORM, reference=REFERENCE, suffix=suffix, timings=timed, memory=memory,
        untimed=untimed, kernels=pd.DataFrame(), growths=pd.DataFrame(),
    )  # fmt: skip


def find_contenders_of(series: list[Series]) -> list[str]:
    """Find contenders as a report of these series does."""
    return find_contenders(series, collect_decisions([], [], series, {}).entries)


def draw_all(series: list[Series]) -> list[SeriesFigures]:
    """Draw the figures of these series; the contenders are those of ``RATIOS``."""
    looks = find_looks(series, collect_decisions([], [], [make_series()], {}).entries)
    return draw_figures(series, looks, "These are in colour.")


def make_looks(series: Series) -> dict[str, Look]:
    """Choose looks as a report of this series does."""
    return choose_looks(set(series.timings["implementation"]), {REFERENCE}, find_contenders_of([series]))


def read_texts(svg: bytes) -> list[str]:
    """Return the texts that an SVG file draws; a file that is no XML fails."""
    root = ET.fromstring(svg)  # made by the test
    assert not [one for one in root.iter() if one.tag.endswith(("script", "foreignObject"))]
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]
    return [one.text or "" for one in root.iter() if one.tag.endswith("}text")]


def draw_one(timings: pd.DataFrame, name: str) -> tuple[list[str], tuple[str, ...]]:
    """Draw one figure of a series, and return the texts in it and the notes about it."""
    (drawn,) = draw_all([make_series(timings)])
    (drawing,) = [one for one in drawn.drawings if one.stem == name]
    return read_texts(drawing.svg), drawing.notes


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


def test_a_drawing_has_the_colours_of_a_dark_page() -> None:
    """The style of an SVG file replaces every light colour that it draws with the dark one."""
    svg = draw_all([make_series()])[0].drawings[0].svg.decode()
    light, dark = svg.partition("@media (prefers-color-scheme: dark)")[::2]
    used = [colour for colour in DARK if colour in light]
    assert len(used) >= 5
    assert all(DARK[colour] in dark for colour in used)


# Contenders


def test_the_figures_say_which_implementations_are_in_colour() -> None:
    """The first figure says what the colours mean, which is the same in all figures; without times, it is memory."""
    (drawn,) = draw_all([make_series()])
    readings = {one.stem: one.reading for one in drawn.drawings}
    assert [name for name, text in readings.items() if "These are in colour." in text] == ["time"]
    memory = make_series()
    (only,) = draw_all([replace(memory, timings=memory.timings.iloc[:0])])
    assert ["These are in colour." in one.reading for one in only.drawings] == [True]


def describe_colours_of(series: Series) -> str:
    """Return what a report of one series says about its colours."""
    return describe_colours([series], collect_decisions([], [], [series], {}).entries)


def test_what_is_in_colour_follows_from_the_answers() -> None:
    """Names of answers, else what was seen ahead; where nothing is ahead of the reference, nothing is in colour."""
    assert describe_colours_of(make_series()) == (
        'Black: the reference. In colour: what the answers of "What to use here" name most often. Grey: the others.'
    )
    open_ = make_timings().assign(state=INCONCLUSIVE, ratio=math.nan, seen_ratio=0.5)
    assert find_contenders_of([make_series(open_)]) != []
    assert "what was seen ahead of the reference most often, which is no recommendation" in describe_colours_of(
        make_series(open_)
    )
    behind = make_series(open_.assign(seen_ratio=1.5))
    assert find_contenders_of([behind]) == []
    assert describe_colours_of(behind).endswith("No other implementation is named ahead of it, so all others are grey.")


def test_times_of_disturbed_calls_are_grey_signs_beside_the_curves() -> None:
    """A + has the legend entry "disturbed"; the curve leaves the value out, and no sentence calls it the fastest."""
    timed = make_timings()
    timed["calls"] = [
        "disturbed" if row["implementation"] == "quick" and row["length"] == 128 else "clean"
        for row in timed.to_dict("records")
    ]
    series = make_series(timed)
    sketch = sketch_time(series, make_looks(series), "")
    assert sketch.figure
    signs = [line for line in sketch.figure.axes[0].lines if line.get_marker() == "+"]
    assert [list(line.get_xdata()) for line in signs] == [[128]]
    curves = [line.get_ydata() for line in sketch.figure.axes[0].lines if line.get_marker() != "+"]
    assert sum(int(np.isnan(np.asarray(values, float)).sum()) for values in curves) == 1
    assert "disturbed" in {text.get_text() for text in sketch.figure.legends[0].get_texts()}
    assert any(note.startswith("A grey + is disturbed") for note in sketch.notes)
    every = sketch_time(make_series(timed.assign(calls="disturbed")), make_looks(series), "")
    assert every.shows == "All calls were disturbed."


def test_contenders_win_or_tie_somewhere() -> None:
    """Winners and those whose interval overlaps the winner's are contenders; what is never near is grey."""
    assert set(find_contenders_of([make_series()])) == {"quick", "near"}
    looks = make_looks(make_series())
    assert [name for name, look in looks.items() if not look.contends] == ["naive_loop"]


def test_contenders_are_few_and_the_best_of_each_series_is_one() -> None:
    """Of ten that tie, five are contenders; the winner of another series is one as well."""
    many = make_series(make_timings({f"tie{number}": (0.5,) * 3 for number in range(10)}))
    other = make_series(make_timings({"alone": (0.5,) * 3}), place=PLACE._replace(threads=1))
    assert len(find_contenders_of([many])) == 5
    assert "alone" in find_contenders_of([many] * 9 + [other])


def test_without_times_those_with_the_least_memory_are_contenders() -> None:
    """If nothing was timed, peaks of memory decide."""
    series = make_series()
    series.memory.loc[series.memory["implementation"] == "near", "peak_bytes"] = 1
    untimed = make_series(series.timings)
    memory_only = Series(
        place=PLACE, form="", reference=REFERENCE, suffix="", timings=untimed.timings.iloc[:0], memory=series.memory,
        untimed=untimed.untimed, kernels=pd.DataFrame(), growths=pd.DataFrame(),
    )  # fmt: skip
    assert find_contenders_of([memory_only]) == ["near"]
    (drawn,) = draw_all([memory_only])
    assert [one.stem for one in drawn.drawings] == ["memory"]
    titles = "Time of a call, Ratio to torch_mha, Ratio at each length, Rate against the measured ceiling"
    assert drawn.missing == (f"Not drawn: {titles}. Reason: nothing was timed.",)


# Texts


@pytest.mark.parametrize("count", [1, 2])
def test_hostile_names_are_drawn_as_text(count: int) -> None:
    """A name is drawn as one cleaned line in every figure, whatever it holds, with one series and with two.

    The machine of a series has each of these names in turn.
    """
    timings = make_timings(dict.fromkeys(HOSTILE, (0.5, 0.6, 0.7)))
    places = [PLACE._replace(machine=" ".join(HOSTILE), threads=number) for number in range(count)]
    every = draw_all([make_series(timings, place=place, suffix=f"-{place.threads}") for place in places])
    for drawing in (one for drawn in every for one in drawn.drawings):
        assert set(HOSTILE.values()) <= set(read_texts(drawing.svg))
        assert clean(drawing.shows, 100_000) == drawing.shows
        assert "<script" not in drawing.svg.decode()
    assert [len(drawn.drawings) for drawn in every] == [5] * count


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


def test_figures_on_the_page_are_images(tmp_path: Path) -> None:
    """The page embeds an SVG as the address of an image, with its size and a text for readers who do not see it."""
    hostile = '"><img src=x onerror=alert(1)>'
    (drawn, _) = draw_all([make_series(place=PLACE._replace(machine=hostile, threads=n)) for n in (1, 2)])
    page = make_environment().get_template("figures.html.j2").render(figures=drawn)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert "<svg" not in page
    assert "style=" not in page
    assert page.count("<img ") == len(drawn.drawings) == page.count(' src="data:image/svg+xml;base64,')
    assert html.escape(hostile) in page.replace("&#34;", "&quot;")
    encoded = re.findall(r"base64,([^\"]+)\"", page)
    assert [base64.b64decode(one) for one in encoded] == [one.svg for one in drawn.drawings]
    for one in drawn.drawings:
        assert f'width="{one.width}" height="{one.height}"' in page
        assert len(one.shows) > 40
        assert one.reading.endswith(".")


# What figures show


def test_the_same_data_give_the_same_bytes() -> None:
    """Two drawings of one series are equal byte for byte."""
    one, other = (draw_all([make_series()])[0].drawings for _ in range(2))
    assert [(a.svg, a.png) for a in one] == [(b.svg, b.png) for b in other]


def test_no_figure_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SVG and the PNG file are written from one figure object, each once."""
    saved: list[tuple[int, str]] = []
    write = Figure.savefig

    def count(self: Figure, *arguments: object, **options: object) -> None:
        saved.append((id(self), str(options["format"])))
        write(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", count)
    kept = draw_all([make_series()])
    assert len(saved) == len(set(saved)) == 2 * len(kept[0].drawings) == 10
    assert len({figure for figure, _ in saved}) == 5


def test_what_lies_outside_is_named_at_the_edge() -> None:
    """Ratios above 4 and below ¼ do not stretch the axis; an arrow, the name and the ratio stand at the edge."""
    timings = make_timings({**RATIOS, "rocket": (0.1, 0.5, 0.5)})
    texts, _ = draw_one(timings, "ratio")
    assert "▲ naive_loop 39 to 42" in texts
    assert "▼ rocket 0.10" in texts
    assert {"¼", "½", "1", "2", "4"} <= set(texts)
    series = make_series(timings)
    figure = sketch_ratio(series, make_looks(series), "").figure
    assert figure
    low, high = figure.axes[0].get_ylim()
    assert 0.1 < low < 0.25 < 4 < high < 10


def test_many_outside_are_counted() -> None:
    """At most five names stand at an edge; the last one counts the others."""
    texts, _ = draw_one(make_timings({f"slow{number}": (10.0 + number,) * 3 for number in range(9)}), "ratio")
    assert [text for text in texts if text.startswith("▲")] == [
        "▲ slow0 10", "▲ slow1 11", "▲ slow2 12", "▲ slow3 13", "▲ 5 others",
    ]  # fmt: skip


def test_ratios_close_to_one_fill_the_panel() -> None:
    """The axis is no wider than the ratios need, and has at least three ticks."""
    series = make_series(make_timings({"near": (0.95, 0.96, 0.97)}))
    figure = sketch_ratio(series, make_looks(series), "").figure
    assert figure
    low, high = figure.axes[0].get_ylim()
    assert 0.85 < low < high < 1.15
    assert sum(low <= tick <= high for tick in figure.axes[0].get_yticks()) >= 3


def test_crossovers_are_named_or_denied() -> None:
    """The figure of ratios names what is faster at one length and slower at another, or says that nothing is."""
    _, notes = draw_one(make_timings(), "ratio")
    crossing = "quick (forward: faster at L = 64, 128, slower at L = 256)"
    assert notes[0].startswith("Crossovers: ")
    assert crossing in notes[0]
    _, notes = draw_one(make_timings({"slow": (2.0,) * 3}), "ratio")
    assert notes[0].startswith("No crossover: ")
    undecided = make_timings({"odd": (0.99, 1.0, 1.02)}).assign(state="unknown")
    _, notes = draw_one(undecided, "ratio")
    assert notes[0].startswith("No decided crossover: odd has points on both sides of the line")


def test_the_reference_stays_on_the_grid() -> None:
    """Points of contenders stand on both sides of the reference, which is at the length itself."""
    series = make_series()
    looks = {name: look for name, look in make_looks(series).items() if look.contends}
    series = replace(series, timings=series.timings[series.timings["implementation"].isin(looks)])
    figure = sketch_ratio(series, looks, "").figure
    assert figure
    drawn = {str(line.get_color()): line for line in figure.axes[0].lines if len(np.atleast_1d(line.get_xdata())) == 3}
    firsts = {name: float(np.atleast_1d(drawn[looks[name].colour].get_xdata())[0]) for name in looks}
    assert firsts[REFERENCE] == 64
    assert sorted(name for name in looks if abs(firsts[name] - 64) > 0.5) == ["near", "quick"]
    assert (firsts["near"] - 64) * (firsts["quick"] - 64) < 0


def test_a_forest_is_as_wide_as_the_contenders_need() -> None:
    """The axis has the contenders and at least ±5 %; a slow implementation in grey does not widen it."""
    series = make_series(make_timings({"quick": (0.98,) * 3, "naive_loop": (39.0,) * 3}))
    sketch = sketch_forest(series, make_looks(series), "")
    assert sketch.figure
    low, high = sketch.figure.axes[0].get_xlim()
    assert low == pytest.approx(0.98 * 0.99 / 1.04)
    assert high == pytest.approx(1.05)
    assert any(note.startswith("▸ ") for note in sketch.notes)
    assert not any("◂" in note or "hollow" in note for note in sketch.notes)


def test_marks_are_explained_only_where_they_are() -> None:
    """Without points outside of a panel and without a verdict that is unknown, nothing is said of their marks."""
    (plain,) = draw_all([make_series(make_timings({"quick": (0.9,) * 3}))])
    told = " ".join(text for one in plain.drawings for text in (one.reading, *one.notes))
    assert not set("▲▼◂▸×") & set(told.replace("L × L", ""))
    _, notes = draw_one(make_timings(), "ratio")
    assert "▲ names implementations above the panel." in notes
    assert not any("▼" in note for note in notes)


def test_the_legend_has_the_same_order_in_all_figures_of_a_report() -> None:
    """References come first, then contenders and others, each by name."""
    series = make_series(make_timings({**RATIOS, "slower": (5.0,) * 3}))
    looks = make_looks(series)
    orders = []
    for sketch in (sketch_time, sketch_ratio, sketch_rate, sketch_memory):
        figure = sketch(series, looks, "").figure
        assert figure
        orders.append([text.get_text().removesuffix(" (reference)") for text in figure.legends[0].get_texts()][:5])
    assert orders == [list(looks)] * 4


def test_no_text_of_a_figure_is_small() -> None:
    """The smallest text is 11 pixels high: 8.25 points."""
    for drawing in draw_all([make_series()])[0].drawings:
        sizes = [float(size) for size in re.findall(r"font(?:-size)?:[^;\"]*?([\d.]+)px", drawing.svg.decode())]
        assert sizes
        assert min(sizes) >= 8.25


def test_sentences_on_reading_a_figure_are_said_once() -> None:
    """The second series has the figures, but not the sentences that the first one has."""
    first, second = draw_all([make_series(place=PLACE._replace(threads=n), suffix=f"-{n}") for n in (1, 2)])
    assert all(one.reading for one in first.drawings)
    assert not any(one.reading for one in second.drawings)


def test_a_forest_has_a_row_for_each_implementation_the_fastest_first() -> None:
    """A panel lists ratios with their intervals; one process has no interval, and a disturbed call no ratio."""
    timings = make_timings({"quick": (0.5,) * 3, "once": (0.6,) * 3, "lost": (0.7,) * 3})
    timings.loc[timings["implementation"] == "once", "processes"] = 1
    timings.loc[timings["implementation"] == "lost", "state"] = "inconclusive"
    texts, notes = draw_one(timings, "forest")
    assert notes == ()
    start = texts.index("quick")
    assert texts[start : start + 8] == [
        "quick", "0.500 [0.495 to 0.505]", "once", "0.600, 1 process, no interval", REFERENCE, "1 (reference)",
        "lost", "inconclusive",
    ]  # fmt: skip
    assert [text for text in texts if "L =" in text] == [f"forward, L = {length}" for length in LENGTHS]
    _, notes = draw_one(timings, "ratio")
    assert "Left out, inconclusive: 3 comparisons of lost." in notes
    assert "1 process, no interval: 3 points of once." in notes


def test_a_tall_forest_is_folded_and_bounded() -> None:
    """Of 60 lengths ten have a panel, and of 41 implementations 24 a row, also the reference; both are said."""
    frames = [
        make_timings({f"slow{number:02}": (0.5 + number / 100,) * 3 for number in range(40)}).assign(
            length=64 * (step + 1)
        )
        for step in range(60)
    ]
    series = make_series(pd.concat(frames, ignore_index=True))
    sketch = sketch_forest(series, make_looks(series), "")
    assert sketch.figure
    assert len(sketch.figure.axes) == 10
    assert "forward: 10 of 60 lengths; timings.csv has all." in sketch.notes
    assert any(note.startswith("Up to 17 implementations of a length are left out") for note in sketch.notes)
    assert all("1 (reference)" in {text.get_text() for text in axes.texts} for axes in sketch.figure.axes)
    curves = sketch_time(series, make_looks(series), "")
    assert curves.figure
    assert any(note.startswith("Without 22 slower implementations") for note in curves.notes)
    assert sum(bool(label.get_text()) for label in curves.figure.axes[0].get_xticklabels()) <= 9


def test_the_ceiling_is_a_line_above_the_rates() -> None:
    """The rate at the ceiling is the rate divided by its share; without a ceiling the figure says so."""
    series = make_series()
    figure = sketch_rate(series, make_looks(series), "").figure
    assert figure
    (ceiling,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert set(np.round(np.asarray(ceiling.get_ydata(), dtype=float), 6)) == {100.0}
    texts, notes = draw_one(make_timings(), "rate")
    assert "ceiling of the machine" in texts
    assert notes == ()
    texts, notes = draw_one(make_timings(share=float("nan")), "rate")
    assert "ceiling of the machine" not in texts
    assert notes == ("Without the ceiling, which was not measured in this run.",)


def test_a_curve_that_ends_at_the_work_limit_is_marked() -> None:
    """A cross stands at the end of such a curve, and the legend explains it."""
    timed = make_timings()
    series = make_series(timed[timed["length"] < 256])
    series.untimed.loc[0] = {
        "implementation": "naive_loop", "length": 256, "pass": "forward", "reason": "over (--work-limit)", "case": "",
        "run": "one",
    }  # fmt: skip
    sketch = sketch_time(series, make_looks(series), "")
    assert sketch.figure
    assert sum(line.get_marker() == "x" for line in sketch.figure.axes[0].lines) == 1
    assert any(note.startswith("× at the end of a curve") for note in sketch.notes)
    assert "ends at the work limit" in {text.get_text() for text in sketch.figure.legends[0].get_texts()}


def test_a_lone_cross_has_its_name() -> None:
    """An implementation with one point and a cross is named beside it, since it has no curve."""
    timed = make_timings()
    series = make_series(timed[(timed["implementation"] != "naive_loop") | (timed["length"] == 64)])
    series.untimed.loc[0] = {
        "implementation": "naive_loop", "length": 256, "pass": "forward", "reason": "over (--work-limit)", "case": "",
        "run": "one",
    }  # fmt: skip
    figure = sketch_time(series, make_looks(series), "").figure
    assert figure
    assert [text.get_text() for text in figure.axes[0].texts] == ["naive_loop"]


@pytest.mark.parametrize("count", [1, 2])
def test_impossible_numbers_are_left_out_and_named(count: int) -> None:
    """A time or ratio that is no number above 0 is not drawn; figures say whose it is, and no figure fails."""
    wrong = {"zero": 0.0, "negative": -1.0, "missing": float("nan"), "endless": float("inf")}
    timings = make_timings({"quick": (0.5,) * 3, **dict.fromkeys(wrong, (1.0,) * 3)})
    columns = ["median_ns", "low_ns", "high_ns", "ratio", "ratio_low", "ratio_high", "gflop_per_s"]
    for name, value in wrong.items():
        timings.loc[timings["implementation"] == name, columns] = value
    for drawn in draw_all([make_series(timings, suffix=f"-{number}") for number in range(count)]):
        for one in drawn.drawings[:4]:
            assert not set(wrong) & set(read_texts(one.svg))
        note = "12 calls of zero, negative, missing and endless."
        assert [note in " ".join(one.notes) for one in drawn.drawings] == [True, True, False, True, False]


def test_all_impossible_is_said_and_not_drawn() -> None:
    """If no number can be drawn, there is no figure of it and a sentence says why."""
    timings = make_timings(median_ns=0.0, ratio=0.0, gflop_per_s=0.0)
    (drawn,) = draw_all([make_series(timings)])
    assert [one.stem for one in drawn.drawings] == ["memory"]
    assert "no call has a time above 0" in " ".join(drawn.missing)


def test_contradicting_rows_are_drawn_once() -> None:
    """Of two rows about one call the later is drawn, and the figure says that one is left out."""
    timings = make_timings()
    again = timings[timings["implementation"] == "quick"].assign(median_ns=7e6)
    _, notes = draw_one(pd.concat([timings, again], ignore_index=True), "time")
    assert any("3 calls of quick" in note for note in notes)


def test_peaks_of_zero_are_named() -> None:
    """A call that needs no memory above its inputs has no place on a logarithmic axis; the figure names it."""
    series = make_series()
    series.memory.loc[series.memory["implementation"] == "near", "peak_bytes"] = 0
    sketch = sketch_memory(series, make_looks(series), "")
    assert sketch.notes == ("Left out, peak of 0 or measured twice: 3 calls of near.",)


def test_a_figure_names_its_place_where_there_are_several() -> None:
    """With two series, drawing and description have the place, and the form where the place is the same."""
    (alone,) = draw_all([make_series()])
    assert alone.drawings[0].title == "Time of a call"
    places = [PLACE, PLACE._replace(threads=1)]
    label = "some-cpu, cpu, float32, 1 thread"
    both = draw_all([make_series(place=place, suffix=f"-{place.threads}") for place in places])
    for drawing in both[1].drawings:
        assert drawing.shows.startswith(f"{drawing.title}: {label}. ")
        assert label in read_texts(drawing.svg)
        assert drawing.stem.endswith("-1")
    same = draw_all([make_series(), make_series()])
    place = "some-cpu, cpu, float32, 2 threads: batch 1, 4 heads, width 256"
    assert same[0].drawings[0].shows.startswith(f"Time of a call: {place}")


def test_series_beyond_the_limit_have_no_figures() -> None:
    """Only the series that are marked as drawn have figures."""
    first, second = draw_all([make_series(), replace(make_series(), drawn=False)])
    assert first.drawings
    assert not second.drawings


def test_the_size_of_a_drawing_is_read_in_pixels() -> None:
    """Points become CSS pixels; a file without a size in points has none."""
    assert read_size(b'<?xml version="1.0"?><svg height="75pt" width="150pt">') == (200, 100)
    assert read_size(b'<svg width="100%">') == read_size(b"no drawing") == (0, 0)
