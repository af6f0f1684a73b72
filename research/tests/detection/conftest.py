"""Fixture for the tests of the detection study."""

import pytest

from research.detection import plants, pools


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables that the study sets for its child processes after each test."""
    monkeypatch.setenv(plants.ROWS, "{}")
    monkeypatch.setenv("PYTHONPATH", pools.ROOT)
