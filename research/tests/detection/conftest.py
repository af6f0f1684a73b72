"""Fixture for the tests of the detection study."""

import pytest

from research.detection import plants, pools


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each test, restore the environment variables that the study sets for its child processes."""
    monkeypatch.setenv(plants.ROWS, "{}")
    monkeypatch.setenv("PYTHONPATH", pools.ROOT)
