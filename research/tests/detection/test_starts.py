"""Tests of the measured times to start processes."""

import itertools
from pathlib import Path

import pytest

from research.detection import starts
from research.detection.pools import Condition, Setup


def test_starts_are_measured_alone_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts of one process and starts of several processes together alternate, and every process is closed.

    The time of a start of several processes is divided by the number of processes.
    """
    begun: list[int] = []
    closed: list[int] = []

    class Worker:
        def close(self) -> None:
            closed.append(1)

    def start_together(session: object, names: list[str], count: int) -> list[Worker]:
        begun.append(count)
        return [Worker() for _ in range(count)]

    clock = itertools.count()
    monkeypatch.setattr(starts, "start_together", start_together)
    monkeypatch.setattr(starts, "STARTS", 2)
    monkeypatch.setattr(starts.time, "monotonic", lambda: next(clock))
    path, condition = tmp_path / "starts-1.jsonl", Condition(threads=1, load="quiet")
    starts.measure_starts(path, condition, Setup(length=8, budget_s=0.0), rounds=3, resume=False)
    assert begun == [1, 2] * 3
    assert len(closed) == 9
    assert starts.read_start_times_s(path) == (1.0, 0.5)
    assert starts.read_start_times_s(tmp_path / "nothing.jsonl") is None
