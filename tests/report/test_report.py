"""Tests of reports: what they say, that names in them are escaped, and that their numbers follow from the run file."""

import csv
import html
import re
import statistics
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnbench.records.run_file import ResultsError, StoredRun
from attnbench.records.types import Ceiling, Completion, Finding, Machine, Memory, Result, Run, Timing, find_pass
from attnbench.report import tables, write
from attnbench.report.content import collect_content
from attnbench.report.growth import fit_growth
from attnbench.report.kernel_paths import find_way
from attnbench.report.listings import make_listings
from attnbench.report.numbers import format_bytes, format_digits, format_seconds

RUN = "20260101-000000-abcd"
PLAIN = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/eval"
NAMES = ("torch_mha", "quick_one", "slow_one")
LENGTHS = (64, 128, 256)
# For each implementation, the torch operator in its list of kernels from which the report infers the code path.
WAYS = {
    "torch_mha": "aten::_native_multi_head_attention",
    "quick_one": "aten::_scaled_dot_product_flash_attention_for_cpu",
    "slow_one": "aten::_softmax ×2",
}
# Base time of a call at length 64, in nanoseconds. Times grow with the square of the length.
BASE_NS = {"torch_mha": 40_000, "quick_one": 20_000, "slow_one": 900_000}


def make_run(**changes: object) -> Run:
    """Make the record of a run on an invented machine."""
    machine = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=8 * 2**30)
    fields = {
        "id": RUN,
        "time": "2026-01-01T00:00:00+00:00",
        "command": "attnbench run",
        "machine": machine,
        "versions": {"torch": "2.10.0"},
        "threads": 2,
        "suite": "quick",
        "suite_digest": "0123456789ab",
        "implementations": NAMES,
    }
    return Run(**(fields | changes))  # type: ignore[arg-type]


def make_stored_run(*results: Result, of: Run | None = None) -> StoredRun:
    """Make a run as ``read_run`` returns it, on a machine that computes 100 Gflop/s and copies 1 GB/s."""
    made = of or make_run()
    top = Ceiling(run=made.id, device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=1e9)
    return StoredRun(run=made, results=results, ceilings=(top,), path=Path(f"{made.id}.jsonl"))


def make_result(*findings: Finding, name: str = "quick_one", case: str = PLAIN) -> Result:
    """Make a result with these findings, and without measurements."""
    return Result(run=RUN, implementation=name, case=case, findings=findings, suite="quick")


def perf_case(length: int, mode: str) -> str:
    """Return the id of a profile case of this length and call mode."""
    return f"multihead/B1.L{length}.S{length}.E256.H4/bias/mask=none/regime=plain/seed=0/float32/cpu/{mode}"


def make_timed_result(name: str, length: int, mode: str = "inference", *, processes: int = 9) -> Result:
    """Make a profile result with five samples per process.

    Process p (from 0) takes about 1 + p/10 times as long as process 0.
    """
    base = BASE_NS[name] * (length // 64) ** 2 * (1 if mode == "inference" else 3)
    samples = tuple(tuple(base * (10 + p) // 10 + noise for noise in (0, 7, 90, 3, 8)) for p in range(processes))
    return Result(
        run=RUN,
        implementation=name,
        case=perf_case(length, mode),
        findings=(Finding(check="forward_parity", status="passed", measured=1e-7, allowed=1e-6),),
        timing=Timing(samples_ns=samples, threads=2, interleaved_with=tuple(n for n in NAMES if n != name)),
        memory=Memory(
            peak_bytes=length * length * 16,
            saved_bytes=length * 4096 if mode == "train" else None,
            workspace_bytes=length * length * 8,
            physical_bytes=length * length * 17,
            outside_bytes=700_000 if name == "slow_one" else None,
            threads=2,
            method="allocator",
        ),
        flop=length * length * 1024,
        bytes=length * 2048,
        kernels=("aten::mm ×4", WAYS[name]),
        suite="perf",
    )


def make_untimed_result(name: str, length: int, mode: str) -> Result:
    """Make a profile result without a timing, because its predicted time is over the work limit."""
    reason = "predicted 5.2 s a call, over the limit of 2 s (--work-limit)"
    return Result(
        run=RUN,
        implementation=name,
        case=perf_case(length, mode),
        findings=(Finding(check="forward_parity", status="not_run", reason=reason),),
        untimed=f"not_run: {reason}",
        suite="perf",
    )


def make_profile() -> list[Result]:
    """Make a profile of three implementations; "slow_one" exceeds the work limit at the largest length."""
    calls = [(n, length, mode) for mode in ("inference", "train") for length in LENGTHS for n in NAMES]
    return [make_untimed_result(*call) if call[:2] == ("slow_one", 256) else make_timed_result(*call) for call in calls]


def make_check_results() -> list[Result]:
    """Make conformance results with five findings: passed, failed, expected failure, unsupported and not run."""
    return [
        make_result(Finding(check="forward_parity", status="passed"), name="torch_mha"),
        make_result(
            Finding(
                check="forward_parity", status="failed", reason="3 of 240 values are off", measured=2.0, allowed=1.0
            ),
            Finding(check="weights_parity", status="expected_failure", reason="weights are NaN"),
            Finding(check="mask_gradients", status="unsupported", reason="the constructor takes no kdim"),
            Finding(check="no_stale_state", status="not_run", reason="the worker died three times"),
        ),
    ]


def write_page(results: list[Result], folder: Path) -> str:
    """Write a report of these results into a folder, and return its HTML page."""
    return write([make_stored_run(*results)], folder).read_text(encoding="utf-8")


def test_a_report_is_a_page_a_text_seven_tables_and_three_plots(tmp_path: Path) -> None:
    """``write`` returns the path of the HTML page; the Markdown text, tables and plots are in the page's folder."""
    written = write([make_stored_run(*make_check_results(), *make_profile())], tmp_path / "new" / "folder")
    assert written == tmp_path / "new" / "folder" / "index.html"
    assert sorted(path.name for path in written.parent.iterdir()) == [
        "ceilings.csv", "failures.csv", "findings.csv", "growth.csv", "index.html", "kernels.csv", "memory.csv",
        "memory.png", "memory.svg", "report.md", "speed.png", "speed.svg", "time.png", "time.svg", "timings.csv",
    ]  # fmt: skip


def test_two_reports_of_the_same_runs_have_the_same_bytes(tmp_path: Path) -> None:
    """All files of two reports of the same runs are equal byte for byte: the time of writing is not in a report."""
    for name in ("one", "other"):
        write([make_stored_run(*make_check_results(), *make_profile())], tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


def test_names_and_reasons_are_never_markup(tmp_path: Path) -> None:
    """Names, reasons and warnings with HTML or $ signs appear as plain text in the page and in its plots."""
    hostile = "<script>alert(1)</script>\"'&|`$x$"
    findings = [
        Finding(check=hostile, status=status, reason=hostile, warnings=(hostile,))  # type: ignore[arg-type]
        for status in ("failed", "expected_failure", "unsupported", "not_run")
    ]
    slow = make_timed_result("quick_one", 64)
    named = Result(
        run=RUN, implementation=hostile, case=slow.case, findings=slow.findings, timing=slow.timing, memory=slow.memory,
        flop=1, suite="perf",
    )  # fmt: skip
    shown = make_stored_run(
        make_result(*findings, name=hostile), named, make_timed_result("torch_mha", 64), of=make_run(command=hostile)
    )
    write([shown], tmp_path)
    for name in ("index.html", "time.svg"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "<script" not in text
        assert "&lt;script" in text
    assert "\n<script" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_page_is_well_formed_html_and_loads_nothing(tmp_path: Path) -> None:
    """The tags of the page are balanced, its ids are unique, and it has no address that a browser would load."""
    text = write_page([*make_check_results(), *make_profile()], tmp_path)
    reader = _Reader()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)', text)


class _Reader(HTMLParser):
    """HTML parser that records the open tags and the ids of a page."""

    empty = frozenset({"meta", "br", "wbr", "link", "hr", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.empty:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_number_of_timings_csv_can_be_computed_from_the_samples(tmp_path: Path) -> None:
    """Median, interval, ratio and rates of a row follow from the samples of its implementation and of the reference."""
    results = make_profile()
    write([make_stored_run(*results)], tmp_path)
    samples = {(r.run, r.implementation, r.case): r.timing.samples_ns for r in results if r.timing}
    flop, moved = {r.case: r.flop for r in results if r.flop}, {r.case: r.bytes for r in results if r.bytes}
    rows = list(csv.DictReader((tmp_path / "timings.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(samples) == 16
    for row in rows:
        own = sorted(map(statistics.median, samples[row["run"], row["implementation"], row["case"]]))
        base = sorted(map(statistics.median, samples[row["run"], "torch_mha", row["case"]]))
        # The interval of nine processes is from the second to the eighth value. It misses the true median in 2 · 10 of
        # 512 equally likely patterns, where a pattern says which processes lie below the median.
        expected = (own[4], own[1], own[7], 1 - 20 / 512, 9, 45)
        columns = ("median_ns", "low_ns", "high_ns", "level", "processes", "samples")
        assert tuple(float(row[column]) for column in columns) == pytest.approx(expected)
        ratios = sorted(o / b for o, b in zip(own, base, strict=True))
        # The interval of a speed verdict may miss the median with probability 1.1 % on either side; for nine processes
        # it is then the whole range.
        expected = (ratios[0], ratios[4], ratios[8], 1 - 2 / 512, 9, 9)
        columns = ("ratio_low", "ratio", "ratio_high", "ratio_level", "counted", "of")
        assert tuple(float(row[column]) for column in columns) == pytest.approx(expected)
        assert row["state"] == {"torch_mha": "", "quick_one": "faster", "slow_one": "slower"}[row["implementation"]]
        assert float(row["gflop_per_s"]) == pytest.approx(flop[row["case"]] / own[4])
        assert float(row["gbyte_per_s"]) == pytest.approx(moved[row["case"]] / own[4])
        # At 100 FLOP and 1 byte per nanosecond, moving the bytes of a case takes longer than its products if the case
        # has at most 200 tokens.
        least_ns = max(flop[row["case"]] / 100, moved[row["case"]])
        assert float(row["share"]) == pytest.approx(least_ns / own[4])
        assert row["bound"] == ("product" if int(row["length"]) > 200 else "copy")


def test_a_ratio_needs_interleaved_samples() -> None:
    """A row has a ratio only if the reference was timed interleaved with it, in the same run."""
    alone = tables.tabulate_timings([make_timed_result("quick_one", 64)])
    assert alone["ratio"].isna().all()
    assert set(alone["state"]) == {""}
    frame = tables.tabulate_timings(
        [make_timed_result("quick_one", 64), make_timed_result("torch_mha", 64, processes=2)]
    ).set_index("implementation")
    assert frame["ratio"].isna().to_dict() == {"quick_one": True, "torch_mha": False}
    assert frame["state"].to_dict() == {"quick_one": "", "torch_mha": ""}


def test_the_pass_follows_from_the_mode() -> None:
    """A case in mode ``inference`` is timed forward, and a case in another mode forward and backward."""
    assert find_pass(perf_case(8, "inference")) == "forward"
    assert find_pass(perf_case(8, "train")) == find_pass(perf_case(8, "eval")) == "forward+backward"


def test_the_headline_counts_findings_and_names_the_fastest() -> None:
    """The headline counts failed, expected, refused and not run findings; adjacent lengths are given as one range."""
    content = collect_content([make_stored_run(*make_check_results(), *make_profile())])
    assert content.headline == (
        "3 implementations, 7 cases, 4 checks: 1 of 19 findings failed.",
        "1 failed as expected, 1 refused with a reason, 3 not run.",
        "16 calls timed.",
    )
    assert content.fastest == (
        "Forward, L = 64 to 256: quick_one is fastest, 2.0 times as fast as torch_mha.",
        "Forward+backward, L = 64 to 256: quick_one is fastest, 2.0 times as fast as torch_mha.",
    )


def test_implementations_whose_intervals_overlap_are_not_distinguished() -> None:
    """The sentence on the fastest implementation names those whose times cannot be distinguished from the fastest."""
    shown = make_stored_run(make_timed_result("torch_mha", 64), make_interleaved_result(0.98, 1.02, 1.07))
    sentence = "Forward, L = 64: torch_mha is fastest, but cannot be distinguished from near."
    assert collect_content([shown]).fastest == (sentence,)


def test_a_difference_below_the_threshold_is_no_gain() -> None:
    """Ratios of 0.993 to 0.997 give the verdict ``same``; ratios of 0.97 to 0.995 give ``unknown``.

    With both verdicts, the report says that the fastest implementation cannot be distinguished from the reference.
    """
    for ratios, state in (((0.993, 0.995, 0.997), "same"), ((0.97, 0.98, 0.995), "unknown")):
        shown = make_stored_run(make_timed_result("torch_mha", 64), make_interleaved_result(*ratios))
        assert tables.tabulate_timings(shown.results).set_index("implementation").loc["near", "state"] == state
        sentence = "Forward, L = 64: near is fastest, but cannot be distinguished from torch_mha."
        assert collect_content([shown]).fastest == (sentence,)


def test_interleaved_implementations_are_distinguished_by_ratio_and_not_by_time() -> None:
    """A difference of 5 % in every process distinguishes two implementations whose intervals of times overlap."""
    shown = make_stored_run(make_timed_result("torch_mha", 64), make_interleaved_result(0.94, 0.95, 0.96))
    frame = tables.tabulate_timings(shown.results).set_index("implementation")
    assert frame.loc["torch_mha", "low_ns"] < frame.loc["near", "high_ns"]
    assert collect_content([shown]).fastest == ("Forward, L = 64: near is fastest, 1.05 times as fast as torch_mha.",)


def test_a_disturbed_measurement_is_inconclusive_and_not_in_the_plot_of_speed(tmp_path: Path) -> None:
    """The page, the Markdown text and timings.csv mark a disturbed measurement as inconclusive and give no ratio.

    The page and the Markdown text give the reason, and the plot of speeds leaves the measurement out.
    """
    disturbed = make_interleaved_result(0.5, 0.5, 0.5)
    assert disturbed.timing
    waited = tuple((10_000,) * len(process) for process in disturbed.timing.samples_ns)
    results = [
        make_timed_result("torch_mha", 64),
        replace(disturbed, timing=replace(disturbed.timing, waited_ns=waited)),
    ]
    text = write_page(results, tmp_path)
    assert "Forward, L = 64: inconclusive." in text
    for name in ("index.html", "report.md"):
        written = (tmp_path / name).read_text("utf-8")
        assert "inconclusive: other work disturbed 9 of 9 processes" in written
        assert "Here: 1 inconclusive." in written
    rows = {row["implementation"]: row for row in csv.DictReader((tmp_path / "timings.csv").read_text().splitlines())}
    assert (rows["near"]["state"], rows["near"]["ratio"]) == ("inconclusive", "")
    assert "near" not in (tmp_path / "speed.svg").read_text("utf-8")
    # The rate that is computed from the disturbed time is also marked as inconclusive.
    assert re.search(r"of the \w+ ceiling</small><small>inconclusive</small>", text)


def make_cuda_result(name: str, factor: float, *, throttled: int = 0, graph: bool = False) -> Result:
    """Make a result on CUDA; the median end-to-end time is 1.3 ms, and the median device time is ``factor`` ms."""
    case = perf_case(64, "inference").replace("/cpu/", "/cuda/")
    timing = Timing(
        samples_ns=tuple((100_000 * (9 + p),) * 20 for p in range(9)),
        device_ns=tuple((round(factor * 1e5 * (6 + p)),) * 20 for p in range(9)),
        graph_ns=((round(factor * 7e5),) * 20,) * 9 if graph else (),
        late=((False,) * 20,) * 9,
        clock_before_mhz=((1980,) * 20,) * 9,
        clock_after_mhz=((1755,) * throttled + (1980,) * (20 - throttled),) * 9,
        throttle_reasons=((0,) * 20,) * 9,
        threads=1,
        interleaved_with=() if name == "torch_mha" else ("torch_mha",),
        method="device (CUDA events, cold L2 cache, launch hidden) and end-to-end wall",
        clock="NVML",
    )
    return replace(make_timed_result(name, 64), case=case, timing=timing, memory=None)


def test_on_a_device_device_time_and_end_to_end_time_are_reported(tmp_path: Path) -> None:
    """The page and the Markdown text have a table each of device time, end-to-end time and graph replay.

    They also give the number of throttled samples, which are left out; timings.csv has all these columns.
    """
    results = [
        make_cuda_result("torch_mha", 1, throttled=2),
        make_cuda_result("quick_one", 0.5, throttled=2, graph=True),
    ]
    write([make_stored_run(*results)], tmp_path)
    rows = {row["implementation"]: row for row in csv.DictReader((tmp_path / "timings.csv").read_text().splitlines())}
    quick = rows["quick_one"]
    assert (quick["measure"], quick["state"], quick["clock"], quick["throttled"]) == ("device", "faster", "NVML", "18")
    columns = ("median_ns", "ratio", "end_to_end_ns", "graph_ns", "samples")
    assert [float(quick[column]) for column in columns] == [500_000, 0.5, 1_300_000, 350_000, 180]
    assert rows["torch_mha"]["graph_ns"] == ""
    for name in ("index.html", "report.md"):
        text = (tmp_path / name).read_text("utf-8")
        for title in ("Time of a call on the device, ms", "End to end, ms", "Replay as a CUDA graph, ms"):
            assert title in text
        assert "left out for all implementations, here 36 of 360 samples. Readings of the clock: NVML." in text


def test_a_cell_without_device_time_is_marked_end_to_end(tmp_path: Path) -> None:
    """In a table of device times, a cell that has only an end-to-end time is marked "end to end".

    Its ratio is one of end-to-end times.
    """
    there = make_cuda_result("torch_mha", 1)
    elsewhere = make_cuda_result("quick_one", 1)
    assert elsewhere.timing
    results = [there, replace(elsewhere, timing=replace(elsewhere.timing, device_ns=(), late=(), clock="none: why"))]
    text = write_page(results, tmp_path)
    assert text.count(", end to end</small>") == 1
    assert "Readings of the clock: NVML and none: why." in text
    row = tables.tabulate_timings(results).set_index("implementation").loc["quick_one"]
    assert (row["measure"], row["median_ns"], row["ratio"], row["state"]) == ("wall", 1_300_000, 1.0, "same")


def test_a_report_of_a_cpu_does_not_mention_device_times(tmp_path: Path) -> None:
    """The page of a CPU does not mention device times; their columns in timings.csv are empty."""
    text = write_page(make_profile(), tmp_path)
    for word in ("on the device", "end to end", "End to end", "CUDA graph", "Readings of the clock"):
        assert word not in text
    rows = list(csv.DictReader((tmp_path / "timings.csv").read_text().splitlines()))
    assert {(row["measure"], row["end_to_end_ns"], row["graph_ns"]) for row in rows} == {("wall", "", "")}


def test_a_failed_control_makes_all_inconclusive() -> None:
    """If the baseline's copy is twice as slow as the baseline, every verdict of that case is inconclusive."""
    base = make_timed_result("torch_mha", 64)
    assert base.timing
    control = replace(base.timing, samples_ns=tuple(tuple(2 * ns for ns in own) for own in base.timing.samples_ns))
    results = [replace(base, timing=replace(base.timing, twin=control)), make_timed_result("quick_one", 64)]
    frame = tables.tabulate_timings(results).set_index("implementation")
    assert set(frame["state"]) == {"inconclusive"}
    assert set(frame["null_state"]) == {"slower"}
    assert frame.loc["quick_one", "null_ratio"] == pytest.approx(2, rel=1e-3)


def make_interleaved_result(*ratios: float) -> Result:
    """Make a result of nine processes, whose times are those of the reference multiplied by ``ratios``.

    The three ratios are for processes 0, 1 and 2; the other processes repeat them in this order.
    """
    base = make_timed_result("torch_mha", 64).timing
    assert base
    samples = tuple(tuple(int(ns * r) for ns in own) for own, r in zip(base.samples_ns, ratios * 3, strict=True))
    timing = Timing(samples_ns=samples, threads=2, interleaved_with=("torch_mha",))
    return replace(make_timed_result("quick_one", 64), implementation="near", timing=timing)


def test_the_exponent_of_growth_has_an_interval(tmp_path: Path) -> None:
    """If time or memory quadruples as the length doubles, the exponent is 2; two lengths give no exponent."""
    text = write_page(make_profile(), tmp_path)
    rows = list(csv.DictReader((tmp_path / "growth.csv").read_text("utf-8").splitlines()))
    # growth.csv has a row for each of two passes, two measures and two implementations. The third implementation has
    # no row, because it was timed at two lengths only.
    assert {(row["implementation"], row["measure"]) for row in rows} == {
        (name, measure) for name in ("torch_mha", "quick_one") for measure in ("time", "peak memory")
    }
    assert len(rows) == 8
    for row in rows:
        assert float(row["exponent"]) == pytest.approx(2, abs=1e-3)
        assert float(row["low"]) < 2 < float(row["high"]) or float(row["low"]) == pytest.approx(2)
        assert (row["shortest"], row["longest"], row["lengths"]) == ("64", "256", "3")
    assert "Growth with length" in text
    assert "2.00 (2.00 to 2.00)" in text


def test_disturbed_times_have_no_exponent() -> None:
    """If all times of an implementation were disturbed, it has no exponent of time, but one of memory."""
    results = []
    for length in LENGTHS:
        base, own = make_timed_result("torch_mha", length), make_timed_result("quick_one", length)
        assert own.timing
        waited = tuple(tuple(process) for process in own.timing.samples_ns)
        results += [base, replace(own, timing=replace(own.timing, waited_ns=waited))]
    frame = collect_content([make_stored_run(*results)]).series[0].growths
    assert sorted(zip(frame["implementation"], frame["measure"], strict=True)) == [
        ("quick_one", "peak memory"), ("torch_mha", "peak memory"), ("torch_mha", "time"),
    ]  # fmt: skip


def test_a_curve_that_bends_has_a_wide_interval() -> None:
    """L + L² is no power law and has a wide interval; an exact power law has an interval of width 0."""
    lengths = (16, 64, 256, 1024)
    exact = fit_growth(lengths, [3 * n**1.5 for n in lengths])
    assert exact is not None
    assert (exact.low, exact.exponent, exact.high) == pytest.approx((1.5, 1.5, 1.5))
    bent = fit_growth(lengths, [200 * n + n * n for n in lengths])
    assert bent is not None
    assert bent.low < 1.2 < bent.exponent < 1.8 < bent.high
    # Computed by hand for the fit below: the slope is 0.5, the residuals are 1/6, -1/3 and 1/6 of log 2, and
    # Student's t with one degree of freedom is 12.706.
    off = fit_growth((1, 2, 4), (1, 1, 2))
    assert off is not None
    assert off.high - off.exponent == pytest.approx(12.706 * (1 / 12) ** 0.5)
    assert fit_growth((64, 128), (1, 2)) is None
    assert fit_growth((64, 128, 256), (1, 0, 2)) is None


def test_the_report_names_the_kernels_and_a_fall_back_has_a_row_of_its_own(tmp_path: Path) -> None:
    """Lengths with the same kernels share a row of the table; a length with a fall-back has a row of its own."""
    fallen = replace(
        make_timed_result("quick_one", 256),
        kernels=("aten::_scaled_dot_product_attention_math", "aten::bmm ×2", "aten::copy_ ×3"),
    )
    results = [
        make_timed_result("torch_mha", 64),
        make_timed_result("quick_one", 64),
        make_timed_result("quick_one", 128),
        fallen,
    ]
    text = write_page(results, tmp_path)
    (listing,) = [
        one
        for one in make_listings(collect_content([make_stored_run(*results)]).series[0])
        if one.title == "Which kernel ran"
    ]
    assert [row[:4] for row in listing.rows] == [
        ("torch_mha", "forward", "64", "composed: the module's fast path"),
        ("quick_one", "forward", "64, 128", "fused: flash"),
        ("quick_one", "forward", "256", "composed: torch's math path, no fused kernel; 3 copies of tensors"),
    ]
    assert "no fused kernel; 3 copies of tensors" in text
    rows = list(csv.DictReader((tmp_path / "kernels.csv").read_text("utf-8").splitlines()))
    assert rows[3]["kernels"] == "aten::_scaled_dot_product_attention_math; aten::bmm ×2; aten::copy_ ×3"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("aten::_scaled_dot_product_efficient_attention",), "fused: memory-efficient"),
        (("aten::_scaled_dot_product_cudnn_attention", "aten::copy_"), "fused: cuDNN; 1 copy of tensors"),
        (("my::attend",), "its own"),
        (("aten::bmm ×2", "aten::_softmax"), "composed: products and softmax"),
    ],
)
def test_operators_indicate_a_code_path(names: tuple[str, ...], words: str) -> None:
    """``find_way`` infers the code path from torch's operators; an implementation that uses none gets "its own"."""
    assert find_way(names) == words


def test_the_report_gives_memory_and_memory_outside_the_allocator(tmp_path: Path) -> None:
    """The page gives the bytes outside torch's allocator; memory.csv also has peak, workspace and physical bytes."""
    text = write_page(make_profile(), tmp_path)
    assert "700 000 B outside" not in text
    assert "684 KiB outside the allocator" in text
    rows = list(csv.DictReader((tmp_path / "memory.csv").read_text("utf-8").splitlines()))
    slow = next(r for r in rows if r["implementation"] == "slow_one" and r["length"] == "64" and r["pass"] == "forward")
    exact = {"peak_bytes": 65536, "workspace_bytes": 32768, "physical_bytes": 69632, "outside_bytes": 700_000}
    assert {name: int(slow[name]) for name in exact} == exact
    assert (slow["saved_bytes"], slow["reserved_bytes"]) == ("", "")


def test_the_report_gives_ceilings_and_the_share_of_them(tmp_path: Path) -> None:
    """The report gives the machine's best rates of products and copies, and which fraction of them a call reached."""
    text = write_page(make_profile(), tmp_path)
    assert "<td>100</td><td>1.00</td>" in text
    assert "of the product ceiling" in text
    assert "of the copy ceiling" in text
    (row,) = csv.DictReader((tmp_path / "ceilings.csv").read_text("utf-8").splitlines())
    assert (row["threads"], row["gflop_per_s"], row["gbyte_per_s"]) == ("2", "100.0", "1.0")


def test_without_a_ceiling_there_is_a_rate_and_no_share() -> None:
    """Without a ceiling, or with one of another number of threads, a row has rates but no fraction of the ceiling."""
    frame = tables.tabulate_timings([make_timed_result("torch_mha", 64)])
    assert frame["gflop_per_s"].notna().all()
    assert frame["share"].isna().all()
    other = Ceiling(run=RUN, device="cpu", dtype="float32", threads=1, flop_per_s=1e11, bytes_per_s=1e9)
    assert tables.tabulate_timings([make_timed_result("torch_mha", 64)], [other])["share"].isna().all()


def test_a_stored_run_of_each_schema_is_reported(tmp_path: Path) -> None:
    """A report can be made of run files of schema 1 and 2, without importing torch."""
    data = Path(__file__).parents[1] / "data"
    program = (
        "import sys; from pathlib import Path; from attnbench.report import write; "
        "from attnbench.records.run_file import read_run\n"
        "for path in map(Path, sys.argv[2:]): write([read_run(path)], Path(sys.argv[1]) / path.stem)\n"
        "assert 'torch' not in sys.modules"
    )
    files = sorted(data.glob("run-schema-*.jsonl"))
    assert len(files) == 2
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *map(str, files)], check=True)
    assert all((tmp_path / file.stem / "index.html").is_file() for file in files)


def test_one_panel_is_not_stretched_and_a_narrow_axis_has_ticks(tmp_path: Path) -> None:
    """A figure of one panel keeps its width, and an axis of speeds that are almost equal has at least three ticks."""
    text = write_page([make_timed_result("torch_mha", 64), make_interleaved_result(0.95, 0.96, 0.969)], tmp_path)
    widths = [int(width) for width in re.findall(r'role="img" style="max-width:(\d+)px"', text)]
    assert len(widths) == 3
    assert all(500 < width < 700 for width in widths)
    drawn = re.findall(r">([\d.]+)×<", (tmp_path / "speed.svg").read_text("utf-8"))
    assert len(drawn) >= 3


def test_the_report_of_a_run_that_ended_before_timing_says_so(tmp_path: Path) -> None:
    """If a run ended before timing, the report has memory, and lists each call that was not timed."""
    probed = make_timed_result("quick_one", 64)
    text = write_page([replace(probed, timing=None)], tmp_path)
    assert "These runs contain no timings; the reason is listed for each call below." in text
    assert "the run ended before this call was timed" in text
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["memory.svg"]


def test_the_report_of_a_run_without_timings_says_so(tmp_path: Path) -> None:
    """If no call was timed, the report says so and has no plots."""
    assert "Nothing was timed" in write_page(make_check_results(), tmp_path)
    assert not list(tmp_path.glob("*.svg"))
    assert "Nothing was timed." in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_report_of_a_run_without_findings_says_so(tmp_path: Path) -> None:
    """The report of a run without results says that nothing was checked; it is no error."""
    assert "These runs contain no findings: nothing was checked." in write_page([], tmp_path)
    assert (tmp_path / "findings.csv").read_text().startswith("implementation,case,check,")


def test_a_curve_that_ends_at_the_work_limit_is_marked(tmp_path: Path) -> None:
    """A curve that ends at the work limit is labelled "beyond the limit", and the page gives the reason."""
    text = write_page(make_profile(), tmp_path)
    # One label for each of the two passes.
    assert (tmp_path / "time.svg").read_text(encoding="utf-8").count(">beyond the limit<") == 2
    assert "over the limit of 2 s (--work-limit)" in text


def test_machines_and_dtypes_are_never_mixed_in_one_plot(tmp_path: Path) -> None:
    """Each machine has plots of its own, whose file names give the machine, the device and the dtype."""
    other = Machine(name="gpu-box", cpu="Some CPU", cores=4, memory_bytes=2**30, gpu="Some GPU", driver="1")
    there = [
        Result(
            run="later", implementation=r.implementation, case=r.case, findings=r.findings, timing=r.timing,
            memory=r.memory, flop=r.flop, suite="perf",
        )
        for r in (make_timed_result("torch_mha", 64), make_timed_result("quick_one", 64))
    ]  # fmt: skip
    write([make_stored_run(*make_profile()), make_stored_run(*there, of=make_run(id="later", machine=other))], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("time*.svg")) == [
        "time-gpu-box-cpu-float32.svg",
        "time-some-cpu-cpu-float32.svg",
    ]


def test_numbers_of_threads_are_never_mixed_in_one_plot() -> None:
    """Times on one thread and on two are in different plots, even if the runs timed different implementations."""
    alone = [
        replace(r, run="later", timing=replace(r.timing, threads=1))
        for r in (make_timed_result("torch_mha", 64), make_timed_result("quick_one", 64))
        if r.timing
    ]
    both = [
        make_stored_run(*(make_timed_result(name, 64) for name in NAMES)),
        make_stored_run(*alone, of=make_run(id="later", threads=1)),
    ]
    series = collect_content(both).series
    assert [set(one.timings["threads"]) for one in series] == [{1}, {2}]
    assert [one.title.split(":")[0] for one in series] == [
        "some-cpu, cpu, float32, 1 thread",
        "some-cpu, cpu, float32, 2 threads",
    ]
    assert len({one.suffix for one in series}) == 2


def test_the_report_gives_the_longest_sequence(tmp_path: Path) -> None:
    """The report has a table of the longest sequences, with the reason why the next length does not fit.

    findings.csv does not contain results of the search.
    """
    tried = [
        Result(
            run=RUN, implementation="quick_one", case=perf_case(length, "inference"), suite="frontier", findings=(one,)
        )
        for length, one in (
            (64, Finding(check="fits", status="passed", measured=0.25, allowed=1.0)),
            (128, Finding(check="fits", status="out_of_memory", reason="no more")),
        )
    ]
    write([make_stored_run(make_timed_result("torch_mha", 64), make_timed_result("quick_one", 64), *tried)], tmp_path)
    words = ("#### Longest sequence\n", "128: out\\_of\\_memory: no more")
    assert all(word in tmp_path.joinpath("report.md").read_text() for word in words)
    assert "128: out_of_memory: no more" in tmp_path.joinpath("index.html").read_text()
    assert "fits" not in tmp_path.joinpath("findings.csv").read_text()


def test_dollar_signs_in_a_name_are_no_formula(tmp_path: Path) -> None:
    """Dollar signs in a name are drawn as text in a plot; the command that reproduces a failure quotes the name."""
    name = r"my dir/x.py:$\frac$"
    failed = make_result(Finding(check="forward_parity", status="failed", reason="off"), name=name)
    shown = [
        make_stored_run(
            failed, make_timed_result("torch_mha", 64), replace(make_timed_result("quick_one", 64), implementation=name)
        )
    ]
    write(shown, tmp_path)
    assert name in (tmp_path / "time.svg").read_text(encoding="utf-8")
    assert collect_content(shown).failures.shown[0].command.endswith(f" --check forward_parity '{name}'")


def test_the_level_of_an_interval_is_given_with_the_times(tmp_path: Path) -> None:
    """The interval of nine processes covers the median with a probability of 96 %; the page and the text say so."""
    write([make_stored_run(*make_profile())], tmp_path)
    for name in ("index.html", "report.md"):
        assert "covers the true median with a probability of 96.1 %; its ratio" in (tmp_path / name).read_text("utf-8")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """The message is one line and names the option for another folder."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"^cannot write the report to .*; name another folder with --reports DIR$"):
        write([make_stored_run(*make_check_results())], tmp_path / "file")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.012345, "0.0123"), (1.0, "1.00"), (123.456, "123"), (98765.4, "98765"), (float("nan"), "–")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """A number has three significant digits, all digits before the point, and no exponent."""
    assert format_digits(value) == text


def test_axes_have_units_that_keep_numbers_short() -> None:
    """Times and bytes have the unit that keeps the number short, for example 1 ms and 64 MiB."""
    assert [format_seconds(s) for s in (2e-6, 1e-3, 0.02, 3)] == ["2 µs", "1 ms", "20 ms", "3 s"]
    assert [format_bytes(b) for b in (512, 2**10, 2**26, 3 * 2**30)] == ["512 B", "1 KiB", "64 MiB", "3 GiB"]


# Coverage


def test_a_report_says_how_much_was_covered(tmp_path: Path) -> None:
    """Page and Markdown have the line of the completion; few checked cases of a whole suite are no verdict."""
    run = make_run()
    finding = Finding(check="forward_parity", status="passed")
    made = Completion(
        run=run.id, implementation="mine", suite="core", list_digest="d", listed=275, refused={"no": (1,)}, strength=2,
        combinations=100, taken=31, covered_by_list=5, covered=31, cases=("x", "y"), restrictions=("no weights",),
    )  # fmt: skip
    results = tuple(
        replace(make_result(finding, name="mine", case=case), run=run.id, suite="core")
        for case in (PLAIN.replace("float32", dtype) for dtype in ("float32", "float64", "bfloat16"))
    )
    stored = StoredRun(run=run, results=results, path=tmp_path / "r.jsonl", completions=(made,))
    write([stored], tmp_path)
    line = "mine takes 31 % of the reference's pairs (no weights); all of them covered, with 2 further cases"
    verdict = "no verdict on mine: only 3 cases were checked, and a verdict needs 20"
    for name in ("index.html", "report.md"):
        text = html.unescape((tmp_path / name).read_text())
        assert line in text
        assert verdict in text
        assert "findings passed" not in text
