"""Tests of damaged measurements: each is counted, named and left out, with one series and with two."""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.records.run_file import StoredRun, format_line, read_run
from attnbench.records.types import Ceiling, Finding, Machine, Memory, Record, Result, Run, Timing
from attnbench.report import write
from attnbench.report.content import Content, collect_content
from attnbench.report.figures import drawings
from attnbench.words.exclusions import count_exclusions, describe_fault
from attnbench.words.findings import describe_fact

RUN = "20260101-000000-abcd"
NAMES = ("torch_mha", "quick_one")
LENGTHS = (64, 128, 256)
PASSED = Finding(check="forward_parity", status="passed", measured=1e-7, allowed=1e-6)
CEILING = Ceiling(run=RUN, device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=1e9)
# Values that a damaged file may have in place of any field.
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**30, 1e308, -0.5, "", "ü" * 50, [], {}, [[]], [[0]], [[0, 0], [0]], [-5], "a/b",
    "multihead/B1.L0.S0.E256.H4/bias/mask=none/regime=plain/seed=0/float32/cpu/train",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _draw_no_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures out, which take most of the time of a report, except where random damage may reach them."""
    if "seed" not in request.fixturenames:
        monkeypatch.setattr(drawings, "MOST_TABLES", 0)


def make_run(**changes: Any) -> Run:
    """Make the record of a run on an invented machine."""
    machine = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=8 * 2**30)
    fields: dict[str, Any] = {"id": RUN, "time": "2026-01-01", "command": "attnbench run", "machine": machine}
    return Run(**(fields | {"versions": {}, "threads": 2, "implementations": NAMES} | changes))


def make_timing(name: str, *, processes: int = 9) -> Timing:
    """Make a timing of which nothing is left out."""
    samples = tuple(tuple(10_000 + 10 * p + noise for noise in (0, 7, 90, 3, 8)) for p in range(processes))
    return Timing(samples_ns=samples, threads=2, interleaved_with=tuple(one for one in NAMES if one != name))


def make_results(dtype: str = "float32") -> list[Result]:
    """Make the timed results of two implementations at three lengths: one series."""
    return [
        Result(
            run=RUN,
            implementation=name,
            case=f"multihead/B1.L{length}.S{length}.E256.H4/bias/mask=none/regime=plain/seed=0/{dtype}/cpu/inference",
            findings=(PASSED,),
            timing=make_timing(name),
            memory=Memory(peak_bytes=length * 4096, threads=2, method="allocator"),
            flop=length * 1024,
            bytes=length * 2048,
            suite="perf",
        )
        for length in LENGTHS
        for name in NAMES
    ]


def make_series(count: int) -> list[Result]:
    """Make the results of one series, or of two."""
    return [result for dtype in ("float32", "bfloat16")[:count] for result in make_results(dtype)]


def store(*results: Result, ceilings: tuple[Ceiling, ...] = (CEILING,), run: Run | None = None) -> StoredRun:
    """Make a run as ``read_run`` returns it."""
    return StoredRun(run=run or make_run(), results=results, ceilings=ceilings, path=Path("stored.jsonl"))


def damage(results: list[Result], **changes: Any) -> list[Result]:
    """Change fields of the timing of the second result, which is of quick_one at the shortest length."""
    timing = results[1].timing
    assert timing is not None
    return [results[0], replace(results[1], timing=replace(timing, **changes)), *results[2:]]


def write_report(folder: Path, *runs: StoredRun) -> tuple[Content, str, str]:
    """Write a report, and return its content, its page and its Markdown text."""
    page = write(runs, folder)
    return collect_content(runs), page.read_text("utf-8"), (folder / "report.md").read_text("utf-8")


SAMPLES = make_timing("quick_one").samples_ns


@pytest.mark.parametrize("series", [1, 2])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"samples_ns": ()}, "it has no samples"),
        ({"samples_ns": ((),) * 9}, "it has no samples"),
        ({"samples_ns": ((0,) * 5,) * 9}, "samples_ns has a sample of 0 in process 0"),
        ({"samples_ns": (*SAMPLES[:8], (0,) * 5)}, "samples_ns has a sample of 0 in process 8"),
        ({"samples_ns": (*SAMPLES[:8], (5, -7, 5, 5, 5))}, "samples_ns has a sample of -7 in process 8"),
        ({"samples_ns": (*SAMPLES[:8], (10**30,) * 5)}, "samples_ns has a sample of 2^99 or more in process 8"),
        ({"waited_ns": ((-1,) * 5,) * 9}, "waited_ns has a sample of -1 in process 0"),
        ({"device_ns": ((0,) * 5,) * 9}, "device_ns has a sample of 0 in process 0"),
        ({"cycles": ((1,) * 5,) * 8}, "cycles has 8 processes, and samples_ns has 9"),
        ({"switches": ((0,) * 4,) * 9}, "switches has 4 numbers in process 0, and samples_ns has 5"),
        ({"build_ns": (-5,)}, "build_ns has a time of -5 ns"),
        ({"twin": make_timing("", processes=3)}, "it has 9 processes, and its A/A control"),
        ({"twin": Timing(samples_ns=((0,) * 5,) * 9, threads=2)}, "in its A/A control, samples_ns has a sample of 0"),
    ],
)
def test_an_impossible_timing_is_named_and_left_out(
    tmp_path: Path, changes: dict[str, Any], reason: str, series: int
) -> None:
    """A timing that cannot be right is in no table; page, Markdown and left-out.csv say how many there are, and why."""
    results = damage(make_series(series), **changes)
    content, page, text = write_report(tmp_path, store(*results))
    assert [(one.kind, one.implementation, one.case) for one in content.summary.exclusions] == [
        ("timing", "quick_one", results[1].case)
    ]
    fault = describe_fault(content.summary.exclusions[0].reason)
    assert reason in fault
    assert len(content.summary.timings) == len(results) - 1
    assert count_exclusions(content.summary.exclusions) == "1 timing"
    assert "left out of all numbers, because it cannot be right: 1 timing" in page
    assert "left out of all numbers, because it cannot be right: 1 timing" in text
    assert "quick_one" in page.partition('id="left-out"')[2]
    (row,) = csv.DictReader((tmp_path / "left-out.csv").read_text("utf-8").splitlines())
    assert reason in row["reason"]
    # The call is listed as one that has no time, and its findings are kept.
    assert f"left out: {fault}" in {describe_fact(one.untimed) for one in content.results if one.untimed}
    assert all(one.findings for one in content.results)


@pytest.mark.parametrize("series", [1, 2])
def test_contradicting_timings_are_not_compared(tmp_path: Path, series: int) -> None:
    """Timings of the same run and case with other numbers of processes keep their times, and have no ratio."""
    results = damage(make_series(series), samples_ns=SAMPLES[:4])
    content, page, _ = write_report(tmp_path, store(*results))
    assert count_exclusions(content.summary.exclusions) == "2 comparisons"
    assert "it has 4 processes, and torch_mha, with which it was timed, has 9" in page
    rows = {one.implementation: one for one in content.summary.timings if one.case == results[1].case}
    assert rows["quick_one"].time.processes == 4
    assert [one.ratio is None for one in rows.values()] == [False, True]  # the reference beside itself
    assert rows["quick_one"].state is None


@pytest.mark.parametrize("series", [1, 2])
def test_absent_partners_are_named(tmp_path: Path, series: int) -> None:
    """A timing that names an implementation that is not in the run keeps its time; the name is reported."""
    results = damage(make_series(series), interleaved_with=("torch_mha", "never_there"))
    content, page, _ = write_report(tmp_path, store(*results))
    assert count_exclusions(content.summary.exclusions) == "1 comparison"
    assert "timed with never_there, which is not in its run" in page
    assert all(one.ratio for one in content.summary.timings)


@pytest.mark.parametrize("series", [1, 2])
@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_ceiling_is_left_out(tmp_path: Path, rate: float, series: int) -> None:
    """No share is computed from a ceiling that is not a positive number."""
    content, page, _ = write_report(
        tmp_path, store(*make_series(series), ceilings=(replace(CEILING, flop_per_s=rate),))
    )
    assert count_exclusions(content.summary.exclusions) == "1 ceiling"
    assert "flop_per_s is" in page
    assert content.ceilings == []
    assert {one.rates.share for one in content.summary.timings} == {None}


@pytest.mark.parametrize("series", [1, 2])
def test_impossible_memory_and_work_are_left_out(tmp_path: Path, series: int) -> None:
    """Negative or enormous bytes and operations are named, and the time beside them is kept."""
    first, second, *others = make_series(series)
    memory = replace(first.memory, peak_bytes=-1)  # type: ignore[type-var]
    results = [replace(first, memory=memory), replace(second, flop=10**400), *others]
    content, page, _ = write_report(tmp_path, store(*results))
    assert count_exclusions(content.summary.exclusions) == "1 memory measurement, 1 number of operations"
    assert "peak_bytes is -1" in page
    assert sum(one.memory is not None for one in content.results) == len(results) - 1
    assert len(content.summary.timings) == len(results)


@pytest.mark.parametrize("series", [1, 2])
def test_unreadable_and_endless_case_ids_are_left_out(tmp_path: Path, series: int) -> None:
    """A result whose case has no such id, no tokens or an endless length is left out whole, and named."""
    first, second, third, *others = make_series(series)
    results = [
        replace(first, case="multihead/nonsense"),
        replace(second, case=second.case.replace("64", "0")),
        replace(third, case=third.case.replace("128", "9" * 5000)),
        *others,
    ]
    content, _, _ = write_report(tmp_path, store(*results))
    kept = [one for one in content.summary.exclusions if one.kind == "result"]
    assert len(kept) == 3
    assert "a case id has 9 parts" in describe_fault(kept[0].reason)
    assert kept[1].reason.key == "no_tokens"
    assert len(content.results) == len(results) - 3


@pytest.mark.parametrize("series", [1, 2])
def test_a_search_of_an_unknown_operator_is_left_out(tmp_path: Path, series: int) -> None:
    """A longest sequence of an operator that is not installed here is named, and does not stop the report."""
    results = make_series(series)
    unknown = replace(results[0], case=results[0].case.replace("multihead", "elsewhere"), suite="frontier")
    content, page, _ = write_report(tmp_path, store(*results, unknown))
    assert [one.kind for one in content.summary.exclusions] == ["result"]
    assert "elsewhere" in page


def test_two_runs_with_one_id_are_not_mixed(tmp_path: Path) -> None:
    """Of two different runs with the same id, the second is left out and named."""
    other = make_run(machine=replace(make_run().machine, name="other-cpu"))
    content, page, _ = write_report(tmp_path, store(*make_series(1)), store(*make_series(1), run=other))
    assert count_exclusions(content.summary.exclusions) == "1 run"
    assert len(content.runs) == 1
    assert "another run of this report has the same id" in page


def test_a_sound_run_has_no_list_of_what_was_left_out(tmp_path: Path) -> None:
    """Where nothing is left out, the report does not speak of it."""
    content, page, text = write_report(tmp_path, store(*make_series(2)))
    assert content.summary.exclusions == ()
    assert "Left out" not in page + text
    assert not (tmp_path / "left-out.csv").exists()


@pytest.mark.parametrize("series", [1, 2])
@pytest.mark.parametrize("status", ["", "maybe", None, 3])
def test_an_unknown_status_costs_its_line(tmp_path: Path, status: object, series: int) -> None:
    """A result with a status that does not exist is named among the lines that could not be read."""
    lines = [format_line(record) for record in (make_run(), *make_series(series))]
    fields = json.loads(lines[1])
    fields["findings"][0]["status"] = status
    lines[1] = json.dumps(fields).encode() + b"\n"
    path = tmp_path / "stored.jsonl"
    path.write_bytes(b"".join(lines))
    content, page, _ = write_report(tmp_path / "report", read_run(path))
    assert len(content.unreadable) == 1
    assert "stored.jsonl line 2 cannot be read and is left out" in page


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_never_stops_a_report(tmp_path: Path, seed: int) -> None:
    """Whatever fields of a file's records are replaced by values of other kinds and sizes, the report is written."""
    draw = random.Random(seed)  # the same damage every time
    records: list[Record] = [make_run(), CEILING, *make_series(1 + seed % 2)]
    rows = [json.loads(format_line(record)) for record in records]
    for _ in range(draw.randint(1, 6)):
        row = rows[draw.randrange(1, len(rows))]
        *way, last = draw.choice(list(list_places(row)))
        inner: Any = row
        for key in way:
            inner = inner[key]
        inner[last] = draw.choice(VALUES)
    path = tmp_path / "stored.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert write([read_run(path)], tmp_path / "report").exists()


def list_places(value: Any, *way: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every field and every element inside a value that was read from JSON."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*way, key)
        yield from list_places(one, *way, key)


@pytest.mark.parametrize("share", range(1, 8))
def test_a_run_that_was_cut_at_any_byte_is_reported(tmp_path: Path, share: int) -> None:
    """Of a file that ends in the middle of a line, the whole lines are reported, and the last one is named."""
    whole = b"".join(map(format_line, (make_run(), CEILING, *make_series(1))))
    first = len(format_line(make_run()))
    path = tmp_path / "stored.jsonl"
    path.write_bytes(whole[: first + (len(whole) - first) * share // 8])
    content, page, _ = write_report(tmp_path / "report", read_run(path))
    # The line that was cut is told beside the cut, and not as damage of its own.
    assert content.unreadable == []
    assert "The last line was half-written when the run was cut." in page
