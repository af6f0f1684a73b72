"""Fixture of the tests of the study of detection."""

import pytest

from research.detection import plants, pools


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that the study sets for its child processes are restored after each test."""
    monkeypatch.setenv(plants.ROWS, "{}")
    monkeypatch.setenv("PYTHONPATH", pools.ROOT)
