"""Tests of reading large run files: what a compact run lacks, and that a report on it says the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.records import compact_reading
from attnbench.records.compact_reading import FiledTiming, load_samples, read_compactly, read_runs
from attnbench.records.run_file import ResultsError, StoredRun, format_line, read_run
from attnbench.records.types import Finding, Result
from attnbench.report import write
from tests.timed_runs import PASSED, REFERENCE, case_of, store, time_calls

# A run with timings, findings of several statuses, and an end.
STORED = Path(__file__).parents[1] / "data" / "run-schema-5.jsonl"
# Characters that no page may show as they are.
HIDDEN = "\u202e"


def write_run(folder: Path, *results: Result) -> Path:
    """Write a run file with these results."""
    path = folder / "run-1.jsonl"
    path.write_bytes(b"".join(map(format_line, [store(results).run, *results])))
    return path


def test_a_compact_run_has_the_same_results() -> None:
    """Only the errors of findings that passed without a warning are missing; samples are read again on use."""
    whole, compact = read_run(STORED), read_compactly(STORED)
    assert compact.compact
    assert replace(compact, results=(), compact=False) == replace(whole, results=())
    for one, other in zip(whole.results, compact.results, strict=True):
        assert [(f.check, f.status, f.reason, f.warnings) for f in one.findings] == [
            (f.check, f.status, f.reason, f.warnings) for f in other.findings
        ]
        assert replace(one, findings=(), timing=None, memory=None) == replace(
            other, findings=(), timing=None, memory=None
        )
        assert one.memory == other.memory
        assert (one.timing is None) == (other.timing is None)
        if one.timing is not None and other.timing is not None:
            assert isinstance(other.timing, FiledTiming)
            assert load_samples(other.timing) == one.timing
            assert other.timing.samples_ns == one.timing.samples_ns


def test_findings_are_shared(tmp_path: Path) -> None:
    """Findings that passed or were refused for one reason are one object; failures keep their errors."""
    refused = Finding(check="masks", status="unsupported", reason="no masks")
    failed = Finding(check="gradients", status="failed", reason="off", measured=2.0, allowed=1.0)
    warned = Finding(check="scale", status="passed", measured=0.9, allowed=1.0, warnings=("uses 90%",))
    results = [
        Result(
            run="run-1", implementation="sdpa", case=case_of(length), suite="core",
            findings=(replace(PASSED, measured=length / 1e3), refused, failed, warned),
        )
        for length in (64, 128)
    ]  # fmt: skip
    one, other = read_compactly(write_run(tmp_path, *results)).results
    assert one.findings[0] is other.findings[0]
    assert one.findings[0] == PASSED
    assert one.findings[1] is other.findings[1]
    assert one.findings[1:] == (refused, failed, warned)
    assert one.implementation is other.implementation


@pytest.mark.parametrize(("limit", "compact"), [(0, True), (10**9, False)])
def test_only_large_files_are_read_compactly(limit: int, compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are large together are read compactly."""
    monkeypatch.setattr(compact_reading, "LARGE_BYTES", limit)
    (stored,) = read_runs([STORED])
    assert stored.compact is compact


def test_a_report_on_a_compact_run_says_the_same(tmp_path: Path) -> None:
    """All tables are equal to those of a whole run, except that findings.csv lacks what passed, and says so."""
    write([read_run(STORED)], tmp_path / "whole")
    write([read_compactly(STORED)], tmp_path / "compact")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in (tmp_path / "compact").iterdir()) == names
    for name in (name for name in names if name.endswith((".csv", ".json")) and name != "findings.csv"):
        assert (tmp_path / "compact" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows, every = ((tmp_path / kind / "findings.csv").read_text().splitlines() for kind in ("compact", "whole"))
    assert 1 <= len(rows) < len(every)
    assert set(rows) <= set(every)
    text, before = ((tmp_path / kind / "report.md").read_text() for kind in ("compact", "whole"))
    said = "Because the runs are large, findings.csv leaves out the findings that passed without a warning. "
    assert text == before.replace("findings.csv has the measured", f"{said}findings.csv has the measured")


def test_hidden_characters_of_timings_are_spelled_out(tmp_path: Path) -> None:
    """A text of a timing is read again after the other texts were spelled out, and is spelled out then."""
    timed = time_calls(REFERENCE)
    assert timed.timing is not None
    other = time_calls("sdpa", 0.5)
    path = write_run(tmp_path, replace(timed, timing=replace(timed.timing, method=f"wall{HIDDEN}")), other)
    write([read_compactly(path)], tmp_path / "report")
    assert HIDDEN not in (tmp_path / "report" / "report.md").read_text()


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    """If the samples are no longer where they were, the error names the file."""
    path = write_run(tmp_path, time_calls(REFERENCE))
    stored: StoredRun = read_compactly(path)
    path.write_text("{}\n")
    with pytest.raises(ResultsError, match="has changed while it was read"):
        load_samples(stored.results[0].timing)  # type: ignore[arg-type]


def test_absent_partners_are_removed_from_a_compact_run(tmp_path: Path) -> None:
    """A timing that names an implementation that is not in its run keeps its time, as in a whole run."""
    timed = time_calls("sdpa", 0.5)
    assert timed.timing is not None
    names = (REFERENCE, "never_there")
    absent = replace(timed, timing=replace(timed.timing, interleaved_with=names, method=f"wall{HIDDEN}"))
    path = write_run(tmp_path, time_calls(REFERENCE), absent)
    for kind, read in (("whole", read_run), ("compact", read_compactly)):
        write([read(path)], tmp_path / kind)
    for name in ("timings.csv", "left-out.csv"):
        assert (tmp_path / "compact" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "timed with never_there" in (tmp_path / "compact" / "left-out.csv").read_text()
    assert HIDDEN not in (tmp_path / "compact" / "report.md").read_text()
