"""Tests of reports: what they say, that names in them are escaped, and that their numbers follow from the run file."""

import csv
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from attnbench.analysis.timing_rows import measure_calls
from attnbench.records.run_file import ResultsError, StoredRun
from attnbench.records.types import Ceiling, Finding, Machine, Memory, Result, Run, Timing, find_pass
from attnbench.report import write, write_content
from attnbench.report.columns import TIMINGS
from attnbench.report.content import collect_content
from attnbench.report.kernel_paths import find_way
from attnbench.report.numbers import format_bytes, format_digits, format_seconds
from attnbench.report.tables import make_frame

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


def tabulate(results: list[Result], ceilings: Sequence[Ceiling] = ()) -> pd.DataFrame:
    """Return the rows of timings.csv for these results."""
    return make_frame(TIMINGS, measure_calls(results, ceilings, may_choose=lambda _: False).rows)


def write_page(results: list[Result], folder: Path) -> str:
    """Write a report of these results into a folder, and return its HTML page."""
    return write([make_stored_run(*results)], folder).read_text(encoding="utf-8")


def test_a_report_is_a_page_a_text_tables_and_three_figures(tmp_path: Path) -> None:
    """``write`` returns the path of the HTML page; the Markdown text, tables and figures are in the page's folder."""
    written = write([make_stored_run(*make_check_results(), *make_profile())], tmp_path / "new" / "folder")
    assert written == tmp_path / "new" / "folder" / "index.html"
    assert sorted(path.name for path in written.parent.iterdir()) == [
        "ceilings.csv", "decisions.csv", "dispatch.json", "failures.csv", "findings.csv", "growth.csv",
        "index.html", "kernels.csv", "memory.csv", "memory.png", "memory.svg", "ratio.png", "ratio.svg", "report.md",
        "time.png", "time.svg", "timings.csv",
    ]  # fmt: skip


def test_links_to_other_pages_are_at_the_end(tmp_path: Path) -> None:
    """The page and the Markdown file end with the given links; text and address are never markup."""
    links = [("history by asv", "../asv/index.html"), ("<b>", 'x"y')]
    write_content(collect_content([make_stored_run(*make_check_results())]), tmp_path, links)
    page, text = ((tmp_path / name).read_text() for name in ("index.html", "report.md"))
    assert 'See also <a href="../asv/index.html">history by asv</a>, <a href="x&#34;y">&lt;b&gt;</a>.' in page
    assert text.endswith('See also [history by asv](<../asv/index.html>), [\\<b\\>](<x"y>).\n')


def test_two_reports_of_the_same_runs_have_the_same_bytes(tmp_path: Path) -> None:
    """All files of two reports of the same runs are equal byte for byte: the time of writing is not in a report."""
    for name in ("one", "other"):
        write([make_stored_run(*make_check_results(), *make_profile())], tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "quick, case list 0123456789ab"),
        ({"suite_digest": "", "list_digest": "ba9876543210"}, "quick, part of case list ba9876543210"),
        ({"suite_digest": "", "suite": ""}, "none"),
    ],
)
def test_a_run_without_the_whole_list_shows_no_empty_hash(tmp_path: Path, changes: dict[str, str], shown: str) -> None:
    """The page has the hash of the list, that of the list of which the run has a part, or none."""
    write([make_stored_run(*make_check_results(), of=make_run(**changes))], tmp_path)
    assert f"<dt>suite</dt><dd>{shown}</dd>" in (tmp_path / "index.html").read_text()


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
    for name, scripts in (("index.html", 1), ("time.svg", 0)):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert text.count("<script") == scripts
        assert "&lt;script" in text
    assert "\n<script" not in (tmp_path / "report.md").read_text(encoding="utf-8")


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
    alone = tabulate([make_timed_result("quick_one", 64)])
    assert alone["ratio"].isna().all()
    assert set(alone["state"]) == {""}
    frame = tabulate([make_timed_result("quick_one", 64), make_timed_result("torch_mha", 64, processes=2)]).set_index(
        "implementation"
    )
    assert frame["ratio"].isna().to_dict() == {"quick_one": True, "torch_mha": False}
    assert frame["state"].to_dict() == {"quick_one": "", "torch_mha": ""}


def test_the_pass_follows_from_the_mode() -> None:
    """A case in mode ``inference`` is timed forward, and a case in another mode forward and backward."""
    assert find_pass(perf_case(8, "inference")) == "forward"
    assert find_pass(perf_case(8, "train")) == find_pass(perf_case(8, "eval")) == "forward+backward"


def test_a_failed_control_makes_all_inconclusive() -> None:
    """If the baseline's copy is twice as slow as the baseline, every verdict of that case is inconclusive."""
    base = make_timed_result("torch_mha", 64)
    assert base.timing
    control = replace(base.timing, samples_ns=tuple(tuple(2 * ns for ns in own) for own in base.timing.samples_ns))
    results = [replace(base, timing=replace(base.timing, twin=control)), make_timed_result("quick_one", 64)]
    frame = tabulate(results).set_index("implementation")
    assert set(frame["state"]) == {"inconclusive"}
    assert set(frame["null_state"]) == {"slower"}
    assert frame.loc["quick_one", "null_ratio"] == pytest.approx(2, rel=1e-3)


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


def test_without_a_ceiling_there_is_a_rate_and_no_share() -> None:
    """Without a ceiling, or with one of another number of threads, a row has rates but no fraction of the ceiling."""
    frame = tabulate([make_timed_result("torch_mha", 64)])
    assert frame["gflop_per_s"].notna().all()
    assert frame["share"].isna().all()
    other = Ceiling(run=RUN, device="cpu", dtype="float32", threads=1, flop_per_s=1e11, bytes_per_s=1e9)
    assert tabulate([make_timed_result("torch_mha", 64)], [other])["share"].isna().all()


def test_a_stored_run_of_each_schema_is_reported(tmp_path: Path) -> None:
    """A report can be made of run files of schemas 1 to 7, without importing torch."""
    data = Path(__file__).parents[1] / "data"
    program = (
        "import sys; from pathlib import Path; from attnbench.report import write; "
        "from attnbench.records.run_file import read_run\n"
        "for path in map(Path, sys.argv[2:]): write([read_run(path)], Path(sys.argv[1]) / path.stem)\n"
        "assert 'torch' not in sys.modules"
    )
    files = sorted(data.glob("run-schema-*.jsonl"))
    assert len(files) == 7
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *map(str, files)], check=True)
    assert all((tmp_path / file.stem / "index.html").is_file() for file in files)


def test_the_report_of_a_run_that_ended_before_timing_says_so(tmp_path: Path) -> None:
    """If a run ended before timing, the report has memory, and lists each call that was not timed."""
    probed = make_timed_result("quick_one", 64)
    text = write_page([replace(probed, timing=None)], tmp_path)
    assert "not reached" in text
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["memory.svg"]


def test_the_report_of_a_run_without_findings_says_so(tmp_path: Path) -> None:
    """The report of a run without results says that nothing was checked; it is no error."""
    assert "Nothing was checked" in write_page([], tmp_path)
    assert (tmp_path / "findings.csv").read_text().startswith("implementation,case,check,")


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
