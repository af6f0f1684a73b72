"""Tests of the process that competes with the measured processes for cores."""

from pathlib import Path

import pytest

from research.detection import load
from research.detection.load import Competitor, measure_busy_cores, run_competitor


def test_a_competitor_ends_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the competing process runs, its CPU time can be read. With the load ``quiet``, there is no such process."""
    monkeypatch.setattr(load, "STARTING_S", 0.0)
    with run_competitor("busy") as busy:
        assert Path("/proc", str(busy.pid)).exists()
        assert busy.read_cpu_s() >= 0.0
    assert not Path("/proc", str(busy.pid)).exists()
    with run_competitor("quiet") as quiet:
        assert quiet == Competitor(pid=None)
        assert quiet.read_cpu_s() == 0.0
    assert Competitor(pid=2**22 + 1).read_cpu_s() == 0.0


def test_the_number_of_busy_cores_is_not_negative() -> None:
    """The number may also be None, because not every system counts busy cores."""
    assert (measure_busy_cores(0.05) or 0.0) >= 0.0
