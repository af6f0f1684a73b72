"""Tests of what is read of asv's result files and of run files, and of what is left out and named."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records.run_file import format_line
from attnhistory.points import Reading, Skipped
from attnhistory.series import History, make_history
from attnhistory.sources import HistoryError, find_default_paths, read_paths
from stored_history import SUITE, write_asv
from timed_runs import REFERENCE, case_of, store, time_calls

ROOT = Path(__file__).parents[2]


def read(*paths: Path) -> History:
    """Return the history of some paths."""
    found = list(read_paths(paths))
    return make_history(
        [one for one in found if isinstance(one, Reading)], [one for one in found if isinstance(one, Skipped)]
    )


def test_the_stored_history_of_this_repository_is_read() -> None:
    """Twelve commits of results/asv, in their order; 256 bytes more at one commit are found, and nothing is skipped."""
    history = read(ROOT / "results" / "asv")
    assert history.skipped == ()
    assert max(len(one.points) for one in history.series) == 12
    for one in history.series:
        assert [point.date for point in one.points] == sorted(point.date for point in one.points)
    moved = [
        (one.key.implementation, one.key.case, step.later.value - step.earlier.value, step.command)
        for one in history.series if one.key.quantity == "peak_bytes" for step in one.steps
    ]  # fmt: skip
    assert moved == [
        (
            "naive_loop",
            "length=64 pass=forward",
            256,
            "attnbench gate naive_loop --base 0ded276c --fail-on wrong,bigger --lengths 64 --bigger 1",
        )
    ]


def test_a_value_that_is_missing_is_left_out(tmp_path: Path) -> None:
    """NaN is n/a, null is a benchmark that failed: the step is between the commits on both sides of the gap.

    From when to when there was no number has steps of its own; a benchmark that failed says nothing of that.
    """
    for number, value in enumerate((4096, math.nan, None, 4097)):
        write_asv(tmp_path, number, {"peak_bytes": value})
    measured, series = read(tmp_path).series
    assert [point.value for point in series.points] == [4096, 4097]
    (step,) = series.steps
    assert (step.earlier.commit or "")[:8] == "00000000"
    assert (step.later.commit or "")[:8] == "00000003"
    assert (measured.key.quantity, [point.value for point in measured.points]) == ("measured", [1, 0, 1])
    assert [((step.earlier.commit or "")[:8], (step.later.commit or "")[:8]) for step in measured.steps] == [
        ("00000000", "00000001"), ("00000001", "00000003"),
    ]  # fmt: skip


def test_a_benchmark_that_failed_as_a_whole_has_no_values(tmp_path: Path) -> None:
    """The file has null in place of all values."""
    path = write_asv(tmp_path, 0, {"peak_bytes": 1, "flop": 2})
    stored = json.loads(path.read_text())
    stored["results"][f"{SUITE}.track_flop"][0] = None
    path.write_text(json.dumps(stored))
    history = read(tmp_path)
    assert [one.key.quantity for one in history.series] == ["peak_bytes"]
    assert history.skipped == ()


def test_ends_of_ratios_are_their_intervals(tmp_path: Path) -> None:
    """The values of ``track_time_ratio_low`` and ``_high`` are the interval; without them, there is none."""
    write_asv(tmp_path / "with", 0, {"time_ratio": 1.5, "time_ratio_low": 1.4, "time_ratio_high": 1.6, "time_ns": 7})
    write_asv(tmp_path / "without", 0, {"time_ratio": 1.5})
    (own,), (other,) = read(tmp_path / "with").series, read(tmp_path / "without").series
    assert (own.points[0].low, own.points[0].high, own.lacks_intervals) == (1.4, 1.6, False)
    assert (other.points[0].low, other.points[0].high, other.lacks_intervals) == (None, None, True)


def test_values_of_other_machines_versions_and_parameters_are_other_series(tmp_path: Path) -> None:
    """None of them is compared with another."""
    write_asv(tmp_path, 0, {"flop": 1})
    write_asv(tmp_path, 1, {"flop": 2}, machine="other-cpu")
    write_asv(tmp_path, 2, {"flop": 3}, env_name="virtualenv-py3.12")
    write_asv(tmp_path, 3, {"flop": 4}, params=[["'a'"], ["8"], ["'forward'"], ["'bfloat16'"], ["'causal'"]])
    path = write_asv(tmp_path, 4, {"flop": 5})
    stored = json.loads(path.read_text())
    stored["results"][f"{SUITE}.track_flop"][2] = "2"
    path.write_text(json.dumps(stored))
    history = read(tmp_path)
    assert sorted(one.points[0].value for one in history.series) == [1, 2, 3, 4, 5]
    assert all(one.steps == () for one in history.series)
    assert "length=8 pass=forward dtype=bfloat16 mask=causal" in {one.key.case for one in history.series}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"commit_hash": "ab', "it is no whole result file of asv"),
        ('{"commit_hash": 1}', "it is no whole result file of asv"),
        ("[]", "it is no whole result file of asv"),
        ("[" * 100_000, "it is no whole result file of asv"),
    ],
)  # fmt: skip
def test_a_file_that_was_cut_is_named_and_the_rest_is_read(tmp_path: Path, text: str, reason: str) -> None:
    """Half-written and foreign files do not stop the command."""
    whole = write_asv(tmp_path, 0, {"flop": 1})
    cut = whole.with_name("ffffffff-virtualenv.json")
    cut.write_text(text)
    history = read(tmp_path)
    assert len(history.series) == 1
    (skipped,) = history.skipped
    assert skipped.path == str(cut.resolve())
    assert reason in skipped.reason


def test_an_unknown_format_and_other_parameters_are_named(tmp_path: Path) -> None:
    """A benchmark with other parameters than those of attnbench.asv has a name of its own, which is told."""
    write_asv(tmp_path, 0, {"flop": 1}, version=3)
    write_asv(tmp_path, 1, {"flop": 1}, params=[["'a'"], ["8"]])
    path = write_asv(tmp_path, 2, {"flop": 1})
    stored = json.loads(path.read_text())
    stored["results"][f"{SUITE}.track_flop"][0] = [1, 2, 3]
    path.write_text(json.dumps(stored))
    reasons = [one.reason for one in read(tmp_path).skipped]
    assert reasons[0] == "asv's format 3 is not known, only 2"
    assert reasons[1].startswith(f"{SUITE}.track_flop is no benchmark of attnbench.asv: its parameters must be")
    assert reasons[2].startswith(f"{SUITE}.track_flop is no benchmark of attnbench.asv")


def test_a_configuration_names_the_folder_of_results(tmp_path: Path) -> None:
    """Its comments are JavaScript's; before the first measurement the folder is missing, which is no error."""
    config = tmp_path / "asv.conf.json"
    config.write_text('{\n// asv\n"repo": "https://a.b//c", /* here */ "results_dir": "kept/asv" // folder\n}')
    assert read(config).series == ()
    write_asv(tmp_path / "kept" / "asv", 0, {"flop": 1})
    assert len(read(config).series) == 1
    assert find_default_paths(tmp_path) == [config]
    config.write_text("{")
    with pytest.raises(HistoryError, match=r"cannot be read: .*; name the folder of asv's results instead"):
        read(config)


def write_run(
    path: Path, commit: str | None, *, peak: int, factor: float, name: str = "mine",
    commits: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Write a run in which an implementation takes ``factor`` times as long as the reference."""
    stored = store([time_calls(REFERENCE), time_calls(name, factor)], run=path.stem)
    run = replace(stored.run, commit=commit, commits=commits or {}, time=f"2026-01-{path.stem[-2:]}T00:00:00+00:00")
    results = [replace(one, run=run.id) for one in stored.results]
    own = replace(results[1], memory=replace(results[1].memory, peak_bytes=peak), kernels=("gemm ×3", "softmax"))
    path.write_bytes(b"".join(map(format_line, [run, results[0], own])))


def test_runs_have_counters_and_ratios_with_intervals(tmp_path: Path) -> None:
    """A byte more, and a ratio whose interval moved as a whole, are steps between the commits of the runs."""
    write_run(tmp_path / "run-01.jsonl", "a" * 12, peak=100, factor=1.0)
    write_run(tmp_path / "run-02.jsonl", "b" * 12, peak=101, factor=1.5)
    own = {one.key.quantity: one for one in read(tmp_path).series if one.key.implementation == "mine"}
    assert set(own) == {"peak_bytes", "saved_bytes", "workspace_bytes", "kernel_calls", "flop", "time_ratio"}
    assert {quantity for quantity, one in own.items() if one.steps} == {"peak_bytes", "time_ratio"}
    assert own["kernel_calls"].points[0].value == 4
    (step,) = own["time_ratio"].steps
    assert (step.rule, step.command) == ("intervals", "attnbench gate mine --base aaaaaaaa --lengths 64")
    assert own["peak_bytes"].key.case == case_of()


def test_a_run_has_the_commit_of_each_implementation(tmp_path: Path) -> None:
    """Foreign code is at the commit of its own repository, whatever commit of attnbench measured it."""
    for number, peak in enumerate((100, 101), 1):
        path = tmp_path / f"run-0{number}.jsonl"
        write_run(path, "a" * 12, peak=peak, factor=1.0, commits={"mine": str(number) * 12})
    own = {one.key.quantity: one for one in read(tmp_path).series if one.key.implementation == "mine"}
    (step,) = own["peak_bytes"].steps
    assert (step.earlier.commit, step.later.commit) == ("1" * 12, "2" * 12)


def test_counters_of_an_operator_that_is_not_installed_are_read(tmp_path: Path) -> None:
    """Only its ratios need the operator, which says what the reference is."""
    write_run(tmp_path / "run-01.jsonl", "a" * 12, peak=100, factor=1.0)
    file = tmp_path / "run-01.jsonl"
    file.write_text(file.read_text().replace("multihead/", "unknown_operator/"))
    history = read(tmp_path)
    assert history.skipped == ()
    assert "peak_bytes" in {one.key.quantity for one in history.series}
    assert "time_ratio" not in {one.key.quantity for one in history.series}


def test_a_commit_that_was_measured_again_keeps_its_place(tmp_path: Path) -> None:
    """Its last value counts, and the order of commits is that of their first runs."""
    write_run(tmp_path / "run-01.jsonl", "a" * 12, peak=100, factor=1.0)
    write_run(tmp_path / "run-02.jsonl", "b" * 12, peak=200, factor=1.0)
    write_run(tmp_path / "run-03.jsonl", "a" * 12, peak=150, factor=1.0)
    own = {one.key.quantity: one for one in read(tmp_path).series if one.key.implementation == "mine"}
    assert [point.value for point in own["peak_bytes"].points] == [150, 200]


def test_a_run_without_a_commit_is_named_by_its_id(tmp_path: Path) -> None:
    """So is one with changes that are in no commit; then no command settles the step."""
    write_run(tmp_path / "run-01.jsonl", None, peak=100, factor=1.0)
    write_run(tmp_path / "run-02.jsonl", "b" * 12 + "+", peak=200, factor=1.0)
    write_run(tmp_path / "run-03.jsonl", "b" * 12 + "+", peak=300, factor=1.0, name="mine @ ../before")
    steps = [step for one in read(tmp_path).series for step in one.steps]
    assert [(step.earlier.run, step.later.run, step.command) for step in steps] == [("run-01", "run-02", None)]


def test_a_run_file_that_was_cut_is_named(tmp_path: Path) -> None:
    """What its whole lines have is read; a file without a run is skipped."""
    write_run(tmp_path / "run-01.jsonl", "a" * 12, peak=100, factor=1.0)
    whole = (tmp_path / "run-01.jsonl").read_bytes()
    (tmp_path / "run-02.jsonl").write_bytes(whole[: len(whole) - 40].replace(b"run-01", b"run-02"))
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    history = read(tmp_path)
    assert {Path(one.path).name for one in history.skipped} >= {"run-02.jsonl", "other.jsonl"}
    assert len(history.series) > 0


def test_a_file_that_two_paths_name_is_read_once(tmp_path: Path) -> None:
    """A folder and a file within it are no two measurements."""
    shutil.copytree(ROOT / "results" / "asv", tmp_path / "asv")
    file = next((tmp_path / "asv").glob("*/*-virtualenv-*.json"))
    assert len(list(read_paths([tmp_path, file]))) == len(list(read_paths([tmp_path])))
