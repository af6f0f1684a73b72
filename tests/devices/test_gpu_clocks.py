"""Tests of throttling, recognized by a device's clock, and of machines without clock readings; all are simulated."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.analysis.clean_calls import is_throttled
from attnbench.devices.gpu_clocks import MISSING, Clocks
from attnbench.devices.timer import ClockReading

UUID = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("before_mhz", "after_mhz", "expected"),
    [(1980, 1980, False), (1980, 1965, False), (1965, 1980, False), (1980, 1950, True), (1950, 1980, True),
     (1000, 990, False), (1000, 989, True), (1965, 1580, True), (0, 1980, True), (1980, 0, True), (0, 0, True)],
)  # fmt: skip
def test_a_clock_that_changes_by_more_than_one_percent_is_throttled(
    before_mhz: int, after_mhz: int, expected: bool
) -> None:
    """A change of 15 MHz (one step) is allowed, 30 MHz are not; a clock that could not be read counts as throttled."""
    assert is_throttled(before_mhz, after_mhz, 0) is expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [(0x0, False), (0x1, False), (0x2, False), (0x3, False), (0x4, True), (0x8, True), (0x10, True), (0x20, True),
     (0x40, True), (0x80, True), (0x100, True), (0x5, True), (0x400, True), (1 << 40, True)],
)  # fmt: skip
def test_every_reason_but_idling_and_settings_is_throttling(reasons: int, expected: bool) -> None:
    """The bits for an idle device and for a clock that a user set are harmless; every other bit means throttling."""
    assert is_throttled(1980, 1980, reasons) is expected


def test_without_the_package_the_record_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py there are no readings and no error; ``source`` has the install command."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = Clocks(UUID)
    assert found.source == MISSING == "none: nvidia-ml-py is not installed; pip install nvidia-ml-py"
    assert found.read() is None


class Refused(Exception):
    """Stand-in for an exception of NVML."""


def make_package(**functions: Any) -> Any:
    """Make a stand-in for pynvml that finds a device; its readings fail unless ``functions`` replaces them."""

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
def test_an_error_of_nvml_is_the_source_of_no_readings(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """If the driver, the device or the clock is missing, there are no readings, and ``source`` has NVML's message."""

    def fail(*_: object) -> None:
        raise Refused(f"{function} failed")

    monkeypatch.setitem(
        sys.modules, "pynvml", make_package(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0, **{function: fail})
    )
    found = Clocks(UUID)
    assert found.source == f"none: NVML says {function} failed"
    assert found.read() is None


def test_a_later_reading_that_fails_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first reading succeeds and a later one fails, there is no error, and the later reading has the clock 0."""
    readings = [1980, 1965]

    def clock(device: str, kind: int) -> int:
        assert (device, kind) == (f"GPU-{UUID}", 1)
        if not readings:
            raise Refused("Unknown Error")
        return readings.pop(0)

    package = make_package(nvmlDeviceGetClockInfo=clock, nvmlDeviceGetCurrentClocksEventReasons=lambda _: 4)
    monkeypatch.setitem(sys.modules, "pynvml", package)
    found = Clocks(UUID)
    assert (found.source, found.read(), found.read()) == ("NVML", ClockReading(1965, 4), ClockReading(0, 0))
