"""Tests of facts in run files: a fact that cannot be read is kept as an unknown one."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from attnbench.analysis.root_causes import find_root_causes
from attnbench.records.outcome_facts import UnknownFact
from attnbench.records.run_file import format_line, read_run
from attnbench.records.types import Finding
from attnbench.words.causes import describe_cause, describe_shared, name_cause, title_cause
from attnbench.words.findings import describe_finding
from made_facts import OFF
from timed_runs import REFERENCE, store, time_calls

NEWER = {"type": "FactOfALaterYear", "compared": {"quantity": "output"}, "more": [1, {"type": 3}]}
SPOILED = msgspec.to_builtins(OFF) | {"place": "everywhere"}


@pytest.mark.parametrize("stored", [NEWER, SPOILED], ids=["newer", "spoiled"])
def test_an_unknown_fact_is_told_as_unknown(tmp_path: Path, stored: dict[str, object]) -> None:
    """A result with a fact that this version cannot read is read with all else, grouped by exception, and told."""
    finding = Finding(check="forward_parity", status="failed", facts=(OFF,))
    result = replace(time_calls(REFERENCE), findings=(finding,), timing=None, memory=None)
    path = tmp_path / "run-1.jsonl"
    lines = b"".join(map(format_line, (store([]).run, result)))
    path.write_bytes(lines.replace(msgspec.json.encode(OFF), msgspec.json.encode([OFF, stored])[1:-1]))
    run = read_run(path)
    (read,) = run.results
    assert read.findings[0].facts == (OFF, UnknownFact(name=str(stored["type"])))
    assert str(stored["type"]) in describe_finding(read.findings[0])
    (cause,) = find_root_causes([read])
    assert all([name_cause(cause), title_cause(cause), describe_cause(cause), describe_shared(cause)])
