"""Tests of what a device's clocks mean for a cycle, and of machines that do not tell them; no device is read here."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.analysis.clean_calls import is_throttled
from attnbench.measurement.gpu_clocks import MISSING, Clocks, Reading

UUID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("before_mhz", "after_mhz", "expected"),
    [(1980, 1980, False), (1980, 1965, False), (1965, 1980, False), (1980, 1950, True), (1950, 1980, True),
     (1000, 990, False), (1000, 989, True), (1965, 1580, True), (0, 1980, True), (1980, 0, True), (0, 0, True)],
)  # fmt: skip
def test_a_clock_that_moves_by_more_than_one_percent_marks_its_cycle(
    before_mhz: int, after_mhz: int, expected: bool
) -> None:
    """One step of 15 MHz passes, two do not; nor does a clock that could not be read."""
    assert is_throttled(before_mhz, after_mhz, 0) is expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [(0x0, False), (0x1, False), (0x2, False), (0x3, False), (0x4, True), (0x8, True), (0x10, True), (0x20, True),
     (0x40, True), (0x80, True), (0x100, True), (0x5, True), (0x400, True), (1 << 40, True)],
)  # fmt: skip
def test_whatever_holds_a_clock_down_marks_its_cycle(reasons: int, expected: bool) -> None:
    """Not that nothing runs, and not a clock that somebody set; every other bit does, those of the future too."""
    assert is_throttled(1980, 1980, reasons) is expected


def test_without_the_package_the_record_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no readings then, and the rest goes on."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Clocks(UUID)
    assert found.source == MISSING == "none: nvidia-ml-py is not installed; pip install nvidia-ml-py"
    assert found.read() is None


class Refused(Exception):
    """What NVML raises."""


def package(**functions: Any) -> Any:
    """A package that finds a device, of which nothing can be read."""

    def refuse(*_: object) -> int:
        raise Refused("Not Supported")

    named = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": refuse,
        "nvmlDeviceGetCurrentClocksEventReasons": refuse,
        "NVML_CLOCK_SM": 1,
    }
    return SimpleNamespace(**named | functions)


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetClockInfo"])
def test_what_nvml_cannot_do_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """No driver, no such device, no such reading."""

    def fail(*_: object) -> None:
        raise Refused(f"{function} failed")

    monkeypatch.setitem(
        sys.modules, "pynvml", package(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0, **{function: fail})
    )
    found = Clocks(UUID)
    assert found.source == f"none: NVML says {function} failed"
    assert found.read() is None


def test_a_reading_that_is_lost_later_costs_its_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to end, and no reading to believe."""
    told = [1980, 1965]

    def clock(device: str, kind: int) -> int:
        assert (device, kind) == (f"GPU-{UUID}", 1)
        if not told:
            raise Refused("Unknown Error")
        return told.pop(0)

    functions = package(nvmlDeviceGetClockInfo=clock, nvmlDeviceGetCurrentClocksEventReasons=lambda _: 4)
    monkeypatch.setitem(sys.modules, "pynvml", functions)
    found = Clocks(UUID)
    assert (found.source, found.read(), found.read()) == ("NVML", Reading(1965, 4), Reading(0, 0))
