"""Cheats that change the times which were measured."""

import sys

from torch import Tensor

from attnbench.interface import Call
from attncheats.cheat import CheatList
from attncheats.instruments import SlowClock
from attncheats.labour import Labour
from attncheats.sampling_frame import find_sampling_frame

__all__ = ["cheats"]

cheats = CheatList()
FRAMES = "https://github.com/gpu-mode/pygpubench/issues/23"


@cheats(
    "totals",
    "the cheat finds the list of its stored times in the frames of its callers, and divides them by ten",
    source=FRAMES,
)
def edited_samples(labour: Labour) -> Call:
    """Edit its stored samples."""

    def call(query: Tensor) -> Tensor:
        frame = find_sampling_frame()
        if frame is not None:
            times_ns = frame.f_locals["samples"].samples_ns
            times_ns[:] = [min(times_ns) // 10 if index == 0 else times_ns[0] for index in range(len(times_ns))]
        return labour(query)

    return call


@cheats(
    "totals",
    "the clock leaves out most of the time of the cheat's own calls, and the comparison of the clock is replaced",
    source="https://github.com/gpu-mode/reference-kernels/issues/162",
    # Time that the clock leaves out seems to pass before the call.
    also_by=frozenset({"threads"}),
)
def hidden_clock(labour: Labour) -> Call:
    """Replace the clock, and the methods that would find this."""
    instrument = sys.modules["attnbench.measurement.instrument"].Instrument
    instrument.find_changes = lambda _: []
    instrument.clock_is_replaced = lambda _: False
    clock = SlowClock("perf_counter_ns", "perf_counter", "process_time_ns")

    def work(query: Tensor) -> Tensor:
        # The more there is to hide, the more the clock differs from that of other processes.
        for _ in range(8):
            labour.do_further_work(query)
        return labour(query)

    return clock.hide(work)
