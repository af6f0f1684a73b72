"""What happens around each timed call, outside of the timed interval.

Before a call, its input values are replaced. After a call, its result is examined, and the result of one call of each
implementation, chosen at random, is copied. The oracle worker evaluates the copies.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate import global_state
from attnbench.interface import Inputs
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.processor_time import ProcessorTime
from attnbench.measurement.sampling import CallFailed
from attnbench.processes.candidate_requests import Defence
from attnbench.workers.fresh_values import FreshValues, Signs

__all__ = ["JudgedCall", "ProcessDisturbed", "TimedCalls"]

# Allowed processor time of calls, as a multiple of the wall time of the calls and of the number of threads. The
# system's accounting of processor time ends a little after the call.
ALLOWED_PROCESSOR_SHARE = 1.05
# Nanoseconds of processor time that are always allowed for one call.
ALLOWED_PROCESSOR_NS = 20_000
# Devices whose tensors have no memory: they have no values, or values that are computed when they are read.
NO_MEMORY = frozenset({"meta", "lazy"})
# Methods that read the stored elements of a tuple or list.
READ_STORED = (tuple.__iter__, list.__iter__)
# Mean number of comparisons of the instrument between the calls of one process.
COMPARISONS = 4


class ProcessDisturbed(Exception):
    """Raised if a call changed the process, which makes timings invalid; the message says what changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCall:
    """A timed call whose result is evaluated."""

    # Values that were written into the inputs before the call.
    values: dict[str, Signs]
    # Copy of what the call returned: a tensor or a tuple.
    result: Any


@dataclass(slots=True)
class TimedCalls:
    """Does what belongs before and after each call; the names of calls are those of the sampling.

    ``find_owner`` returns the implementation to which a call belongs. ``without`` names defences that are switched off,
    to measure what they find.
    """

    inputs: Mapping[str, Inputs]
    values: FreshValues
    # torch's settings in the call mode of the case.
    settings: Mapping[str, Any]
    instrument: Instrument
    find_owner: Callable[[str], str]
    # Names of the calls whose input values stay.
    fixed: Set[str] = frozenset()
    without: Set[Defence] = frozenset()
    judged: dict[str, JudgedCall] = field(init=False, default_factory=dict)
    _random: random.SystemRandom = field(init=False, default_factory=random.SystemRandom)
    _threads: int = field(init=False, default_factory=torch.get_num_threads)
    _processor: ProcessorTime = field(init=False, default_factory=ProcessorTime)
    # Values of the judged calls. All implementations get the same, so that their expected results are computed once.
    # No two of them get these values in the same cycle if that can be avoided, because memory that one of them freed
    # may still contain its result.
    _judged_values: dict[str, Signs] = field(init=False)
    # For each call: its planned number of samples, the number of the sample to be judged, and the samples so far.
    _planned: dict[str, int] = field(init=False, default_factory=dict)
    _chosen: dict[str, int] = field(init=False, default_factory=dict)
    _count: Counter[str] = field(init=False, default_factory=Counter)
    # Last cycle with a judged call.
    _judged_cycle: int = field(init=False, default=0)
    _compared_share: float = field(init=False, default=0.0)
    # Values and readings of the current call: wall time and processor time.
    _written: dict[str, Signs] = field(init=False, default_factory=dict)
    _is_judged: bool = field(init=False, default=False)
    _begin: tuple[int, int] = field(init=False, default=(0, 0))
    _processor_ns: Counter[str] = field(init=False, default_factory=Counter)
    _wall_ns: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self._judged_values = self.values.draw()
        self._processor.watch()

    def expect(self, counts: Mapping[str, int]) -> None:
        """Choose the call of each name that will be judged."""
        self._planned = dict(counts)
        self._chosen = {name: self._random.randrange(count) + 1 for name, count in counts.items() if count}
        self._compared_share = COMPARISONS / max(sum(counts.values()), 1)

    def prepare(self, name: str, cycle: int) -> None:
        """Write new input values; in a sampled call (``cycle`` is not 0), begin to count the processor time."""
        self._is_judged = bool(cycle) and self._choose(name, cycle)
        self._written = self._choose_values(name)
        self.values.write(self._written, self.inputs[name])
        if cycle and self._random.random() < self._compared_share:
            self.compare_process()
            self._processor.watch()
        # The wall time begins before the processor time and ends after it: another thread may run in between.
        self._begin = (time.perf_counter_ns(), self._processor.read_ns())

    def inspect(self, name: str, result: object) -> None:
        """Add the processor time of a call, examine its result, and copy the result if the call is judged.

        Raises: ProcessDisturbed if the clock was replaced; CallFailed if the result is not made of plain tensors, or if
        a judged call wrote into its inputs.
        """
        wall_ns, processor_ns = self._begin
        self._processor_ns[name] += self._processor.read_ns() - processor_ns
        self._wall_ns[name] += time.perf_counter_ns() - wall_ns
        if "results" not in self.without and (fault := _find_unreal(result)):
            raise CallFailed(self.find_owner(name)) from ProcessDisturbed(fault)
        if self._is_judged:
            self.judged[name] = JudgedCall(values=self._written, result=_copy(result))
            if changed := self.values.find_changed(self._written, self.inputs[name]):
                reason = f"a timed call wrote into its input {changed[0]}; write into a copy"
                raise CallFailed(self.find_owner(name)) from ProcessDisturbed(reason)
        if "instrument" not in self.without and self.instrument.clock_is_replaced():
            self.compare_process()

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
            changed = [f"{name} from {before[name]} to {now[name]}" for name in now if now[name] != before[name]]
            if changed:
                raise ProcessDisturbed(f"a call changed {', '.join(changed)}")
        if "instrument" not in self.without:
            found = self.instrument.find_changes()
            if found:
                others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                raise ProcessDisturbed(f"{found[0]}{others}")

    def check_processor_time(self) -> None:
        """Check that the calls of no name used more processor time than their threads could use.

        Raises: ProcessDisturbed if calls did.
        """
        for name, wall_ns in self._wall_ns.items():
            allowed_ns = ALLOWED_PROCESSOR_SHARE * self._threads * wall_ns + ALLOWED_PROCESSOR_NS * self._count[name]
            if "processor" not in self.without and self._processor_ns[name] > allowed_ns:
                cores = self._processor_ns[name] / wall_ns
                raise ProcessDisturbed(
                    f"the calls of {self.find_owner(name)} kept {cores:.2f} cores busy, given {self._threads} threads"
                )

    def _choose_values(self, name: str) -> dict[str, Signs]:
        """Return the values of the current call; nothing if the values of the case stay."""
        if self._is_fixed(name):
            return {}
        return self._judged_values if self._is_judged else self.values.draw()

    def _is_fixed(self, name: str) -> bool:
        return "values" in self.without or name in self.fixed

    def _choose(self, name: str, cycle: int) -> bool:
        """Count a call, and return whether it is judged."""
        self._count[name] += 1
        number = self._count[name]
        if name in self.judged or number < self._chosen.get(name, 1):
            return False
        if cycle == self._judged_cycle and number < self._planned[name]:
            return False
        self._judged_cycle = cycle
        return True


def _find_unreal(result: object) -> str:
    """Say why a result is not made of plain tensors with memory of their own; empty if it is."""
    if isinstance(result, tuple | list) and type(result).__iter__ not in READ_STORED:
        return f"a timed call returned a {type(result).__name__}, whose elements may be computed when they are read"
    for part in result if isinstance(result, tuple | list) else (result,):
        if isinstance(part, Tensor):
            if type(part) is not Tensor:
                return f"a timed call returned a {type(part).__name__}, a subclass of Tensor; return plain tensors"
            if part.layout is not torch.strided or part.device.type in NO_MEMORY:
                return "a timed call returned a tensor without memory of its own; return plain tensors"
            if replaced := [name for name in vars(part) if hasattr(Tensor, name)]:
                return f"a timed call returned a tensor with a {replaced[0]} of its own; return plain tensors"
    return ""


def _copy(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.detach().clone()
    return tuple(map(_copy, result)) if isinstance(result, tuple | list) else result
