"""Tests of the study of a report's cost, at a tenth of its size."""

from pathlib import Path

import pytest

from attnbench.records.run_file import read_run
from research.report_scale import measure_report, write_conformance, write_profile

pytestmark = pytest.mark.extended

# Limits at a tenth of the study's size. LIMIT_S: seconds of processor time. MOST_BYTES: bytes of the page.
# MOST_RESIDENT_BYTES: bytes of resident memory. A report takes about 2 seconds before its first row, and a machine with
# other work needs more processor time for the same work.
LIMIT_S = 20
MOST_BYTES = 3_000_000
MOST_RESIDENT_BYTES = 2 * 2**30


def test_a_report_on_many_conformance_results_is_cheap(tmp_path: Path) -> None:
    """10,000 conformance results with 1,000 failures take little processor time and memory, and give a small page."""
    write_conformance(tmp_path / "run.jsonl", 10_000, 1_000)
    results = read_run(tmp_path / "run.jsonl").results
    assert sum(any(one.status == "failed" for one in result.findings) for result in results) == 1_000
    assert len({(result.implementation, result.case) for result in results}) == 10_000
    cost = measure_report(tmp_path / "run.jsonl", tmp_path / "report", browser=False)
    assert cost.cpu_s < LIMIT_S
    assert cost.resident_bytes < MOST_RESIDENT_BYTES
    assert cost.page_bytes < MOST_BYTES
    assert cost.elements > 0


def test_a_report_on_many_timings_is_cheap(tmp_path: Path) -> None:
    """2,000 timings in five forms take little processor time and memory."""
    write_profile(tmp_path / "run.jsonl", 2_000)
    stored = read_run(tmp_path / "run.jsonl")
    assert stored.problems == ()
    assert sum(result.timing is not None for result in stored.results) == 2_000
    cost = measure_report(tmp_path / "run.jsonl", tmp_path / "report", browser=False)
    assert cost.cpu_s < 2 * LIMIT_S
    assert cost.resident_bytes < MOST_RESIDENT_BYTES
