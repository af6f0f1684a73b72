"""Time that a test controls: clocks, and calls that do more than they show, run through what belongs around a call."""

import gc
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from attnbench.candidate import global_state
from attnbench.interface import Inputs
from attnbench.measurement.clocks import Clocks
from attnbench.measurement.scheduler import Reading
from attnbench.measurement.surroundings import Ended
from attnbench.processes.candidate_requests import Defence
from attnbench.workers.timed_calls import TimedCalls

__all__ = ["Call", "SimulatedClocks", "run_calls"]

# A reading of a system that does not count waits.
READING = Reading(None, 0)
INPUTS = Inputs(tensors={}, parameters={}, cotangents={})


@dataclass(slots=True)
class SimulatedClocks(Clocks):
    """Clocks that stand still unless something works or waits."""

    wall_ns: int = 10**9
    thread_ns: int = 0
    process_ns: int = 0
    # Processor time of descendants that are found while they run, and of those that start and end in between.
    found_ns: int = 0
    missed_ns: int = 0
    waited_ns: int = 0

    def work(self, ns: int) -> None:
        """This thread works."""
        self.wall_ns += ns
        self.thread_ns += ns
        self.process_ns += ns

    def wait(self, ns: int, *, others_work: bool) -> None:
        """This thread does not work; other threads of this process do, or other processes have the core."""
        self.wall_ns += ns
        self.process_ns += ns * others_work
        self.waited_ns += ns * (not others_work)

    def read_wall_ns(self) -> int:
        """Return the simulated wall time."""
        return self.wall_ns

    def read_thread_ns(self) -> int:
        """Return the simulated processor time of the thread."""
        return self.thread_ns

    def read_process_ns(self) -> int:
        """Return the simulated processor time of the process."""
        return self.process_ns

    def read_processor_ns(self) -> int:
        """Return the simulated processor time of the process and of the descendants that were found."""
        return self.process_ns + self.found_ns

    def read_family_ns(self) -> int:
        """Return the simulated processor time of the process and of all its descendants."""
        return self.process_ns + self.found_ns + self.missed_ns

    @property
    def rounding_ns(self) -> int:
        """No descendant's time is rounded."""
        return 0

    def find_descendants(self) -> None:
        """Do nothing."""

    def find_new_descendants(self) -> None:
        """Do nothing."""

    def read_waited_ns(self, before: Reading) -> int:
        """Return the time for which the thread has waited since the end of the present call."""
        return self.waited_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a call does, in nanoseconds: in the sample, around it, and elsewhere."""

    # Work of this thread in the sample, and the time for which other threads work in it meanwhile.
    work_ns: int = 1_000_000
    threads_ns: int = 0
    # Work of descendants during the sample: of those that run on, and of those that start and end within it.
    descendants_ns: int = 0
    brief_descendants_ns: int = 0
    # Work of this thread when the inputs are written, when the result is read, and when it is freed.
    before_ns: int = 0
    after_ns: int = 0
    freeing_ns: int = 0
    # Time for which, after the sample, this thread waits for another thread of the process, or for other processes.
    after_by_thread_ns: int = 0
    after_by_others_ns: int = 0


@dataclass(slots=True)
class _Values:
    """Values whose writing takes the time of a call's work before the sample."""

    clocks: SimulatedClocks
    calls: Mapping[str, Call]
    name: str = field(init=False, default="")

    def draw(self) -> dict[str, Any]:
        return {}

    def write(self, signs: object, inputs: object) -> None:
        self.clocks.work(10_000 + self.calls[self.name].before_ns)

    def find_changed(self, signs: object, inputs: object) -> list[str]:
        return []


def run_calls(calls: Mapping[str, Call], *, cycles: int = 9, without: Set[Defence] = frozenset()) -> None:
    """Run simulated calls as the sampling does, and check their times.

    Raises: ProcessDisturbed if the times of a call are not those of a call that does all its work in the sample.
    """
    clocks = SimulatedClocks()
    values: Any = _Values(clocks, calls)
    instrument: Any = SimpleNamespace(
        find_left_in_place=lambda: None, clock_is_replaced=lambda: False, find_changes=list
    )
    around = TimedCalls(
        inputs=dict.fromkeys(calls, INPUTS), values=values, settings=global_state.read_settings(),
        instrument=instrument, watched=[], find_owner=str, without=without, clocks=clocks,
    )  # fmt: skip
    around.expect(dict.fromkeys(calls, cycles))
    result = torch.zeros(1)
    for cycle in range(1, cycles + 1):
        for name, call in calls.items():
            values.name = name
            around.prepare(name, cycle)
            begin_ns = clocks.wall_ns
            clocks.work(call.work_ns)
            clocks.process_ns += call.threads_ns
            clocks.found_ns += call.descendants_ns
            clocks.missed_ns += call.brief_descendants_ns
            ended = Ended(
                begin_ns, clocks.wall_ns, clocks.thread_ns, clocks.process_ns, gc.isenabled(), READING, READING
            )
            clocks.waited_ns = 0
            clocks.work(10_000 + call.after_ns)
            clocks.wait(call.after_by_thread_ns, others_work=True)
            clocks.wait(call.after_by_others_ns, others_work=False)
            around.inspect(name, result, ended)
            clocks.work(call.freeing_ns)
            around.note_freed(name, call.freeing_ns)
    around.close()
    around.check_processor_time()
    around.check_outside_time()
