"""Tests of the tables of measures: their rows and values, what is marked, and what is kept if there are too many."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records.run_file import StoredRun
from attnbench.records.types import Ceiling, Finding, Memory, Result, Timing
from attnbench.report import collect, write
from attnbench.report.growth import fit_growth
from attnbench.report.measures import MeasureRow, Measures, MeasureTable, make_measures
from rendered_reports import render_page
from timed_runs import REFERENCE, case_of, check, store, time_calls


def make(stored: StoredRun, most: int = 1500) -> Measures:
    """Return the tables of measures of a run."""
    content = collect([stored])
    return make_measures(content.summary, content.runs, content.results, most=most)


def make_tables(*results: Result) -> tuple[MeasureTable, ...]:
    """Return the tables of measures of a run with these results."""
    return make(store(results)).tables


def find_row(name: str, *results: Result) -> MeasureRow:
    """Return the row of an implementation in the only table."""
    (table,) = make_tables(*results)
    (row,) = (row for row in table.rows if row.implementation == name)
    return row


def test_each_pass_has_a_table_whose_rows_are_implementations_and_lengths() -> None:
    """Two lengths of two implementations in two passes are two tables of four rows, by length and then by time."""
    made = make_tables(
        *(
            time_calls(name, ratio, case=case_of(length, mode))
            for mode in ("inference", "train")
            for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
            for length in (128, 64)
        )
    )
    assert [table.title.split(":")[0] for table in made] == ["forward", "forward+backward"]
    expected = [("quick", "64"), (REFERENCE, "64"), ("quick", "128"), (REFERENCE, "128")]
    assert [(row.implementation, row.length.text) for row in made[0].rows] == expected


def test_forms_have_tables_of_their_own() -> None:
    """Cases that differ in more than their length are never in one table."""
    made = make_tables(*(time_calls(REFERENCE, case=case_of(sizes=sizes)) for sizes in ("E256.H4", "E64.H2")))
    assert [len(table.rows) for table in made] == [1, 1]
    assert len({table.title for table in made}) == 2


def test_a_row_has_time_ratio_verdict_rate_and_memory() -> None:
    """Numbers have the interval in brackets; the verdict is a word; bytes are in MiB."""
    row = find_row("quick", time_calls(REFERENCE), time_calls("quick", 0.5))
    # Nine processes of 20 to 36 µs: the median is 28, and the interval reaches from the second to the eighth.
    assert {key: value.text for key, value in row.values.items()} == {
        "time": "0.0280 [0.0220 to 0.0340]",
        "processes": "9",
        "ratio": "0.500 [0.500 to 0.500]",
        "verdict": "faster",
        "rate": "35.7",
        "peak": "3.00",
        "workspace": "1.00",
        "saved": "0.500",
    }
    assert row.values["time"].number == pytest.approx(0.028)


def test_one_process_has_no_interval_and_no_verdict() -> None:
    """A time and a ratio of one process say so, instead of an interval of no width."""
    row = find_row("quick", time_calls(REFERENCE, processes=1), time_calls("quick", 0.5, processes=1))
    assert row.values["time"].text == "0.0200, 1 process, no interval"
    assert row.values["processes"].number == 1
    assert row.doubtful


def test_columns_without_a_value_are_left_out() -> None:
    """On a CPU there is no column of graphs; building has a column where it was measured."""
    own = time_calls("quick", 0.5)
    assert own.timing
    built = replace(own, timing=replace(own.timing, build_ns=(2_000_000,), first_call_ns=(3_000_000,)))
    (table,) = make_tables(time_calls(REFERENCE), built)
    keys = [key for key, *_ in table.columns]
    assert {"build", "first_call"} <= set(keys)
    assert not {"share", "graph", "end_to_end"} & set(keys)


def test_the_tables_can_be_sorted_and_filtered() -> None:
    """Heads say how their column sorts, and a cell whose text is no plain number has its value beside it."""
    text = render_page([store([time_calls(REFERENCE), time_calls("quick", 0.5)])])
    assert '<table class="measures sortable filterable">' in text
    assert '<th data-sort="number">time, ms</th>' in text
    assert '<td class="number" data-value="0.028">0.0280 [0.0220 to 0.0340]</td>' in text


def test_a_disturbed_time_is_marked_and_explained() -> None:
    """A time from disturbed calls has ≈ before it, no share of the ceiling, and a note below the table."""
    (table,) = make_tables(time_calls(REFERENCE, disturbed=True), time_calls("quick", 0.5, disturbed=True))
    assert all(row.disturbed and row.values["time"].text.startswith("≈ ") for row in table.rows)
    assert any(note.startswith("≈") for note in table.notes)


def test_times_with_equal_input_values_are_named() -> None:
    """A timing with fixed values is named below the table."""
    own = time_calls("kept", 0.5)
    assert own.timing
    (table,) = make_tables(time_calls(REFERENCE), replace(own, timing=replace(own.timing, values="fixed")))
    assert any("kept" in note for note in table.notes)


def test_shares_are_of_the_bound_and_withheld_above_the_ceiling() -> None:
    """A share names the rate that bounds it; where a call is faster than the ceiling allows, no share is shown."""

    def store_with(rate: float) -> StoredRun:
        ceiling = Ceiling(run="run-1", device="cpu", dtype="float32", threads=2, flop_per_s=rate, bytes_per_s=1e12)
        return replace(store([time_calls(REFERENCE), time_calls("quick", 0.5)]), ceilings=(ceiling,))

    (table,) = make(store_with(1e12)).tables
    assert {row.values["share"].text for row in table.rows} == {"2 % of product", "4 % of product"}
    (table,) = make(store_with(1e9)).tables
    assert all("share" not in row.values for row in table.rows)
    assert any("ceiling" in note for note in table.notes)


def test_of_many_rows_the_undecided_and_failing_are_kept_first() -> None:
    """Of more rows than the page has, doubtful ones are kept; the page has the numbers of both."""
    wrong = Finding(check="forward_parity", status="failed", reason="off")
    results = [time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("near", 0.9, 1.0, 1.1)]
    results += [time_calls("broken", 0.5), replace(check("broken", case_of(8)), findings=(wrong,))]
    measures = make(store(results), most=2)
    assert (measures.rows, measures.shown) == (4, 2)
    assert {row.implementation for table in measures.tables for row in table.rows} == {"near", "broken"}


def test_on_a_device_device_time_and_end_to_end_time_are_reported() -> None:
    """The time is that on the device; the wall time has a column of its own."""

    def time_on_device(name: str, factor: float) -> Result:
        own = time_calls(name, factor, case=case_of(device="cuda"))
        assert own.timing
        device = tuple(tuple(ns // 2 for ns in process) for process in own.timing.samples_ns)
        return replace(own, timing=replace(own.timing, device_ns=device, method="cuda_events"))

    row = find_row("quick", time_on_device(REFERENCE, 1.0), time_on_device("quick", 0.5))
    time, end_to_end = row.values["time"].number, row.values["end_to_end"].number
    assert time
    assert end_to_end == pytest.approx(2 * time)


def grow(lengths: Sequence[int], *, disturbed: bool = False) -> list[Result]:
    """Return calls of the reference whose time grows with the square of the length."""
    results = []
    for length in lengths:
        own = time_calls(REFERENCE, case=case_of(length), disturbed=disturbed)
        assert own.timing
        samples = tuple((length * length * 10 + p,) * 6 for p in range(9))
        timing = Timing(samples_ns=samples, waited_ns=samples if disturbed else (), cycles=own.timing.cycles, threads=2)
        memory = Memory(peak_bytes=length * 4096, threads=2, method="allocator")
        results.append(replace(own, timing=timing, memory=memory))
    return results


@pytest.mark.parametrize(
    ("lengths", "expected"), [((64, 128, 256, 512, 1024), {"time": 2, "peak memory": 1}), ((64, 128, 256, 512), {})]
)
def test_growth_needs_five_lengths(tmp_path: Path, lengths: tuple[int, ...], expected: dict[str, float]) -> None:
    """growth.csv has the exponents of time and of memory over five lengths or more."""
    write([store(grow(lengths))], tmp_path)
    rows = list(csv.DictReader((tmp_path / "growth.csv").read_text("utf-8").splitlines()))
    found = {row["measure"]: float(row["exponent"]) for row in rows}
    assert found == {name: pytest.approx(exponent, abs=0.01) for name, exponent in expected.items()}


def test_a_curve_that_bends_has_a_wide_interval() -> None:
    """The interval of an exponent comes from the residuals of the fit."""
    lengths = (64, 128, 256, 512, 1024)
    straight = fit_growth(lengths, [length**2 for length in lengths])
    bent = fit_growth(lengths, [length**2 + 100 * length for length in lengths])
    assert straight
    assert bent
    assert straight.high - straight.low < 1e-6 < 0.1 < bent.high - bent.low
