"""What happens around each timed call, outside of the timed interval.

Before a call, its input values are replaced. After a call, its result is examined and copied. The copy of one call of
each implementation, chosen at random among those that count, is kept. The oracle worker evaluates these copies. A call
is chosen after it has returned, so nothing that it could read tells it whether it is judged.
"""

import gc
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.analysis.clean_calls import select_clean
from attnbench.candidate import global_state
from attnbench.interface import Inputs
from attnbench.measurement.clocks import Clocks
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.judged_calls import JudgedCalls
from attnbench.measurement.processor_time import TICK_NS
from attnbench.measurement.sampling import CallFailed
from attnbench.measurement.surroundings import Ended
from attnbench.measurement.watched_modules import WatchedModules
from attnbench.processes.candidate_requests import Defence
from attnbench.records.value_facts import Phrase, phrase
from attnbench.workers.fresh_values import FreshValues, Signs

__all__ = ["JudgedCall", "ProcessDisturbed", "TimedCalls"]

# Allowed processor time of calls, as a multiple of the wall time of the calls and of the number of threads. The
# system's accounting of processor time ends a little after the call.
ALLOWED_PROCESSOR_SHARE = 1.05
# The same for several threads. The system adds the time of threads on other cores late, so threads that still run
# before a call seem to work within it: up to 2.5 cores were counted on a machine with two.
ALLOWED_SEVERAL_SHARE = 2.0
# Units of the system's account of ended processes that are always allowed: each start and end is rounded.
ALLOWED_TICKS = 4
# Nanoseconds of processor time that are always allowed for one call.
ALLOWED_PROCESSOR_NS = 20_000
# Devices whose tensors have no memory: they have no values, or values that are computed when they are read.
NO_MEMORY = frozenset({"meta", "lazy"})
# Allowed processor time of this thread from the end of a call to the copy of its result: a multiple of the shortest
# that any name has, and nanoseconds. The same code runs there for all names; it reads counters in 10 to 30 µs, and
# copies results of the same sizes.
# A name whose calls have less of it than ALLOWED_OUTSIDE_SHARE of their wall time is not accused: a process that forked
# copies its memory, and results of other strides take longer to copy.
ALLOWED_OUTSIDE_SHARE = 0.5
ALLOWED_OUTSIDE, ALLOWED_OUTSIDE_NS = 3.0, 50_000
# The same for the wall time, which also counts what other threads do meanwhile. Other work on the machine can lengthen
# it, although waits for a core are left out, so more is always allowed.
ALLOWED_AFTER_NS = 200_000
# Mean number of comparisons of the instrument between the calls of one process.
COMPARISONS = 4


class ProcessDisturbed(Exception):
    """Raised if a call changed the process, which makes timings invalid; the phrase says what changed."""

    def __init__(self, what: Phrase) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCall:
    """A timed call whose result may be evaluated."""

    # Values that were written into the inputs before the call.
    values: dict[str, Signs]
    # Copies of what the call returned: the tensors of the tuple, or the single tensor.
    result: tuple[Tensor | None, ...]


@dataclass(slots=True)
class TimedCalls:
    """Does what belongs before and after each call; the names of calls are those of the sampling.

    ``find_owner`` returns the implementation to which a call belongs. ``without`` names defences that are switched off,
    to measure what they find.
    """

    # Inputs of each call, under which the harness alone knows them: a call may change the class of its own tensors.
    inputs: Mapping[str, Inputs]
    values: FreshValues
    # torch's settings in the call mode of the case.
    settings: Mapping[str, Any]
    instrument: Instrument
    # What a baseline consists of.
    watched: Sequence[WatchedModules]
    find_owner: Callable[[str], str]
    # Names of the calls whose input values stay.
    fixed: Set[str] = frozenset()
    without: Set[Defence] = frozenset()
    clocks: Clocks = field(default_factory=Clocks)
    judged: JudgedCalls[JudgedCall] = field(init=False, default_factory=JudgedCalls)
    _random: random.SystemRandom = field(init=False, default_factory=random.SystemRandom)
    _threads: int = field(init=False, default_factory=torch.get_num_threads)
    # For each name: the number of samples so far.
    _count: Counter[str] = field(init=False, default_factory=Counter)
    _compared_share: float = field(init=False, default=0.0)
    # Values and readings of the current call: wall time and processor time.
    _written: dict[str, Signs] = field(init=False, default_factory=dict)
    # Whether the garbage collection was on before the current call.
    _collects: bool = field(init=False, default=False)
    _begin: tuple[int, int] = field(init=False, default=(0, 0))
    # Processor time of this thread when it began to write the values of the current call.
    _writing_ns: int = field(init=False, default=0)
    # For each call: the processor times of this thread from the writing of the values to the begin of the sample.
    _before_ns: defaultdict[str, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    # For each call: the processor times of this thread from the end of the call to the copy. A thread that waits for a
    # core uses none, so other work on the machine does not lengthen them.
    _outside_ns: defaultdict[str, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    # The same in wall time, from the end of the sample, without waits for a core that other processes had.
    _after_ns: defaultdict[str, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    # For each call: the processor times of this thread in which the result was freed.
    _freeing_ns: defaultdict[str, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    # The samples themselves. Work that is done after a call lengthens no sample.
    _sample_ns: defaultdict[str, list[int]] = field(init=False, default_factory=lambda: defaultdict(list))
    _processor_ns: Counter[str] = field(init=False, default_factory=Counter)
    _wall_ns: Counter[str] = field(init=False, default_factory=Counter)
    # Wall time, and processor time of this process and of all that it started, before the first sample.
    _family_begin: tuple[int, int] = field(init=False, default=(0, 0))

    def __post_init__(self) -> None:
        self.clocks.find_descendants()

    def expect(self, counts: Mapping[str, int]) -> None:
        """Begin to count the processor time, before the first sample."""
        self._compared_share = COMPARISONS / max(sum(counts.values()), 1)
        self._family_begin = self._read_family()

    def prepare(self, name: str, cycle: int) -> None:
        """Write new input values; in a sampled call (``cycle`` is not 0), begin to count the processor time."""
        # Before the values are drawn, nothing can be computed from them.
        if cycle and self._random.random() < self._compared_share:
            self.compare_process()
            self.clocks.find_descendants()
        self.clocks.find_new_descendants()
        self._written = {} if self._is_fixed(name) else self.values.draw()
        self._writing_ns = self.clocks.read_thread_ns()
        self.values.write(self._written, self.inputs[name])
        self._collects = gc.isenabled()
        if "instrument" not in self.without and (left := self.instrument.find_left_in_place()):
            raise ProcessDisturbed(left)
        # The wall time begins before the processor time and ends after it: another thread may run in between.
        self._begin = (self.clocks.read_wall_ns(), self.clocks.read_processor_ns())

    def inspect(self, name: str, result: object, ended: Ended) -> None:
        """Add the processor time of a call, examine and copy its result, and choose whether the copy is kept.

        Raises: ProcessDisturbed if the clock was replaced; CallFailed if the result is not made of plain tensors, or if
        the call wrote into its inputs.
        """
        self._count[name] += 1
        wall_ns, processor_ns = self._begin
        self._processor_ns[name] += self.clocks.read_processor_ns() - processor_ns
        self._wall_ns[name] += self.clocks.read_wall_ns() - wall_ns
        if "instrument" not in self.without and (left := self._find_left_in_place(ended)):
            raise CallFailed(self.find_owner(name)) from ProcessDisturbed(left)
        parts = _read_parts(result)
        if "results" not in self.without and (fault := _find_unreal(parts)):
            raise CallFailed(self.find_owner(name)) from ProcessDisturbed(fault)
        # What is computed when a result is read is computed here.
        copied = _copy(tuple(result) if parts is None else parts)  # type: ignore[arg-type]
        call_ns = ended.end_ns - ended.begin_ns
        if not self._is_fixed(name):
            # This thread's processor time within the call is at most the call's wall time.
            self._before_ns[name].append(ended.thread_ns - self._writing_ns - call_ns)
        self._outside_ns[name].append(self.clocks.read_thread_ns() - ended.thread_ns)
        self._after_ns[name].append(self._measure_after_ns(ended))
        self._sample_ns[name].append(call_ns)
        self.judged.offer(name, JudgedCall(values=self._written, result=copied), is_clean=_is_clean(ended))
        changed = self.values.find_changed(self._written, self.inputs[name])
        if changed and "judging" not in self.without:
            wrote = phrase("wrote_input", name=changed[0])
            raise CallFailed(self.find_owner(name)) from ProcessDisturbed(wrote)
        if "instrument" not in self.without and self.instrument.clock_is_replaced():
            self.compare_process()

    def note_freed(self, name: str, freeing_ns: int) -> None:
        """Add the processor time in which a result was freed.

        Raises: CallFailed if the freeing left something in place that runs code in the calls of others.
        """
        self._freeing_ns[name].append(freeing_ns)
        if "instrument" not in self.without and (left := self.instrument.find_left_in_place()):
            raise CallFailed(self.find_owner(name)) from ProcessDisturbed(left)

    def _measure_after_ns(self, ended: Ended) -> int:
        """Return the time from the end of a call until now, without the time for which other processes had the core.

        This thread also waits if another thread of the process has the core. Such threads use processor time.
        """
        after_ns = self.clocks.read_wall_ns() - ended.end_ns
        own_ns = self.clocks.read_process_ns() - ended.process_ns if self._threads == 1 else 0
        return max(after_ns - self.clocks.read_waited_ns(ended.reading), min(after_ns, own_ns))

    def close(self) -> None:
        """Close the files that readings need."""
        self.clocks.close()

    def _find_left_in_place(self, ended: Ended) -> Phrase | None:
        """Return what the call left in place that runs code while its result is read; None if it left nothing."""
        if {ended.collects, gc.isenabled()} != {self._collects}:
            return phrase("garbage_collection")
        return self.instrument.find_left_in_place()

    def restore(self, name: str) -> None:
        """Write the values of the case into the inputs of ``name``."""
        if not self._is_fixed(name):
            self.values.restore(self.inputs[name])

    def compare_process(self) -> None:
        """Compare torch's settings, the clock, torch and the harness with what they were before.

        Raises: ProcessDisturbed if something changed.
        """
        if "settings" not in self.without:
            before, now = self.settings, global_state.read_settings()
            changed = [name for name in now if now[name] != before[name]]
            if changed:
                first, was, is_now = changed[0], before[changed[0]], now[changed[0]]
                raise ProcessDisturbed(phrase("setting_changed", name=first, before=str(was), now=str(is_now)))
        if "instrument" not in self.without:
            found = [*self.instrument.find_changes(), *(one for own in self.watched for one in own.find_changes())]
            if found:
                raise ProcessDisturbed(found[0])

    def check_processor_time(self) -> None:
        """Check that the calls of no name used more processor time than their threads could use.

        Processes that start and end between two searches for descendants are found in the time of all calls together.

        Raises: ProcessDisturbed if calls did.
        """
        if "processor" in self.without:
            return
        wall_ns, family_ns = (now - before for now, before in zip(self._read_family(), self._family_begin, strict=True))
        if family_ns > ALLOWED_PROCESSOR_SHARE * self._threads * wall_ns + ALLOWED_TICKS * TICK_NS:
            raise ProcessDisturbed(phrase("family_busy", cores=family_ns / wall_ns, threads=self._threads))
        share = ALLOWED_PROCESSOR_SHARE if self._threads == 1 else ALLOWED_SEVERAL_SHARE
        for name, wall_ns in self._wall_ns.items():
            allowed_ns = share * self._threads * wall_ns + ALLOWED_PROCESSOR_NS * self._count[name]
            allowed_ns += self.clocks.rounding_ns
            if self._processor_ns[name] > allowed_ns:
                cores = self._processor_ns[name] / wall_ns
                busy = phrase("calls_busy", name=self.find_owner(name), cores=cores, threads=self._threads)
                raise ProcessDisturbed(busy)

    def check_outside_time(self) -> None:
        """Check that no more was done before, or after, the calls of one name than those of others.

        Work that a call leaves to a signal, to a profiling function, to another thread, or to the reading of its result
        is done there, outside of the sample.

        Raises: ProcessDisturbed if a name did more.
        """
        if "threads" in self.without:
            return
        for when, taken, always_ns in (
            ("work_before", self._before_ns, ALLOWED_OUTSIDE_NS),
            ("work_after", self._outside_ns, ALLOWED_OUTSIDE_NS),
            ("work_after", self._after_ns, ALLOWED_AFTER_NS),
            ("work_while_freed", self._freeing_ns, ALLOWED_OUTSIDE_NS),
        ):
            medians = {name: statistics.median(times) for name, times in taken.items()}
            shortest_ns = max(min(medians.values(), default=0), 0)
            for name, outside_ns in medians.items():
                call_ns = statistics.median(self._sample_ns[name])
                allowed_ns = max(ALLOWED_OUTSIDE * shortest_ns + always_ns, ALLOWED_OUTSIDE_SHARE * call_ns)
                if outside_ns > allowed_ns:
                    numbers = {"outside": outside_ns / 1e3, "allowed": allowed_ns / 1e3}
                    raise ProcessDisturbed(phrase(when, name=self.find_owner(name), **numbers))

    def _read_family(self) -> tuple[int, int]:
        """Return wall time, and the processor time of this process and of all that it started, in nanoseconds."""
        return self.clocks.read_wall_ns(), self.clocks.read_family_ns()

    def _is_fixed(self, name: str) -> bool:
        return "values" in self.without or name in self.fixed


def _is_clean(ended: Ended) -> bool:
    """Whether no other work on the machine disturbed a call."""
    waited, switches = ended.reading.waited_ns_since(ended.before), ended.reading.switches_since(ended.before)
    counters = [None if count is None else [count] for count in (waited, switches)]
    return bool(select_clean([ended.end_ns - ended.begin_ns], *counters))


def _read_parts(result: object) -> tuple[object, ...] | None:
    """Return the elements of a tuple as they are stored, or a single result; None if they may be computed when read."""
    kind = type(result)
    if not issubclass(kind, tuple):
        return (result,)
    # A metaclass could compute what is read from the class.
    plain = type(kind) is type and kind.__iter__ is tuple.__iter__
    return tuple(tuple.__iter__(result)) if plain else None  # type: ignore[arg-type]


def _find_unreal(parts: tuple[object, ...] | None) -> Phrase | None:
    """Return why the parts of a result are not plain tensors with memory of their own; None if they are.

    Nothing of a part is asked that code of its own could answer.
    """
    if parts is None:
        return phrase("lazy_tuple")
    for part in parts:
        kind = type(part)
        if kind is not Tensor and part is not None:
            return phrase("other_class", kind=kind.__name__)
        if isinstance(part, Tensor):
            if part.layout is not torch.strided or part.device.type in NO_MEMORY:
                return phrase("no_memory")
            own = vars(part)
            # A dictionary of another class could compute when it is read.
            if type(own) is not dict or any(type(key) is not str or hasattr(Tensor, key) for key in list(own)):
                return phrase("own_method")
    return None


def _copy(parts: tuple[object, ...]) -> tuple[Tensor | None, ...]:
    return tuple(part.detach().clone() if isinstance(part, Tensor) else None for part in parts)
