"""Tests of crossover maps in a report: which sizes have one, what their cells say, their file and their figure."""

import csv
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

from attnbench.records.types import Result
from attnbench.report import collect, write
from attnbench.report.maps import MOST_CELLS, MOST_MAPS, Maps
from timed_runs import REFERENCE, case_of, store, time_calls

LENGTHS, BATCHES = (64, 128, 256), (1, 4, 16)


def make_case(length: int, batch: int, *, heads: int = 12, mode: str = "inference", mask: str = "none") -> str:
    """Return the id of a case with heads of width 64."""
    return case_of(length, mode, sizes=f"E{heads * 64}.H{heads}", mask=mask).replace("B1.", f"B{batch}.", 1)


def time_grid(
    ratio: Callable[[int, int], float], *, heads: int = 12, mode: str = "inference", mask: str = "none"
) -> list[Result]:
    """Return results for each length and batch; ``ratio`` is that of "quick", by length and batch."""
    return [
        time_calls(who, value, case=make_case(length, batch, heads=heads, mode=mode, mask=mask))
        for length, batch in product(LENGTHS, BATCHES)
        for who, value in ((REFERENCE, 1.0), ("quick", ratio(length, batch)))
    ]


def find(*results: Result) -> Maps:
    """Return the maps of a report on a run."""
    return collect([store(results)]).maps


def test_a_run_over_two_sizes_has_a_map(tmp_path: Path) -> None:
    """Each cell has what to use, or why there is nothing; maps.csv has the same answers."""
    results = [one for one in time_grid(lambda _, batch: 0.5 if batch < 16 else 1.5) if one.case != make_case(256, 16)]
    middle = make_case(128, 4)
    results = [
        replace(one, timing=None, memory=None, untimed="too slow <here>") if one.case == middle else one
        for one in results
    ]
    (table,) = find(*results).shown
    assert table.columns == ("length 64", "length 128", "length 256")
    assert [label for label, _ in table.rows] == ["batch 1", "batch 4", "batch 16"]
    assert [[cell.name for cell in cells] for _, cells in table.rows] == [
        ["quick"] * 3, ["quick", "", "quick"], [REFERENCE, REFERENCE, ""],
    ]  # fmt: skip
    assert table.rows[1][1][1].reason == "too slow <here>"
    page = write([store(results)], tmp_path).read_text("utf-8")
    assert "too slow &lt;here&gt;" in page
    rows = {
        (row["row"], row["column"]): row
        for row in csv.DictReader((tmp_path / "maps.csv").read_text("utf-8").splitlines())
    }
    assert {pair: row["use"] for pair, row in rows.items()} == {
        ("1", "64"): "quick", ("1", "128"): "quick", ("1", "256"): "quick", ("4", "64"): "quick", ("4", "128"): "",
        ("4", "256"): "quick", ("16", "64"): REFERENCE, ("16", "128"): REFERENCE,
    }  # fmt: skip
    assert float(rows["1", "64"]["ratio"]) == 0.5


def test_one_size_that_varies_is_no_map(tmp_path: Path) -> None:
    """A profile over lengths alone has no map and no file of maps."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length in LENGTHS
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
    ]
    assert 'id="maps"' not in write([store(results)], tmp_path).read_text("utf-8")
    assert not list(tmp_path.glob("map*"))


def test_passes_and_a_third_size_have_maps_of_their_own() -> None:
    """Each pass and each number of heads has a map with a name of its own."""
    results = [
        one
        for heads in (16, 12)
        for mode in ("inference", "train")
        for one in time_grid(lambda *_: 0.5, heads=heads, mode=mode)
    ]
    shown = find(*results).shown
    assert [table.title.split(":")[0] for table in shown] == ["forward"] * 2 + ["forward+backward"] * 2
    assert len({table.stem for table in shown}) == 4


def test_maps_of_a_page_are_bounded() -> None:
    """Of many maps the first are shown, and of large ones none; all are in maps.csv."""
    results = [
        one
        for heads in (1, 2, 4, 8)
        for mode in ("inference", "train")
        for one in time_grid(lambda *_: 0.5, heads=heads, mode=mode)
    ]
    maps = find(*results)
    assert (len(maps.every), len(maps.shown)) == (8, MOST_MAPS)
    side = int(MOST_CELLS**0.5) + 1
    large = [
        time_calls(REFERENCE, case=make_case(64 + length, 1 + batch)) for length in range(side) for batch in range(side)
    ]
    maps = find(*large)
    assert (len(maps.every), len(maps.shown)) == (1, 0)
