"""Timing of one case in one process: build the implementations, take interleaved samples, and keep results to judge.

Every timed call gets input values of its own. The result of one call of each implementation, chosen at random, is
stored as the observation of the checks of outputs and gradients: an answer that is wrong while it is timed fails them.
"""

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.analysis.speed_verdict import CONTROL
from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate, call_mode
from attnbench.cases import Case
from attnbench.checks.catalogue import load_check_function
from attnbench.checks.observations import Match, serialize
from attnbench.devices import get_device
from attnbench.devices.timer import Timer
from attnbench.interface import Implementation, Inputs, Operator
from attnbench.measurement import sampling
from attnbench.measurement.account import Account
from attnbench.measurement.instrument import Instrument
from attnbench.measurement.watched_modules import WatchedModules
from attnbench.oracle import tensor_file
from attnbench.oracle.inputs import load_inputs
from attnbench.processes.candidate_requests import Defence, TimedSamples
from attnbench.processes.descendants import count_runnable_threads
from attnbench.records.types import Timing
from attnbench.records.value_facts import phrase
from attnbench.workers.fresh_values import FreshValues
from attnbench.workers.timed_calls import JudgedCall, ProcessDisturbed, TimedCalls

__all__ = ["InterleavedTiming"]

Step = Callable[[], object]
# Times in seconds. After the last call, threads have SETTLING_S to become idle, because OpenMP's threads spin for a
# while. The processor time of the threads is then measured for WATCHED_S. Waiting and measuring are repeated until the
# threads are idle. If threads still run after PATIENCE_S, the process counts as disturbed.
SETTLING_S, WATCHED_S, PATIENCE_S = 0.005, 0.02, 0.5
# Threads count as running if their processor time, divided by the elapsed time, is at least this ratio. On a busy
# machine it can be less, so threads that have a core at the end, or wait for one, count as running, too.
BUSY = 0.25


@dataclass(frozen=True, slots=True)
class _Side:
    """One implementation, built and ready to be called."""

    candidate: "_TimedCandidate"
    # The memory of the candidate's inputs, as tensors that no implementation has seen.
    memory: Inputs
    # The modules and inputs of the baseline and of its copy; nothing of other implementations.
    watched: WatchedModules
    # Runs one pass, and returns as soon as the work of the pass is enqueued.
    enqueued: Step
    # Runs one pass, and waits for the end of its work.
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedTiming:
    """The timing of one case in one process."""

    implementations: Mapping[str, Implementation]
    # The implementation that is built twice for the A/A control; None: there is no A/A control.
    baseline: str | None
    operator: Operator
    case: Case
    # File of the case's inputs.
    inputs: str
    seed: int
    # What the measurement relies on, as it was before implementations were loaded.
    instrument: Instrument
    # Defences that are switched off, to measure what they find.
    without: Set[Defence] = frozenset()

    def take_samples(
        self, *, budget_s: float, limit_s: float, until_s: float = math.inf, checks: Sequence[str], observation: str
    ) -> TimedSamples:
        """Take interleaved samples of all implementations, and store a result of each as observations of the checks.

        The observations of implementation number n, counted from 0, are stored in the file ``{observation}-{n}``.

        Raises: CallFailed if an implementation raises; ProcessDisturbed if a call changed the process.
        """
        account = Account()
        with call_mode(self.case):
            settings = global_state.read_settings()
        sides = self._build_sides()
        copies = [name for name in (self.baseline, CONTROL) if name in sides]
        timer = self._make_timer(sides)
        calls = self._watch_calls(sides, settings)
        try:
            with call_mode(self.case):
                calls.compare_process()
                taken = sampling.sample_interleaved(
                    {name: side.step for name, side in sides.items()},
                    budget_s=budget_s,
                    limit_s=limit_s,
                    until_s=until_s,
                    seed=self.seed,
                    baseline=copies,
                    timer=timer,
                    surroundings=calls,
                    account=account,
                )
                calls.compare_process()
        except sampling.CallFailed as failed:
            raise sampling.CallFailed(self._find_owner(failed.name)) from failed.__cause__
        finally:
            calls.close()
        if "threads" not in self.without:
            _check_idle()
        calls.check_processor_time()
        calls.check_outside_time()
        samples = {
            name: replace(
                own,
                build_ns=(sides[name].candidate.build_ns,),
                values="fixed" if self._has_fixed_values(name) else "fresh",
            )
            for name, own in taken.items()
        }
        files = {name: f"{observation}-{number}" for number, name in enumerate(self.implementations)}
        for name, file in files.items():
            self._observe(name, sides[name], calls, checks, Path(file))
            if timer is not None:
                calls.prepare(name, 0)
                samples[name] = self._check_replay(name, sides[name], timer, samples[name])
        twin = samples.pop(CONTROL, None)
        # Freed within the account: an object that waits when it is freed would look like a slow clock.
        del calls, timer
        sides.clear()
        return TimedSamples(
            samples=samples,
            twin=twin,
            observations=files,
            elapsed_ns=account.close(),
            between_ns=account.between_ns,
        )

    def _build_sides(self) -> dict[str, _Side]:
        """Build all implementations in random order, because the first implementation to be built has cold caches."""
        wanted = dict(self.implementations)
        if self.baseline in wanted:
            wanted[CONTROL] = wanted[self.baseline]
        names = list(wanted)
        random.Random(self.seed).shuffle(names)  # noqa: S311  # an order, no secret
        built = {name: self._build_side(name, wanted[name]) for name in names}
        return {name: built[name] for name in wanted}

    def _find_owner(self, name: str) -> str:
        """Return the implementation that was sampled under a name; the A/A control is a copy of the baseline."""
        return self.baseline if name == CONTROL and self.baseline is not None else name

    def _build_side(self, name: str, implementation: Implementation) -> _Side:
        inputs = load_inputs(self.inputs, self.case.device)
        memory = inputs.map_tensors(Tensor.detach)
        try:
            candidate = _TimedCandidate(implementation, self.operator, self.case, inputs)
        except BaseException as error:
            raise sampling.CallFailed(self._find_owner(name)) from error
        # Read before an implementation that is built later can change it. Compiled modules change when they are called.
        is_watched = self._find_owner(name) == self.baseline and not self.case.compiler
        watched = WatchedModules(*(([candidate.module], candidate.inputs.tensors.values()) if is_watched else ([],)))
        enqueued = _make_step(candidate)
        return _Side(candidate, memory, watched, enqueued, _add_waits(enqueued, candidate))

    def _watch_calls(self, sides: Mapping[str, _Side], settings: Mapping[str, Any]) -> TimedCalls:
        cotangent = self.operator.outputs[0] if self.case.differentiates else None
        return TimedCalls(
            inputs={name: side.memory for name, side in sides.items()},
            values=FreshValues(load_inputs(self.inputs, self.case.device), cotangent, get_device(self.case.device)),
            settings=settings,
            instrument=self.instrument,
            watched=[side.watched for side in sides.values()],
            find_owner=self._find_owner,
            fixed={name for name in sides if self._has_fixed_values(name)},
            without=self.without,
        )

    def _has_fixed_values(self, name: str) -> bool:
        return self.implementations[self._find_owner(name)].policies.fixed_values

    def _make_timer(self, sides: Mapping[str, _Side]) -> Timer | None:
        """Prepare timing by the device, for those implementations that enqueue their work on torch's streams."""
        steps = {name: side.enqueued for name, side in sides.items() if not _has_own_synchronize(side.candidate)}
        capturable = {name for name in self.implementations if self._is_capturable(name)}
        return get_device(self.case.device).make_timer(steps, capturable=capturable)

    def _is_capturable(self, name: str) -> bool:
        """Whether an implementation may also be timed as a graph.

        The case must have no gradients, and the policies must declare the calls capturable and deterministic.
        """
        policies = self.implementations[name].policies
        return policies.capturable and policies.deterministic and not self.case.differentiates

    def _check_replay(self, name: str, side: _Side, timer: Timer, samples: Timing) -> Timing:
        """Return ``samples``, without graph times if a replay of the graph and a call give different results."""
        try:
            with side.candidate.call_mode():
                same = timer.replay_matches(name)
        except BaseException as error:
            raise sampling.CallFailed(name) from error
        return samples if same else replace(samples, graph_ns=(), method=timer.describe_method(name))

    def _observe(self, name: str, side: _Side, calls: TimedCalls, checks: Sequence[str], place: Path) -> None:
        """Store observations of the checks: of a call on the case's own values, and of the judged call.

        If an implementation became wrong while it was timed, the call after the timed calls is wrong in any case,
        whereas the judged call may have been an earlier one.
        """
        judged = calls.judged.kept.get(name)
        calls.restore(name)
        try:
            found = {check: list(load_check_function(check)(side.candidate)) for check in checks}
            if judged is not None and checks:
                timed = _describe_result(side.candidate, judged, calls.values)
                found = {check: [*found[check], timed[check]] for check in checks}
            tensor_file.write(place, {check: serialize(own) for check, own in found.items()})
        except BaseException as error:
            raise sampling.CallFailed(name) from error


class _TimedCandidate(Candidate):
    """A candidate that records the time of building its module and preparing the call, in nanoseconds."""

    build_ns = 0

    def build(self, reference: Any = None) -> tuple[Any, Callable[..., Any]]:
        """Build a new module, and record how long building took, in nanoseconds."""
        begin = time.perf_counter_ns()
        built = super().build(reference)
        self.build_ns = time.perf_counter_ns() - begin
        return built


def _describe_result(candidate: Candidate, judged: JudgedCall, values: FreshValues) -> dict[str, Match]:
    """Return, by check, what the check compares with the oracle's values: outputs and gradients of a judged call."""
    changed = values.make(judged.values)
    gradients: dict[str, Tensor] = {}
    if candidate.case.differentiates:
        # A timed pass computes the gradients of the first output alone.
        others = candidate.operator.outputs[1:]
        output, *found = judged.result
        outputs, gradients = candidate.name_outputs((output, *[None] * len(others))), candidate.name_gradients(found)
        cotangents = candidate.inputs.cotangents
        changed |= {f"cotangent.{name}": torch.zeros_like(cotangents[name]) for name in others if name in cotangents}
    else:
        single = len(candidate.operator.outputs) == 1
        outputs = candidate.name_outputs(judged.result[0] if single else judged.result)
    outputs = candidate.blank_excluded_rows(outputs, candidate.case, candidate.inputs)
    masks = {f"grad.{name}" for name in candidate.case.problem.additive_masks}
    inputs = {f"grad.{name}" for name in candidate.collect_leaves()} - masks
    quantities = {
        "forward_parity": outputs,
        "input_gradients": {name: gradients[name] for name in gradients if name in inputs},
        "parameter_gradients": {name: gradients[name] for name in gradients if name not in inputs | masks},
        "mask_gradients": {name: gradients[name] for name in gradients if name in masks},
    }
    return {check: Match(quantities=own, changed=changed, drawn_once=True) for check, own in quantities.items()}


def _make_step(candidate: Candidate) -> Step:
    """Return a function that runs one pass; in a case without gradients, a pass is one call of the implementation."""
    return (
        candidate.make_step()
        if candidate.case.differentiates
        else partial(candidate.call, **candidate.inputs.arguments())
    )


def _add_waits(step: Step, candidate: Candidate) -> Step:
    """Return a function that runs ``step`` and then waits until its work ends.

    If no wait is needed, return ``step`` itself.
    """
    own = candidate.implementation.synchronize if _has_own_synchronize(candidate) else None
    waits = [wait for wait in (own, get_device(candidate.case.device).find_wait()) if wait is not None]
    if not waits:
        return step

    def run_and_wait() -> object:
        result = step()
        for wait in waits:
            wait()
        return result

    return run_and_wait


def _has_own_synchronize(candidate: Candidate) -> bool:
    """Whether an implementation overrides ``synchronize``.

    By overriding it, the implementation declares that its work is not on torch's streams.
    """
    return type(candidate.implementation).synchronize is not Implementation.synchronize


def _check_idle() -> None:
    """Check that no thread of the process keeps running after the last call.

    Raises: ProcessDisturbed if threads keep running.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(SETTLING_S)
        wall, used = time.perf_counter_ns(), time.process_time_ns()
        time.sleep(WATCHED_S)
        share = (time.process_time_ns() - used) / (time.perf_counter_ns() - wall)
        # This thread reads the states of all, so it is one of those that run.
        others = count_runnable_threads([os.getpid()]) - 1
        if share < BUSY and others <= 0:
            return
        if time.monotonic() >= end:
            raise ProcessDisturbed(phrase("threads_busy", cores=max(share, others)))
