"""Tests of crossover maps in a report: page, Markdown, CSV and figures, and runs that have no map or an odd one."""

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Result
from attnbench.report import write
from attnbench.report.content import collect_content
from attnbench.report.figures.marks import make_mark, make_rules
from attnbench.report.figures.style import COLOURS, DARK, MARKERS, PLAIN_MARKERS, choose_looks
from attnbench.report.maps import MOST_CELLS, MOST_MAPS, Maps
from timed_runs import REFERENCE, case_of, check, store, time_calls

LENGTHS, BATCHES = (64, 128, 256), (1, 4, 16)
HOSTILE = "<script>alert(1)</script>\"'&|\x00\\1/../\u202e"


def make_case(length: int, batch: int, *, heads: int = 12, mode: str = "inference", mask: str = "none") -> str:
    """Return the id of a case with heads of width 64."""
    return case_of(length, mode, sizes=f"E{heads * 64}.H{heads}", mask=mask).replace("B1.", f"B{batch}.", 1)


def time_grid(
    ratio: Callable[[int, int], float], *, name: str = "quick", heads: int = 12, mode: str = "inference",
    processes: int = 9, run: str = "run-1",
) -> list[Result]:  # fmt: skip
    """Return results for each length and batch; ``ratio`` is that of ``name``, by length and batch."""
    return [
        time_calls(who, value, case=make_case(length, batch, heads=heads, mode=mode), processes=processes, run=run)
        for length, batch in product(LENGTHS, BATCHES)
        for who, value in ((REFERENCE, 1.0), (name, ratio(length, batch)))
    ]


def find(*runs: StoredRun) -> Maps:
    """Return the maps of a report on these runs."""
    return collect_content(runs).maps


def list_words(maps: Maps) -> list[list[str]]:
    """Return the words of the cells of the only map, row by row."""
    (table,) = maps.shown
    return [[cell.choice.words for cell in cells] for _, cells in table.rows]


def read_csv(folder: Path) -> list[dict[str, str]]:
    """Return the rows of maps.csv."""
    return list(csv.DictReader((folder / "maps.csv").read_text("utf-8").splitlines()))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a map with winners, a tie, the reference, and cells without a time and without a plan."""
    results = [
        one for one in time_grid(lambda length, batch: 0.5 if batch < 16 else 1.5) if one.case != make_case(256, 16)
    ]
    results += [time_calls("even", 0.5 if batch == 1 else 0.9, case=make_case(64, batch)) for batch in (1, 4)]
    middle = make_case(128, 4)
    results = [
        replace(one, timing=None, memory=None, untimed="too slow <here>") if one.case == middle else one
        for one in results
    ]
    return write([store(results)], tmp_path_factory.mktemp("mixed"))


def test_a_run_over_two_sizes_has_a_map(mixed: Path) -> None:
    """Page and maps.csv have the same cells: winner and time, a tie, the reference, not timed, no plan."""
    rows = {(row["row"], row["column"]): row for row in read_csv(mixed.parent)}
    answers = {pair: (row["answer"], row["implementations"]) for pair, row in rows.items()}
    assert answers == {
        ("1", "64"): ("tie", "quick; even"), ("1", "128"): ("winner", "quick"), ("1", "256"): ("winner", "quick"),
        ("4", "64"): ("winner", "quick"), ("4", "128"): ("", ""), ("4", "256"): ("winner", "quick"),
        ("16", "64"): ("reference", REFERENCE), ("16", "128"): ("reference", REFERENCE),
    }  # fmt: skip
    middle = rows["4", "128"]
    assert (middle["reason"], middle["case"], middle["machine"]) == ("too slow <here>", make_case(128, 4), "some-cpu")
    first = rows["1", "128"]
    assert (first["row_axis"], first["column_axis"], first["shape"]) == ("batch", "length", "12 heads, width 768")
    assert (float(first["gain"]), first["processes"]) == (2.0, "9")
    page = mixed.read_text("utf-8")
    for words in ("Map, forward: length × batch; 12 heads, width 768", "tie: quick, even", "too slow &lt;here&gt;"):
        assert words in page
    assert 'href="maps.csv"' in page


def test_answers_and_gains_are_those_of_the_decisions(mixed: Path) -> None:
    """Each timed cell of maps.csv has the numbers of the row of decisions.csv about the same length and batch."""
    decisions = list(csv.DictReader((mixed.parent / "decisions.csv").read_text("utf-8").splitlines()))
    known = {(row["queries"], re.findall(r"B(\d+)", row["form"])[0]): row for row in decisions}
    timed = [row for row in read_csv(mixed.parent) if row["answer"]]
    assert len(timed) == len(known) == 7
    for row in timed:
        for column in ("answer", "implementations", "gain", "gain_low", "gain_high", "peak_bytes"):
            assert row[column] == known[row["column"], row["row"]][column]


def test_one_size_that_varies_is_no_map(tmp_path: Path) -> None:
    """A profile over lengths has the table alone, and no file of maps."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length in LENGTHS
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
    ]
    text = write([store(results)], tmp_path).read_text("utf-8")
    assert "Map, " not in text
    assert "maps.csv" not in text
    assert not list(tmp_path.glob("map*"))


def test_undecided_cells_say_why() -> None:
    """With too few processes no cell is decided; with one implementation there is nothing to decide."""
    (table,) = find(store(time_grid(lambda *_: 0.5, processes=3))).shown
    assert {(cell.choice.words, cell.names) for cell in table.cells} == {(f"{REFERENCE} for now", (REFERENCE,))}
    assert {cell.choice.notes for cell in table.cells} == {
        ("not decided: quick 0.500× the time; 3 processes are too few for a verdict",)
    }
    assert table.remark == "None of 9 cells are decided."
    (alone,) = find(store([one for one in time_grid(lambda *_: 0.5) if one.implementation == REFERENCE])).shown
    assert {cell.choice.words for cell in alone.cells} == {f"only {REFERENCE}"}


def test_what_conforms_is_named_instead_of_what_is_not_known_to() -> None:
    """A cell has the mark and the time of the fastest that conforms, as the table of decisions has."""
    results = [*time_grid(lambda *_: 0.5), *time_grid(lambda *_: 0.8, name="even")]
    results += [check(name, case_of(length)) for name in (REFERENCE, "even") for length in range(2, 25)]
    (table,) = find(store(results)).shown
    assert {(cell.names, *cell.choice.times, *cell.choice.notes) for cell in table.cells} == {
        (
            ("even",),
            ("even", "0.800× the time [0.800 to 0.800]"),
            "as fast as even or faster, but without a verdict on conformance: quick 0.500× the time [0.500 to 0.500]",
        )
    }


def test_one_that_may_be_as_fast_is_named_in_the_cell() -> None:
    """A winner whose lead over another is not decided says so."""
    results = time_grid(lambda *_: 0.9)
    results += [time_calls("wide", 0.8, 1.0, 1.2, case=make_case(*pair)) for pair in product(LENGTHS, BATCHES)]
    (table,) = find(store(results)).shown
    assert {cell.choice.notes[-1] for cell in table.cells} == {
        "not decided: whether wide (1.00× the time [0.800 to 1.20]) is as fast as quick"
    }


def test_a_later_run_of_a_cell_is_the_one_that_counts() -> None:
    """Two runs contradict each other on the same cells: the later one is in the map, as in all of the report."""
    runs = [store(time_grid(lambda *_: 0.5)), store(time_grid(lambda *_: 2.0, run="run-2"), run="run-2")]
    assert list_words(find(*runs)) == [[REFERENCE] * 3] * 3


def test_passes_and_a_third_size_have_labelled_maps() -> None:
    """Each pass and each number of heads has a map, whose title says so."""
    results = [
        one
        for heads in (16, 12)
        for mode in ("inference", "train")
        for one in time_grid(lambda *_: 0.5, heads=heads, mode=mode)
    ]
    maps = find(store(results))
    assert [table.title for table in maps.shown] == [
        "Map, forward: length × batch; 12 heads, width 768",
        "Map, forward: length × batch; 16 heads, width 1024",
        "Map, forward+backward: length × batch; 12 heads, width 768",
        "Map, forward+backward: length × batch; 16 heads, width 1024",
    ]
    assert len({table.stem for table in maps.shown}) == 4


def test_heads_are_rows_and_the_width_of_a_head_is_equal() -> None:
    """A map over heads names what is equal: the batch and the width of a head."""
    results = [
        time_calls(name, ratio, case=make_case(length, 1, heads=heads))
        for length, heads, (name, ratio) in product((64, 128), (4, 12), ((REFERENCE, 1.0), ("quick", 0.5)))
    ]
    (table,) = find(store(results)).shown
    assert table.title == "Map, forward: length × heads; batch 1, head width 64"
    assert [label for label, _ in table.rows] == ["4 heads", "12 heads"]


def test_more_maps_than_the_page_shows_are_counted(tmp_path: Path) -> None:
    """The page has six maps; maps.csv has all of them, and the page says so. A huge map is in maps.csv only."""
    heads = range(1, MOST_MAPS + 3)
    results = [one for number in heads for one in time_grid(lambda *_: 0.5, heads=number)]
    text = write([store(results)], tmp_path).read_text("utf-8")
    assert text.count('<table class="map">') == MOST_MAPS
    assert "2 further maps are in <a" in text
    assert len({row["map"] for row in read_csv(tmp_path)}) == MOST_MAPS + 2
    assert len(list(tmp_path.glob("map-*.svg"))) == MOST_MAPS
    wide = [
        time_calls(name, case=make_case(length, batch), processes=1)
        for length, batch, name in product(range(1, MOST_CELLS // 2 + 2), (1, 2), (REFERENCE, "quick"))
    ]
    maps = find(store(wide))
    assert (len(maps.every), maps.shown, maps.left_out) == (1, (), "1 further map is in maps.csv.")


@pytest.mark.parametrize("machines", [1, 2])
def test_hostile_names_are_text_and_files_have_plain_names(machines: int, tmp_path: Path) -> None:
    """Machine, implementation and reason with markup are text in every file of the map; names of files are slugs."""
    runs = []
    for number in range(1, machines + 1):
        results = time_grid(lambda *_: 0.5, name=HOSTILE, run=f"run-{number}")
        lost = make_case(64, 1)
        results = [
            replace(one, timing=None, memory=None, untimed=HOSTILE) if one.case == lost else one for one in results
        ]
        runs.append(store(results, run=f"run-{number}", machine=HOSTILE * number))
    text = write(runs, tmp_path).read_text("utf-8")
    assert "<script>alert" not in text
    maps = text[text.index('<table class="map">') :]
    assert "&lt;script&gt;alert" in maps
    names = [path.name for path in tmp_path.glob("map*")]
    assert len(names) == 2 * machines + 1
    assert all(re.fullmatch(r"[a-z0-9-]+\.(svg|png|csv)", name) for name in names)
    for path in tmp_path.glob("map*.svg"):
        assert not [one for one in ET.fromstring(path.read_bytes()).iter() if one.tag.endswith("script")]


def test_the_figure_has_the_words_and_the_bytes_are_reproducible(mixed: Path, tmp_path: Path) -> None:
    """The SVG file names each winner with its time, the tie and what was not measured; equal runs give equal bytes."""
    svg = (mixed.parent / "map.svg").read_bytes()
    texts = [one.text for one in ET.fromstring(svg).iter() if one.tag.endswith("}text")]
    assert texts.count("quick") == 5
    assert texts.count(REFERENCE) == 2
    for words in (
        "tie:",
        "even",
        "0.500× the time [0.500 to 0.500]",
        "not timed",
        "not measured",
        "batch 16",
        "length 256",
    ):
        assert words in texts
    assert (mixed.parent / "map.png").read_bytes().startswith(b"\x89PNG")
    results = time_grid(lambda *_: 0.5)
    for folder in ("one", "two"):
        write([store(results)], tmp_path / folder)
    for name in ("map.svg", "map.png", "maps.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_marks_have_the_markers_and_colours_of_the_figures() -> None:
    """Contenders differ in marker or colour; each class has a colour for light and for dark pages."""
    names = [f"name {number}" for number in range(8)]
    looks = choose_looks([*names, "other"], {REFERENCE}, names)
    marks = {name: make_mark(look) for name, look in looks.items()}
    assert len({(mark.path, mark.name) for mark in marks.values()}) == 10
    assert [marks[name].filled for name in (REFERENCE, "name 0", "other")] == [True, True, False]
    assert all(re.fullmatch(r"M[-0-9. LQCZM]+", mark.path) for mark in marks.values())
    for marker in {*MARKERS, *PLAIN_MARKERS}:
        assert make_mark(replace(looks["name 0"], marker=marker)).path
    light, dark = make_rules().split("@media")
    for colour in COLOURS:
        assert f"--look: {colour};" in light
        assert f"--look: {DARK[colour]};" in dark


# In a browser


def test_a_tie_has_the_markers_of_all_its_names(browser: Any, mixed: Path) -> None:
    """A winner has a cell in its colour with its marker, a tie the markers of its names, and no colour of one."""
    page = browser.open(mixed).page
    cells = page.locator(".map tbody td")
    assert [cell.locator("svg").count() for cell in cells.all()] == [2, 1, 1, 1, 0, 1, 1, 1, 0]
    colours = [cell.evaluate("one => getComputedStyle(one).backgroundColor") for cell in cells.all()]
    assert colours[1] == colours[2] == colours[3]
    assert len({colours[0], colours[1], colours[4], colours[6]}) == 4
    paths = [cell.locator("path").first.get_attribute("d") for cell in (cells.nth(1), cells.nth(6))]
    assert paths[0] != paths[1]


@pytest.mark.parametrize("width", [390, 1440])
def test_a_wide_map_scrolls_in_its_box_and_keeps_its_labels(browser: Any, tmp_path: Path, width: int) -> None:
    """With long names and many lengths the page is as wide as the window; the labels of the rows stay in sight."""
    results = [
        time_calls(name, ratio, case=make_case(length, batch))
        for length, batch in product(range(64, 76), BATCHES)
        for name, ratio in ((REFERENCE, 1.0), ("an_implementation_with_a_very_long_name_" * 3, 0.5))
    ]
    opened = browser.open(write([store(results)], tmp_path), width=width)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(".scroll:has(> .map)")
    assert box.evaluate("one => one.scrollWidth > one.clientWidth && one.tabIndex === 0")
    label = page.locator(".map tbody th").first
    before = label.bounding_box()["x"]
    box.evaluate("one => { one.scrollLeft = 400; }")
    assert label.bounding_box()["x"] == pytest.approx(before, abs=3)
    assert opened.messages == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_a_map(browser: Any, mixed: Path, scheme: str) -> None:
    """Text on the colours of the cells has enough contrast, in light and in dark."""
    page = browser.open(mixed, color_scheme=scheme).page
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate('axe.run(".map", {resultTypes: ["violations"]})')["violations"]
    assert [one["id"] for one in found if one["impact"] in {"serious", "critical"}] == []


def test_a_map_is_printed_with_all_columns(browser: Any, mixed: Path) -> None:
    """On paper nothing scrolls, and each mark is there in the colour for white paper."""
    page = browser.open(mixed, color_scheme="dark").page
    page.emulate_media(media="print")
    box = page.locator(".scroll:has(> .map)")
    assert box.evaluate("one => getComputedStyle(one).overflow") == "visible"
    fills = page.locator(".map path").evaluate_all("all => all.map(one => getComputedStyle(one).fill)")
    assert not {
        fill
        for fill in fills
        if fill in {f"rgb({', '.join(str(int(d[i : i + 2], 16)) for i in (1, 3, 5))})" for d in DARK.values()}
    }
