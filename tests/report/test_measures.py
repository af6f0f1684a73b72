"""Tests of the tables of measures: their rows and cells, how uncertainty is told, and measurements that cannot be."""

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records.types import Ceiling, Finding, Memory, Result, Timing
from attnbench.report import page, tables, write
from attnbench.report.content import Content, collect_content
from attnbench.report.figures.contenders import find_looks
from attnbench.report.figures.series_figures import draw_figures
from attnbench.report.growth import fit_growth
from attnbench.report.measures import MAIN, REST, MeasureRow, MeasureTable, collect_measures
from attnbench.report.methods import explain_states
from rendered_reports import render_page
from timed_runs import REFERENCE, case_of, check, store, time_calls

HOSTILE = "<script>alert(1)</script>\"'&|\\1/../\u202e"


def make_tables(*results: Result) -> tuple[MeasureTable, ...]:
    """Return the tables of measures of a run with these results."""
    return collect_content([store(results)]).measures.tables


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
    assert [table.pass_ for table in made] == ["forward", "forward+backward"]
    expected = [("quick", "64"), (REFERENCE, "64"), ("quick", "128"), (REFERENCE, "128")]
    assert [(row.implementation, row.length.text) for row in made[0].rows] == expected
    assert (made[0].forms, made[0].form) == (False, "batch 1, 4 heads, width 256")


def test_two_forms_of_a_place_share_a_table_with_a_column_for_the_form() -> None:
    """Cases that differ in more than their length are told apart by a column."""
    (table,) = make_tables(*(time_calls(REFERENCE, case=case_of(sizes=sizes)) for sizes in ("E256.H4", "E64.H2")))
    assert table.forms
    assert {row.form for row in table.rows} == {"batch 1, 4 heads, width 256", "batch 1, 2 heads, width 64"}


def test_a_row_has_time_ratio_verdict_rate_and_memory() -> None:
    """Numbers have the interval in brackets; the verdict is a word; bytes are in MiB."""
    row = find_row("quick", time_calls(REFERENCE), time_calls("quick", 0.5))
    shown = {key: cell.text for key, cell in row.cells.items()}
    # Nine processes of 20 to 36 µs: the median is 28, and the interval reaches from the second to the eighth.
    assert shown == {
        "time": "0.0280 [0.0220 to 0.0340]",
        "ratio": "0.500 [0.500 to 0.500]",
        "verdict": "faster",
        "rate": "35.7",
        "peak": "3.00",
        "peak_bytes": "3 145 728",
        "workspace": "1.00",
        "workspace_bytes": "1 048 576",
        "saved": "0.500",
        "saved_bytes": "524 288",
    }
    assert row.cells["time"].value == pytest.approx(0.028)
    assert find_row(REFERENCE, time_calls(REFERENCE)).cells["verdict"].text == "reference"


def test_one_process_has_no_interval() -> None:
    """A time and a ratio of one process say so, instead of an interval of no width."""
    row = find_row("quick", time_calls(REFERENCE, processes=1), time_calls("quick", 0.5, processes=1))
    assert row.cells["time"].text == "0.0200, 1 process, no interval"
    assert row.cells["ratio"].text == "0.500, 1 process, no interval"
    assert row.cells["verdict"].text == "unknown"


def test_columns_without_a_value_are_left_out_and_seldom_ones_are_folded() -> None:
    """On a CPU there is no column of graphs; bytes and building are in a second table, which is folded."""
    own = time_calls("quick", 0.5)
    assert own.timing
    built = replace(own, timing=replace(own.timing, build_ns=(2_000_000,), first_call_ns=(3_000_000,)))
    (table,) = make_tables(time_calls(REFERENCE), built)
    assert [key for key, *_ in table.rest] == [
        "build", "first_call", "peak_bytes", "workspace_bytes", "saved_bytes",
    ]  # fmt: skip
    assert "share" not in [key for key, *_ in table.main]
    text = render_page([store([time_calls(REFERENCE), built])])
    folded = re.search(r"<details><summary>Further columns \(.*?</details>", text, re.DOTALL)
    assert folded
    assert "3 145 728" in folded[0]
    assert "3 145 728" not in text.replace(folded[0], "")


def test_the_tables_can_be_sorted_and_filtered() -> None:
    """Heads say how their column sorts, and a cell whose text is no plain number has its value beside it."""
    text = render_page([store([time_calls(REFERENCE), time_calls("quick", 0.5)])])
    assert '<table class="measures sortable filterable">' in text
    assert '<th data-sort="number">time, ms</th>' in text
    assert '<td class="number" data-value="0.028">0.0280 [0.0220 to 0.0340]</td>' in text
    assert 'style="' not in text.split('id="measured"')[1].split("<details")[0].split("</figure>")[-1]


# The ratio and the quotient of the two times


def make_sparse(*, own_ns: int, base_ns: int, base_ns_beside: int) -> list[Result]:
    """Return a reference, and "rare", which takes part in 6 of 30 cycles, in which the reference takes longer."""
    cycles = tuple(range(30))
    beside = cycles[::5]
    base = tuple(base_ns_beside if cycle in beside else base_ns for cycle in cycles)
    common = {"threads": 2, "method": "wall"}
    reference = Timing(samples_ns=(base,) * 9, cycles=(cycles,) * 9, **common)
    rare = Timing(samples_ns=((own_ns,) * 6,) * 9, cycles=(beside,) * 9, interleaved_with=(REFERENCE,), **common)
    made = [time_calls(REFERENCE), time_calls("rare")]
    return [replace(result, timing=timing) for result, timing in zip(made, (reference, rare), strict=True)]


def test_a_ratio_that_is_not_the_quotient_of_the_times_says_why() -> None:
    """Where the reference is slower in the cycles of a slow call, a note says so, and timings.csv has its time there.

    So it was in a stored run: 52.6 ms beside 0.220 ms, and a ratio of 164.
    """
    results = make_sparse(own_ns=52_600_000, base_ns=220_000, base_ns_beside=320_000)
    cell = find_row("rare", *results).cells["ratio"]
    assert cell.text == "164 [164 to 164]"
    assert cell.note == (
        "Not the quotient of the two times: torch_mha took another time in the cycles that called both "
        "implementations; timings.csv has this time as reference_ns."
    )
    row = tables.tabulate_timings(results).set_index("implementation").loc["rare"]
    assert row["reference_ns"] == 320_000


def test_a_ratio_that_is_the_quotient_has_no_note() -> None:
    """Where the reference takes as long in the same cycles as in all, the quotient is the ratio."""
    results = make_sparse(own_ns=440_000, base_ns=220_000, base_ns_beside=220_000)
    assert find_row("rare", *results).cells["ratio"].note == ""
    assert tables.tabulate_timings(results)["reference_ns"].isna().all()


def test_a_ratio_of_cycles_that_vary_says_so() -> None:
    """A median of ratios is not the ratio of medians; if the same cycles do not explain it, the note says what does."""
    own, base = (100, 100, 100, 400, 400), (100, 200, 300, 100, 200)
    made = [time_calls(REFERENCE), time_calls("odd")]
    results = [
        replace(
            result,
            timing=Timing(
                samples_ns=(tuple(1000 * t for t in times),) * 9, cycles=((0, 1, 2, 3, 4),) * 9, threads=2,
                interleaved_with=(REFERENCE,),
            ),
        )
        for result, times in zip(made, (base, own), strict=True)
    ]  # fmt: skip
    # The ratios of the cycles are 1, 0.5, 0.33, 4 and 2; the medians are 100 and 200.
    cell = find_row("odd", *results).cells["ratio"]
    assert (cell.text, cell.note) == (
        "1.00 [1.00 to 1.00]",
        "Not the quotient of the two times: the ratio is the median over cycles, which vary.",
    )


def test_a_note_stands_once_below_its_table(tmp_path: Path) -> None:
    """Cells have a mark, and the note of the mark is below the table, in the page and in the Markdown text."""
    results = [
        replace(result, case=case_of(length))
        for length in (64, 128)
        for result in make_sparse(own_ns=52_600_000, base_ns=220_000, base_ns_beside=320_000)
    ]
    text = write([store(results)], tmp_path).read_text("utf-8")
    table = text.split('class="measures')[1].split("</table>")[0]
    assert table.count("164 [164 to 164]<sup>a</sup>") == 2
    assert text.count("<sup>a</sup> Not the quotient of the two times: torch_mha took") == 1
    assert '<a href="timings.csv">timings.csv</a> has this time' in text
    marked = (tmp_path / "report.md").read_text("utf-8")
    assert marked.count("(a) Not the quotient") == 1
    assert marked.count("164 \\[164 to 164\\] (a)") == 2


def test_every_ratio_of_the_stored_runs_is_its_quotient_or_has_a_note() -> None:
    """In the stored runs of a CPU, no ratio differs from its quotient by more than 10 % without a note."""
    from attnbench.records.run_file import read_run

    results = Path(__file__).parents[2] / "results"
    count = 0
    for path in (*(results / "example").glob("*.jsonl"), *(results / "full").rglob("*.jsonl")):
        frame = tables.tabulate_timings(read_run(path).results)
        base = frame[frame["implementation"] == REFERENCE].set_index("case")["median_ns"]
        quotient = frame["median_ns"] / frame["case"].map(base) / frame["ratio"]
        far = frame[(quotient - 1).abs() > 0.1]
        assert far["reference_ns"].notna().all()
        count += len(far)
    assert count > 0


# Verdicts


def test_a_disturbed_measurement_is_inconclusive_and_not_in_the_plot_of_speed(tmp_path: Path) -> None:
    """The page, the Markdown text and timings.csv mark a disturbed measurement as inconclusive and give no ratio.

    The page and the Markdown text give the reason, and the plot of speeds leaves the measurement out.
    """
    results = [time_calls(REFERENCE), time_calls("near", 0.5, disturbed=True)]
    write([store(results)], tmp_path)
    for name in ("index.html", "report.md"):
        written = (tmp_path / name).read_text("utf-8")
        assert "inconclusive: other work disturbed 9 of 9 processes" in written
        assert "Here, of 1 comparison: 1 inconclusive." in written
    rows = {row["implementation"]: row for row in csv.DictReader((tmp_path / "timings.csv").read_text().splitlines())}
    assert (rows["near"]["state"], rows["near"]["ratio"]) == ("inconclusive", "")
    cells = find_row("near", *results).cells
    assert cells["verdict"].text == "inconclusive"
    assert "ratio" not in cells


def test_a_time_of_disturbed_calls_is_marked_in_every_file(tmp_path: Path) -> None:
    """Its time and its rate have a sign, a grey colour and a note; the clean time beside them has none."""
    results = [time_calls(REFERENCE), time_calls("near", 0.5, disturbed=True)]
    cells = find_row("near", *results).cells
    for key, text in (("time", "≈ 0.0280 [0.0220 to 0.0340]"), ("rate", "≈ 35.7")):
        assert (cells[key].text, cells[key].disturbed) == (text, True)
        assert cells[key].note.startswith("Disturbed: other work took the cores")
    assert "share" not in cells
    clean = find_row(REFERENCE, *results).cells["time"]
    assert (clean.text, clean.note, clean.disturbed) == ("0.0560 [0.0440 to 0.0680]", "", False)
    write([store(results)], tmp_path)
    assert (tmp_path / "index.html").read_text("utf-8").count('<td class="number disturbed"') == 2
    assert "≈ 0.0280" in (tmp_path / "report.md").read_text("utf-8").replace("\\", "")
    rows = {row["implementation"]: row for row in csv.DictReader((tmp_path / "timings.csv").read_text().splitlines())}
    assert (rows["near"]["calls"], rows[REFERENCE]["calls"]) == ("disturbed", "clean")


def test_a_time_of_few_undisturbed_calls_says_so_and_is_not_disturbed() -> None:
    """Four calls a process are too few for a verdict, but nothing disturbed them."""
    slow = time_calls("slow", 2.0)
    assert slow.timing
    timing = replace(
        slow.timing, **{name: tuple(one[:4] for one in getattr(slow.timing, name)) for name in ("samples_ns", "cycles")}
    )
    cell = find_row("slow", time_calls(REFERENCE), replace(slow, timing=timing)).cells["time"]
    assert (cell.note, cell.disturbed) == ("From all calls: each process made too few for a verdict.", False)


def give_values(result: Result, values: str) -> Result:
    """Return a result whose timed calls had such input values."""
    assert result.timing
    return replace(result, timing=replace(result.timing, values=values))


def test_times_with_equal_input_values_are_marked() -> None:
    """Calls that all had the same input values have a note and no verdict, and their implementation is no choice."""
    fresh, quick = (give_values(time_calls(name, ms), "fresh") for name, ms in ((REFERENCE, 1.0), ("quick", 0.5)))
    results = fresh, give_values(quick, "fixed")
    cell = find_row("quick", *results).cells["verdict"]
    assert (cell.text, cell.note[:45]) == ("inconclusive", "Every timed call had the same input values, a")
    (table,) = collect_content([store(results)]).decisions.tables
    assert "No choice: quick. All timed calls had the same input values" in table.warning
    assert [choice.words for row in table.rows for choice in row.choices if "quick" in choice.words] == []
    (table,) = collect_content([store([results[0], quick])]).decisions.tables
    assert "input values" not in table.warning


def test_calls_that_were_not_interleaved_are_not_compared() -> None:
    """A row without a comparison says so; it does not say "unknown", which means too few processes."""
    apart = time_calls("quick", 0.5)
    assert apart.timing
    row = find_row("quick", time_calls(REFERENCE), replace(apart, timing=replace(apart.timing, interleaved_with=())))
    assert row.cells["verdict"].text == "not compared"


# Many rows


def make_many(count: int) -> Content:
    """Return the content of a run in which every third of ``count`` lengths has too few processes for a verdict."""
    return collect_content(
        [
            store(
                [
                    time_calls(name, ratio, case=case_of(length), processes=9 if length % 3 else 2)
                    for length in range(1, count + 1)
                    for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
                ]
            )
        ]
    )


def test_of_many_rows_the_undecided_and_failing_are_shown_first() -> None:
    """If there are more rows than may be shown, those without a verdict are kept first; the order does not change."""
    content = make_many(9)
    few = collect_measures(content.series, most=5)
    assert (few.rows, few.shown) == (18, 5)
    # Lengths 3, 6 and 9 are undecided; the first two of the other rows fill the table.
    assert [(row.implementation, row.length.text) for row in few.tables[0].rows] == [
        ("quick", "1"), (REFERENCE, "1"), ("quick", "3"), ("quick", "6"), ("quick", "9"),
    ]  # fmt: skip
    failing = collect_measures(content.series, [REFERENCE], most=12).tables[0].rows
    assert [row.implementation for row in failing].count(REFERENCE) == 9
    everything = collect_measures(content.series, most=18)
    assert (everything.rows, everything.shown) == (18, 18)


def test_the_page_says_how_many_rows_are_left_out() -> None:
    """Where rows are left out, page and Markdown say how many there are and where the others are."""
    content = make_many(9)
    words = "5 of 18 rows are shown: first those without a verdict and those of implementations that failed a check."
    figures = draw_figures(content.series, find_looks(content.series, content.decisions.entries), "")
    shown = page.render(replace(content, measures=collect_measures(content.series, most=5)), figures)
    assert words in shown
    assert words not in page.render(content, figures)


# Devices


def make_cuda_result(name: str, factor: float, *, throttled: int = 0, graph: bool = False) -> Result:
    """Make a result on CUDA; the median end-to-end time is 1.3 ms, and the median device time is ``factor`` ms."""
    timing = Timing(
        samples_ns=tuple((100_000 * (9 + p),) * 20 for p in range(9)),
        device_ns=tuple((round(factor * 1e5 * (6 + p)),) * 20 for p in range(9)),
        graph_ns=((round(factor * 7e5),) * 20,) * 9 if graph else (),
        late=((False,) * 20,) * 9,
        clock_before_mhz=((1980,) * 20,) * 9,
        clock_after_mhz=((1755,) * throttled + (1980,) * (20 - throttled),) * 9,
        throttle_reasons=((0,) * 20,) * 9,
        threads=1,
        interleaved_with=() if name == REFERENCE else (REFERENCE,),
        method="device (CUDA events, cold L2 cache, launch hidden) and end-to-end wall",
        clock="NVML",
    )
    return replace(time_calls(name, case=case_of(device="cuda")), timing=timing, memory=None)


def test_on_a_device_device_time_and_end_to_end_time_are_reported(tmp_path: Path) -> None:
    """The time is the device's; end-to-end time and graph replay are folded; timings.csv has all these columns.

    The report also gives the number of throttled samples, which are left out.
    """
    results = [
        make_cuda_result(REFERENCE, 1, throttled=2),
        make_cuda_result("quick", 0.5, throttled=2, graph=True),
    ]
    write([store(results)], tmp_path)
    rows = {row["implementation"]: row for row in csv.DictReader((tmp_path / "timings.csv").read_text().splitlines())}
    quick = rows["quick"]
    assert (quick["measure"], quick["state"], quick["clock"], quick["throttled"]) == ("device", "faster", "NVML", "18")
    columns = ("median_ns", "ratio", "end_to_end_ns", "graph_ns", "samples")
    assert [float(quick[column]) for column in columns] == [500_000, 0.5, 1_300_000, 350_000, 180]
    assert rows[REFERENCE]["graph_ns"] == ""
    cells = find_row("quick", *results).cells
    assert [cells[key].text for key in ("end_to_end", "graph")] == ["1.30", "0.350"]
    for name in ("index.html", "report.md"):
        text = (tmp_path / name).read_text("utf-8")
        assert "The time is that on the device" in text
        assert "left out for all implementations, here 36 of 360 samples. Readings of the clock: NVML." in text


def test_a_cell_without_device_time_is_marked_end_to_end() -> None:
    """Beside device times, a cell that has only an end-to-end time is marked "end to end".

    Its ratio is one of end-to-end times.
    """
    elsewhere = make_cuda_result("quick", 1)
    assert elsewhere.timing
    results = [
        make_cuda_result(REFERENCE, 1),
        replace(elsewhere, timing=replace(elsewhere.timing, device_ns=(), late=(), clock="none: why")),
    ]
    text = render_page([store(results)])
    assert text.count("<sup>a</sup></td>") == 1
    assert "<sup>a</sup> End to end: wall time until the device was done." in text
    assert "Readings of the clock: NVML and none: why." in text
    row = tables.tabulate_timings(results).set_index("implementation").loc["quick"]
    assert (row["measure"], row["median_ns"], row["ratio"], row["state"]) == ("wall", 1_300_000, 1.0, "same")


def test_a_report_of_a_cpu_does_not_mention_device_times(tmp_path: Path) -> None:
    """The page of a CPU does not mention device times; their columns in timings.csv are empty."""
    text = write([store([time_calls(REFERENCE), time_calls("quick", 0.5)])], tmp_path).read_text("utf-8")
    for word in ("on the device", "end to end", "End to end", "CUDA graph", "Readings of the clock"):
        assert word not in text
    rows = list(csv.DictReader((tmp_path / "timings.csv").read_text().splitlines()))
    assert {(row["measure"], row["end_to_end_ns"], row["graph_ns"]) for row in rows} == {("wall", "", "")}


# Growth, memory, ceilings


def grow(lengths: Sequence[int], *, disturbed: bool = False) -> list[Result]:
    """Return results of two implementations whose time and peak memory quadruple as the length doubles."""
    made = []
    for length in lengths:
        factor = (length / 64) ** 2
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5)):
            result = time_calls(name, ratio * factor, case=case_of(length), disturbed=disturbed and name != REFERENCE)
            assert result.memory
            made.append(replace(result, memory=replace(result.memory, peak_bytes=int(2**20 * factor))))
    return made


def test_the_exponent_of_growth_has_an_interval(tmp_path: Path) -> None:
    """If time or memory quadruples as the length doubles, the exponent is 2; growth.csv and the page have it."""
    text = write([store(grow((64, 128, 256, 512, 1024)))], tmp_path).read_text("utf-8")
    rows = list(csv.DictReader((tmp_path / "growth.csv").read_text("utf-8").splitlines()))
    assert {(row["implementation"], row["measure"]) for row in rows} == {
        (name, measure) for name in (REFERENCE, "quick") for measure in ("time", "peak memory")
    }
    for row in rows:
        assert float(row["exponent"]) == pytest.approx(2, abs=1e-3)
        assert (row["shortest"], row["longest"], row["lengths"]) == ("64", "1024", "5")
    assert "Growth with length" in text
    assert "2.00 [2.00 to 2.00]" in text
    assert text.count("<td>5 from 64 to 1024</td>") == 4


def test_four_lengths_have_no_exponent(tmp_path: Path) -> None:
    """With fewer than five lengths there is no exponent and no table of growth."""
    text = write([store(grow((64, 128, 256, 512)))], tmp_path).read_text("utf-8")
    assert (tmp_path / "growth.csv").read_text("utf-8").count("\n") == 1
    assert "Growth with length" not in text


def test_disturbed_times_have_no_exponent() -> None:
    """If all times of an implementation were disturbed, it has no exponent of time, but one of memory."""
    frame = collect_content([store(grow((64, 128, 256, 512, 1024), disturbed=True))]).series[0].growths
    assert sorted(zip(frame["implementation"], frame["measure"], strict=True)) == [
        ("quick", "peak memory"), (REFERENCE, "peak memory"), (REFERENCE, "time"),
    ]  # fmt: skip


def test_a_curve_that_bends_has_a_wide_interval() -> None:
    """L + L² is no power law and has a wide interval; an exact power law has an interval of width 0."""
    lengths = (16, 64, 256, 1024, 4096)
    exact = fit_growth(lengths, [3 * n**1.5 for n in lengths])
    assert exact is not None
    assert (exact.low, exact.exponent, exact.high) == pytest.approx((1.5, 1.5, 1.5))
    bent = fit_growth(lengths, [200 * n + n * n for n in lengths])
    assert bent is not None
    assert bent.low < 1.3 < bent.exponent < 1.8 < bent.high
    # Computed by hand: the logarithms to base 2 are 0, 0, 0, 0 and 1, so the slope is 0.2, the residuals are 0.2, 0,
    # -0.2, -0.4 and 0.4, whose squares sum to 0.4, and Student's t with three degrees of freedom is 3.182.
    off = fit_growth((1, 2, 4, 8, 16), (1, 1, 1, 1, 2))
    assert off is not None
    assert off.exponent == pytest.approx(0.2)
    assert off.high - off.exponent == pytest.approx(3.182 * (0.4 / 3 / 10) ** 0.5)
    assert fit_growth((64, 128, 256, 512), (1, 2, 3, 4)) is None
    assert fit_growth((64, 128, 256, 512, 1024), (1, 0, 2, 3, 4)) is None


def test_the_report_gives_memory_and_memory_outside_the_allocator(tmp_path: Path) -> None:
    """The page gives the bytes outside torch's allocator; memory.csv also has peak, workspace and physical bytes."""
    slow = time_calls("slow", 2.0)
    memory = Memory(
        peak_bytes=65536, workspace_bytes=32768, physical_bytes=69632, outside_bytes=700_000, threads=2, method="any"
    )  # fmt: skip
    text = write([store([time_calls(REFERENCE), replace(slow, memory=memory)])], tmp_path).read_text("utf-8")
    assert '<th data-sort="number">outside the allocator</th>' in text
    assert "684 KiB" in text
    rows = list(csv.DictReader((tmp_path / "memory.csv").read_text("utf-8").splitlines()))
    row = next(row for row in rows if row["implementation"] == "slow")
    exact = {"peak_bytes": 65536, "workspace_bytes": 32768, "physical_bytes": 69632, "outside_bytes": 700_000}
    assert {name: int(row[name]) for name in exact} == exact
    assert (row["saved_bytes"], row["reserved_bytes"]) == ("", "")


def test_the_report_gives_ceilings_and_the_share_of_them() -> None:
    """The report gives the machine's best rates, and which share of them a call reached; a rate of 0 is no ceiling."""
    top = Ceiling(run="run-1", device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=1e9)
    for ceiling, share in ((top, "18 %"), (replace(top, flop_per_s=0.0), None)):
        stored = replace(store([time_calls(REFERENCE)]), ceilings=(ceiling,))
        (table,) = collect_content([stored]).measures.tables
        cell = table.rows[0].cells.get("share")
        assert (cell.text if cell else None) == share
        assert ("share of the product ceiling" in [heading for _, heading, _ in table.main]) == (share is not None)
        text = render_page([stored])
        assert ("<summary>Ceilings</summary>" in text) == (share is not None)


def test_shares_above_the_ceiling_are_withheld(tmp_path: Path) -> None:
    """Where a call is faster than the ceiling allows, no share of its place is shown, and page and figure say why."""
    low = Ceiling(run="run-1", device="cpu", dtype="float32", threads=2, flop_per_s=1e10, bytes_per_s=1e9)
    stored = replace(store([time_calls(REFERENCE), time_calls("slow", 20.0)]), ceilings=(low,))
    (table,) = collect_content([stored]).measures.tables
    assert all("share" not in row.cells for row in table.rows)
    text = write([stored], tmp_path).read_text("utf-8")
    assert "so the measured ceiling is too low here." in text
    assert "Without the ceiling, which was measured too low" in text


def test_shares_with_different_bounds_name_them() -> None:
    """Where an operation bounds one call and a copy another one, each share names its bound."""
    top = Ceiling(run="run-1", device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=2e9)
    one, other = (time_calls(REFERENCE, case=case_of(length)) for length in (64, 128))
    stored = replace(store([one, replace(other, bytes=10**5)]), ceilings=(top,))
    (table,) = collect_content([stored]).measures.tables
    shares = [row.cells["share"].text for row in table.rows]
    assert shares[0].endswith("% of product")
    assert shares[1].endswith("% of copy")
    assert "share of the ceiling" in [heading for _, heading, _ in table.main]


def test_many_tables_are_folded_by_place() -> None:
    """Up to two tables stand on the page; more are folded, with a line for each place."""
    runs = [
        store(
            [time_calls(name, ratio, run=f"run-{n}") for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))],
            run=f"run-{n}", machine=f"cpu-{n}",
        )
        for n in (1, 2, 3)
    ]  # fmt: skip
    assert '<details class="place">' not in render_page(runs[:2])
    text = render_page(runs)
    summary = "<summary>cpu-1, cpu, float32, 2 threads: forward; 2 rows; 1 comparison: 1 faster</summary>"
    assert text.count('<details class="place">') == 3
    assert summary in text


def test_only_a_long_table_scrolls() -> None:
    """A table of more than two dozen rows scrolls in a box and says how many rows it has."""
    for lengths, tall in ((range(1, 12), False), (range(1, 14), True)):
        results = [time_calls(name, case=case_of(n)) for n in lengths for name in (REFERENCE, "other")]
        text = render_page([store(results)])
        assert ('<div class="scroll tall"' in text) == tall
        assert (f"{2 * len(lengths)} rows, which scroll" in text) == tall


def test_states_are_explained_by_the_causes_that_occur() -> None:
    """Unknown is explained by too few processes where there are few, and by the threshold where there are enough.

    Each sentence says what may decide it.
    """
    few = [time_calls(name, processes=2) for name in (REFERENCE, "quick")]
    own = collect_content([store(few)]).series[0].timings
    decide = "To decide it, time again in more processes (--processes 30)."
    assert list(explain_states(own)) == [f"Unknown: too few processes for a verdict. {decide}"]
    own = own.assign(reason="the confidence interval crosses the threshold of 1 %")
    assert list(explain_states(own[own["state"] != ""])) == [
        f"Unknown: the confidence interval crosses the threshold of 1 %. {decide}"
    ]
    assert list(explain_states(own.assign(state="faster"))) == []
    slow = own.assign(state="inconclusive", reason="other work disturbed 3 of 7 processes")
    assert list(explain_states(slow)) == [
        "Inconclusive: other work disturbed too many processes. "
        "To decide it, time again while nothing else runs on the machine."
    ]


def test_one_process_is_told_apart_from_intervals() -> None:
    """Where some times are from one process, the range of probabilities does not begin at 0."""
    mixed = [time_calls(REFERENCE, case=case_of(n), processes=count) for n, count in ((64, 9), (128, 1))]
    text = render_page([store(mixed)])
    assert "with a probability of 96.1 %; one process has no interval" in text
    assert "of 0 " not in text
    alone = render_page([store(mixed[1:])])
    assert "Each time is from one process and has no interval." in alone


def test_the_level_of_an_interval_is_given_with_the_times(tmp_path: Path) -> None:
    """The interval of nine processes covers the median with a probability of 96 %; the page and the text say so."""
    write([store([time_calls(REFERENCE)])], tmp_path)
    for name in ("index.html", "report.md"):
        assert "covers the true median with a probability of 96.1 %" in (tmp_path / name).read_text("utf-8")


# Bad input


@pytest.mark.parametrize("places", [1, 2])
def test_hostile_names_are_text(places: int) -> None:
    """Names with markup are shown as text in every table, with one series and with two, and their ids differ."""
    runs = [
        store(
            [time_calls(REFERENCE, run=f"run-{n}"), time_calls(HOSTILE, 0.5, run=f"run-{n}")],
            run=f"run-{n}",
            machine=HOSTILE * n,
        )
        for n in range(1, places + 1)
    ]
    text = render_page(runs)
    assert "<script>alert" not in text
    ids = re.findall(r'id="(measures[^"]*)"', text)
    assert len(set(ids)) == places
    assert all(re.fullmatch(r"[a-z0-9-]+", one) for one in ids)


def test_rows_of_failing_implementations_are_doubtful() -> None:
    """An implementation that failed a check is kept first, although its times have verdicts."""
    failed = replace(
        check("quick", case_of(5)), findings=(Finding(check="forward_parity", status="failed", reason="off"),)
    )
    assert find_row("quick", time_calls(REFERENCE), time_calls("quick", 0.5), failed).is_doubtful
    assert not find_row("quick", time_calls(REFERENCE), time_calls("quick", 0.5)).is_doubtful


def test_keys_of_columns_are_unique() -> None:
    """No column of the table is also a column of the folded table."""
    keys = [key for key, *_ in (*MAIN, *REST)]
    assert len(keys) == len(set(keys))


def test_decoding_steps_are_a_series_of_their_own() -> None:
    """Their times do not lie on one curve with those of calls that have as many queries as keys."""
    cases = [case_of(256), case_of(512), case_of(512).replace("L512", "L1"), case_of(1024).replace("L1024", "L1")]
    stored = store([time_calls(name, case=case) for name in (REFERENCE, "sdpa") for case in cases])
    square, decoding = sorted(collect_content([stored]).series, key=lambda one: one.queries)
    assert (square.queries, decoding.queries) == (0, 1)
    assert sorted(set(square.timings["length"])) == [256, 512]
    assert sorted(set(decoding.timings["length"])) == [512, 1024]
    assert decoding.form_words == f"{square.form_words}, 1 query"
    assert square.suffix != decoding.suffix
