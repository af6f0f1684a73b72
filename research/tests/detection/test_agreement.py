"""Tests of the agreement of the harness's timer with torch's timer."""

import json
import statistics
from pathlib import Path

from attnbench.processes.oracle_requests import DrawInputs
from attnbench.workers.oracle_worker import OracleWorker
from research.detection import agreement
from research.tests.detection.samples import CASE


def test_both_timers_measure_the_same_call(tmp_path: Path) -> None:
    """The record of a process has blocks of both timers, and the time of a call that does nothing."""
    inputs = OracleWorker(tmp_path).draw_inputs(DrawInputs(case=CASE))
    record = agreement.measure_process(CASE, inputs, 1, 0, blocks=2, block_s=0.02)
    assert (len(record["ours_ns"]), len(record["theirs_ns"]), len(record["disturbed"])) == (2, 2, 2)
    assert 0 < record["added_ns"] < statistics.median(record["ours_ns"])


def test_disturbed_blocks_are_left_out(tmp_path: Path) -> None:
    """A process whose blocks were all disturbed is counted as a process, but has no ratio."""
    records = [
        {"ours_ns": [101, 900], "theirs_ns": [100, 100], "disturbed": [False, True]},
        {"ours_ns": [103, 103], "theirs_ns": [100, 100], "disturbed": [False, False]},
        {"ours_ns": [500, 500], "theirs_ns": [100, 100], "disturbed": [True, True]},
    ]
    lines = [{"threads": 2}, *(record | {"added_ns": 400.0, "direct_ns": 60.0} for record in records)]
    tmp_path.joinpath("agreement-2.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    text = agreement.format_agreement(tmp_path)
    assert "2 threads, quiet, 3 processes: the harness's median divided by Timer's is 1.0200 [1.0100, 1.0300]" in text
    assert "[1.0100, 1.0300] in 2 undisturbed processes, 1 of them within 2% of 1" in text
    assert "measures 400 [400, 400] ns (a plain loop: 60 ns). The largest value of a process is 400 ns" in text
