"""What a timing process does with one case: builds, calls in turns, and looks whether all still compute what they did.

Nothing that is timed is known beforehand: implementations are built and called on values of the process's own, and the
case's own values, of which the judge knows what is right, are written into the same tensors afterwards. A result that
was kept from an earlier call is then a wrong one.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate
from attnbench.cases import Case
from attnbench.checks import observations
from attnbench.checks.catalogue import check_function
from attnbench.interface import Implementation, Inputs, Operator
from attnbench.measurement import sampling
from attnbench.measurement.cuda_timing import DeviceTime
from attnbench.oracle import tensor_file
from attnbench.oracle.inputs import loaded

__all__ = ["TWIN", "InterleavedTiming", "Unfit"]

Step = Callable[[], object]
# The baseline once more, beside the names of implementations.
TWIN = "(twin)"
# Time that threads get to fall asleep after the last call, and time in which they are then watched, in seconds; threads
# of OpenMP go on spinning for a while.
SETTLING_S, WATCHED_S, PATIENCE_S = 0.005, 0.02, 0.5
# Processor time in the watched time, as a share of it, from which on something is at work.
BUSY = 0.25
# The seed of a run's first process: what is looked for once is looked for there.
FIRST = 0
# Calls on values that were never seen, and how many times as long as the same calls again the quickest may take.
FRESH_CALLS, KEPT = 5, 2.0
# What writing new values may cost the next call, which finds its caches cold, in nanoseconds.
COLD_NS = 50_000


class Unfit(Exception):
    """The process is not what it was; the message says what changed."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One implementation, built and ready to be called."""

    candidate: "_Stopped"
    # One pass that returns as soon as its work is enqueued, and the same with waiting for it.
    enqueued: Step
    step: Step
    # The case's own values, by name of the tensor.
    values: dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedTiming:
    """One case in one timing process."""

    implementations: Mapping[str, Implementation]
    # The implementation that is built twice, or None.
    baseline: str | None
    operator: Operator
    case: Case
    # File of the case's inputs.
    inputs: str
    seed: int

    def taken(self, *, budget_s: float, limit_s: float, checks: Sequence[str], observation: str) -> dict[str, Any]:
        """Samples of all in turns, and afterwards the files of what checks claim on the case's own values.

        The file of the n-th implementation has a name that begins with ``observation`` and ends with n.

        Raises: timing.Broken where an implementation raises; Unfit where the process was changed.
        """
        before = global_state.noted()
        sides = self._sides()
        twins = [name for name in (self.baseline, TWIN) if name in sides]
        device = self._device(sides) if self.case.device == "cuda" else None
        try:
            with next(iter(sides.values())).candidate.call_mode():
                samples = sampling.interleaved(
                    {name: side.step for name, side in sides.items()},
                    budget_s=budget_s,
                    limit_s=limit_s,
                    seed=self.seed,
                    baseline=twins,
                    device=device,
                )
                if self.seed == FIRST:
                    for name in self.implementations:
                        _compute(name, sides[name])
        except sampling.Broken as broken:
            raise sampling.Broken(self._owner(broken.name)) from broken.__cause__
        _same_settings(before)
        _quiet()
        told = {name: asdict(taken) | {"build_ns": sides[name].candidate.build_ns} for name, taken in samples.items()}
        files = {name: f"{observation}-{number}" for number, name in enumerate(self.implementations)}
        for name, file in files.items():
            self._observe(name, sides[name], checks, Path(file))
            if device is not None:
                told[name] |= self._replayed(name, sides[name], device)
        return {
            "twin": told.pop(TWIN, None),
            "samples": told,
            "threads": torch.get_num_threads(),
            "observations": files,
        }

    def _sides(self) -> dict[str, _Side]:
        """All of them, built in an order of this process's own: what the first one finds cold, the others find warm."""
        wanted = dict(self.implementations)
        if self.baseline in wanted:
            wanted[TWIN] = wanted[self.baseline]
        names = list(wanted)
        random.Random(self.seed).shuffle(names)  # noqa: S311  # an order, no secret
        built = {name: self._side(name, wanted[name]) for name in names}
        return {name: built[name] for name in wanted}

    def _owner(self, name: str) -> str:
        """Implementation that is behind a name; the twin is the baseline."""
        return self.baseline if name == TWIN and self.baseline is not None else name

    def _side(self, name: str, implementation: Implementation) -> _Side:
        inputs = loaded(self.inputs, self.case.device)
        values = _replaced(inputs)
        try:
            candidate = _Stopped(implementation, self.operator, self.case, inputs)
        except BaseException as error:
            raise sampling.Broken(self._owner(name)) from error
        enqueued = _step(candidate)
        return _Side(candidate, enqueued, _waited_for(enqueued, candidate), values)

    def _device(self, sides: Mapping[str, _Side]) -> DeviceTime:
        """What times these on the device, but for those whose work torch's streams know nothing of."""
        known = {name: side.enqueued for name, side in sides.items() if not _waits_by_itself(side.candidate)}
        return DeviceTime(known, capturable={name for name in self.implementations if self._capturable(name)})

    def _capturable(self, name: str) -> bool:
        """Whether a call may be timed as a graph too; not of one whose replay could not be told from a wrong one."""
        policies = self.implementations[name].policies
        return policies.capturable and policies.deterministic and not self.case.differentiates

    def _replayed(self, name: str, side: _Side, device: DeviceTime) -> dict[str, Any]:
        """What becomes of the samples of a graph if it does not give what the call gives, on the case's own values."""
        try:
            with side.candidate.call_mode():
                same = device.repeats(name)
        except BaseException as error:
            raise sampling.Broken(name) from error
        return {} if same else {"graph_ns": [], "method": device.method(name)}

    def _observe(self, name: str, side: _Side, checks: Sequence[str], place: Path) -> None:
        """Store what checks claim on the case's own values."""
        side.candidate.write(side.values)
        try:
            made = {check: observations.stored(list(check_function(check)(side.candidate))) for check in checks}
            tensor_file.write(place, made)
        except BaseException as error:
            raise sampling.Broken(name) from error


class _Stopped(Candidate):
    """A subject that knows how long it took to build and prepare, in nanoseconds."""

    build_ns = 0

    def build(self, reference: Any = None) -> tuple[Any, Callable[..., Any]]:
        """A fresh module, timed."""
        begin = time.perf_counter_ns()
        built = super().build(reference)
        self.build_ns = time.perf_counter_ns() - begin
        return built


def _replaced(inputs: Inputs) -> dict[str, Tensor]:
    """The values of the inputs, after others of the same kind were written in their place."""
    values: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in inputs.tensors.items():
        if tensor.is_floating_point() and not name.endswith("mask") and id(tensor) not in seen:
            values[name] = tensor.clone()
            tensor.copy_(torch.flip(tensor, (-1,)))
        seen.add(id(tensor))
    return values


def _compute(name: str, side: _Side) -> None:
    """Look whether a call on values that were never seen takes as long as the same call again, right after it.

    Raises: timing.Broken from Unfit.
    """
    fresh, again = sampling.Samples(), sampling.Samples()
    for number in range(FRESH_CALLS):
        side.candidate.write({tensor: torch.roll(value, number + 1, -1) for tensor, value in side.values.items()})
        sampling.take(name, side.step, fresh)
        sampling.take(name, side.step, again)
    first, second = min(fresh.times_ns), statistics.median(again.times_ns)
    if first > KEPT * second and first - second > COLD_NS:
        told = f"calls on values not seen before took {first / second:.1f} times as long: it keeps what it returned"
        raise sampling.Broken(name) from Unfit(told)


def _step(candidate: Candidate) -> Step:
    """One pass, with nothing around the call where it is forward alone."""
    return (
        candidate.step() if candidate.case.differentiates else partial(candidate.call, **candidate.inputs.arguments())
    )


def _waited_for(step: Step, candidate: Candidate) -> Step:
    """The step, and waiting for what it started, where anything can go on after it returned."""
    waits: list[Callable[[], object]] = []
    if _waits_by_itself(candidate):
        waits.append(candidate.implementation.synchronize)
    if candidate.case.device == "cuda":
        waits.append(torch.cuda.synchronize)
    if not waits:
        return step

    def ended() -> object:
        result = step()
        for wait in waits:
            wait()
        return result

    return ended


def _waits_by_itself(candidate: Candidate) -> bool:
    """Whether an implementation is waited for by means of its own, since torch does not know when it is done."""
    return type(candidate.implementation).synchronize is not Implementation.synchronize


def _same_settings(before: Mapping[str, Any]) -> None:
    now = global_state.noted()
    changed = [f"{name} from {before[name]} to {now[name]}" for name in now if now[name] != before[name]]
    if changed:
        raise Unfit(f"a call changed {', '.join(changed)}")


def _quiet() -> None:
    """Look whether anything in the process goes on after the last call.

    Raises: Unfit.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(SETTLING_S)
        wall, used = time.perf_counter_ns(), time.process_time_ns()
        time.sleep(WATCHED_S)
        share = (time.process_time_ns() - used) / (time.perf_counter_ns() - wall)
        if share < BUSY:
            return
        if time.monotonic() >= end:
            raise Unfit(f"threads went on after the call had returned, on {share:.1f} cores")
