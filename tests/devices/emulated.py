"""A second device, emulated on the CPU: its tensors are on the CPU, and everything else is its own."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from attnbench.devices.device import Device
from attnbench.devices.timer import ClockReading, DeviceSample, Step, Timer

__all__ = ["EMULATED"]

# Peak bytes of every call, bytes of the reserve, and clock rate in MHz: numbers that nothing else gives.
PEAK_BYTES, RESERVED_BYTES, CLOCK_MHZ = 12_345, 54_321, 1_234


class _Clocks:
    source = "emulated"

    def read(self) -> ClockReading:
        return ClockReading(CLOCK_MHZ, 0)


class _Timer(Timer):
    """Times a call from end to end, and calls this the time of the device."""

    def __init__(self, steps: Mapping[str, Step]) -> None:
        self._steps, self.clocks = steps, _Clocks()

    def __contains__(self, name: str) -> bool:
        return name in self._steps

    def take_sample(self, name: str) -> DeviceSample:
        begin = time.perf_counter_ns()
        self._steps[name]()
        return DeviceSample(device_ns=time.perf_counter_ns() - begin, late=False)

    def describe_method(self, name: str) -> str:
        return f"device (emulated, {name}) and end-to-end wall"

    def replay_matches(self, name: str) -> bool:
        return name in self._steps


class _Emulated(Device):
    name = "emulated"
    article, noun = "an", "emulated device"
    torch_type = "cpu"
    was_run = False
    product_rows = (64, 128)
    copied_bytes = 2**16
    peak_method = "emulated counter"
    memory_errors = ("emulated memory is short",)

    def is_available(self) -> bool:
        return True

    def query_model(self) -> tuple[str | None, str | None]:
        return "Emulated 1", "1.0"

    def find_wait(self) -> Callable[[], object] | None:
        return time.monotonic

    def measure_peak(self, call: Callable[[], object]) -> tuple[int, int | None] | None:
        call()
        return PEAK_BYTES, RESERVED_BYTES

    def make_timer(self, steps: Mapping[str, Step], *, capturable: AbstractSet[str]) -> Timer | None:
        return _Timer(steps)


EMULATED = _Emulated()
