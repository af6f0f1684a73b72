"""The candidate worker: a process that loads implementations, runs checks and measurements, and stores observations.

The worker does not evaluate the observations. If an implementation raises an exception, the worker answers with an
outcome. If the process crashes, the runner detects the crash.
"""

import faulthandler
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks import observations
from attnbench.checks.catalogue import load_check_function
from attnbench.devices import get_device
from attnbench.interface import Implementation
from attnbench.measurement import roofline
from attnbench.measurement.memory import measure_footprint
from attnbench.oracle import tensor_file
from attnbench.plugins.adapters import find_form
from attnbench.plugins.registry import PluginError, load
from attnbench.processes.candidate_requests import (
    Declaration,
    Declarations,
    Describe,
    DescribeAll,
    FindForm,
    LongPass,
    MeasuredPass,
    MeasurePass,
    MeasureRates,
    Observe,
    Observed,
    Outcome,
    Rates,
    TakeSamples,
    TimedSamples,
    TryPass,
)
from attnbench.processes.convention_requests import FindConvention, Proposal
from attnbench.processes.request import Fault, Handler
from attnbench.processes.rpc import serve
from attnbench.processes.script_subject import Form
from attnbench.records.outcome_facts import Raised
from attnbench.records.types import Memory
from attnbench.records.value_facts import phrase
from attnbench.refusals import OtherRefusal, TypedRefusal
from attnbench.workers.empty_batches import judge_empty_batch
from attnbench.workers.interleaved_timing import InterleavedTiming
from attnbench.workers.loaded_implementations import LoadedImplementations
from attnbench.workers.long_pass import measure_long_pass
from attnbench.workers.outcomes import format_text, list_arguments, run_for_outcome
from attnbench.workers.trial import find_convention

__all__ = ["CandidateWorker"]


class CandidateWorker:
    """Answers the runner's requests about the implementations in ``loaded``."""

    def __init__(self, loaded: LoadedImplementations) -> None:
        self._loaded = loaded
        # Name of the current implementation and id of the current case, and the candidate for them. All checks of the
        # candidate share one build and one first call.
        self._candidate: tuple[tuple[str, str], Candidate] | None = None
        self._process = os.getpid()

    def handlers(self) -> list[Handler]:
        """Return the handlers of all requests to a candidate worker; some are methods of ``loaded``."""
        return [
            *self._loaded.handlers(),
            Describe.answered_by(self.describe),
            FindForm.answered_by(self.find_form),
            FindConvention.answered_by(self.find_convention),
            DescribeAll.answered_by(self.describe_all),
            Observe.answered_by(self.observe),
            MeasurePass.answered_by(self.measure_pass),
            TryPass.answered_by(self.try_pass),
            MeasureRates.answered_by(self.measure_rates),
            TakeSamples.answered_by(self.take_samples),
        ]

    def describe(self, request: Describe) -> Declaration | Outcome:
        """Return what an implementation declares about a case, without a call of the implementation."""
        case, one = self._loaded.parse_case(request.case), self._loaded.get(request.implementation)

        return run_for_outcome(lambda: _ask_declaration(one, case))

    def find_form(self, request: FindForm) -> Form | Fault:
        """Return how a standalone program uses an implementation, or the reason why a program cannot use it."""
        try:
            return find_form(request.implementation)
        except PluginError as error:
            return Fault(reason=str(error))

    def find_convention(self, request: FindConvention) -> Proposal | Outcome:
        """Return by which convention an object gives the right result on a small problem."""
        thing, own = load(request.implementation), self._loaded.get(request.implementation)
        return run_for_outcome(lambda: find_convention(thing, own))

    def describe_all(self, request: DescribeAll) -> Declarations:
        """Return what an implementation declares about each case, until the time limit of the request has passed."""
        one = self._loaded.get(request.implementation)
        start, found = time.monotonic(), []
        for case in request.cases:
            if time.monotonic() - start > request.limit_s:
                break
            found.append(run_for_outcome(partial(_ask_declaration, one, self._loaded.parse_case(case))))
        return Declarations(by_case=found, seconds=time.monotonic() - start)

    def observe(self, request: Observe) -> Observed | Outcome:
        """Run checks, and store their observations in the file ``request.observation``."""
        made: dict[str, Any] = {}

        def run_check(check: str) -> None:
            self._loaded.restore_settings()
            candidate = self._get_candidate(request.implementation, request.case, request.inputs)
            # Pack the observations as bytes, because the next check may overwrite the tensors that this check observed.
            made[check] = tensor_file.pack(observations.serialize(list(load_check_function(check)(candidate))))
            # Raises an error of asynchronous work in this check, not in the next check.
            get_device(candidate.case.device).synchronize()
            if os.getpid() != self._process:
                # The implementation forked, and this process is the child: only the parent may answer the runner.
                os._exit(1)

        def call() -> None:
            self._get_candidate(request.implementation, request.case, request.inputs).run()

        policies = self._loaded.get(request.implementation).policies
        case = self._loaded.parse_case(request.case)
        outcomes = {
            check: self._add_arguments(judge_empty_batch(policies, case, call, partial(run_check, check)))
            for check in request.checks
        }
        stored = run_for_outcome(partial(tensor_file.write, Path(request.observation), made))
        return Observed(outcomes=outcomes if stored is None else dict.fromkeys(request.checks, stored))

    def _add_arguments(self, outcome: Outcome | None) -> Outcome | None:
        """Add the case's arguments to the exception of an error, unless no candidate could be built."""
        if outcome is None or outcome.status != "error" or self._candidate is None:
            return outcome
        arguments = list_arguments(self._candidate[1].inputs)
        facts = (replace(one, arguments=arguments) if isinstance(one, Raised) else one for one in outcome.facts)
        return replace(outcome, facts=tuple(facts))

    def measure_pass(self, request: MeasurePass) -> MeasuredPass | Outcome:
        """Measure the memory of one pass, and list the torch operators and device kernels that do its work."""

        def answer() -> MeasuredPass:
            candidate = self._get_candidate(request.implementation, request.case, request.inputs)
            found = measure_footprint(candidate)
            return MeasuredPass(memory=Memory(**found.memory), kernels=found.kernels)

        return run_for_outcome(answer)

    def try_pass(self, request: TryPass) -> LongPass | Outcome:
        """Measure the time and memory of one pass on a long sequence."""
        self.forget_candidate()
        return run_for_outcome(lambda: measure_long_pass(self._loaded, request))

    def measure_rates(self, request: MeasureRates) -> Rates | Outcome:
        """Measure the peak rates of this process on a matrix product and on a copy."""

        def answer() -> Rates:
            found = roofline.measure_roofline(request.dtype, request.device)
            return Rates(flop_per_s=found.flop_per_s, bytes_per_s=found.bytes_per_s, threads=found.threads)

        return run_for_outcome(answer)

    def take_samples(self, request: TakeSamples) -> TimedSamples | Outcome:
        """Take interleaved samples of one pass of every implementation, and store results as observations."""
        self.forget_candidate()
        self._loaded.restore_settings()
        self._loaded.restore_threads()
        case = self._loaded.parse_case(request.case)
        timing = InterleavedTiming(
            implementations={name: self._loaded.get(name) for name in request.implementations},
            baseline=request.baseline,
            operator=self._loaded.load_operator(case.operator),
            case=case,
            inputs=request.inputs,
            seed=request.seed,
            instrument=self._loaded.get_instrument(),
            without=request.without,
        )
        return run_for_outcome(
            lambda: timing.take_samples(
                budget_s=request.budget_s,
                limit_s=request.limit_s,
                until_s=request.until_s,
                checks=request.checks,
                observation=request.observation,
            )
        )

    def forget_candidate(self) -> None:
        """Drop the current candidate, so that its memory is freed."""
        self._candidate = None

    def _get_candidate(self, implementation: str, case: str, inputs: str) -> Candidate:
        if self._candidate is None or self._candidate[0] != (implementation, case):
            self.forget_candidate()  # frees memory before the next candidate is built
            parsed = self._loaded.parse_case(case)
            drawn = self._loaded.load_inputs(inputs, parsed.device)
            self._candidate = ((implementation, case), self._loaded.build_candidate(implementation, parsed, drawn))
        return self._candidate[1]


def _ask_declaration(implementation: Implementation, case: Case) -> Declaration:
    return Declaration(
        unsupported=_check_refusal("unsupported", implementation.unsupported(case)),
        untimed=_check_refusal("untimed", implementation.untimed(case)),
        predicted_s=_check_number("predicted_s", implementation.predicted_s(case)),
    )


def _check_refusal(method: str, value: object) -> TypedRefusal | None:
    """Return what an implementation declared about a case; a text becomes one line, and an empty text no refusal.

    Raises: Malformed if the value is neither None nor a text nor a typed refusal.
    """
    if isinstance(value, TypedRefusal):
        return value
    if value is not None and not isinstance(value, str):
        raise Malformed(phrase("no_text", method=method, got=format_text(repr(value))))
    text = format_text(value or "")
    return OtherRefusal(text=text) if text else None


def _check_number(method: str, value: object) -> float | None:
    """Return a number that an implementation declared about a case.

    Raises: Malformed if the value is neither None nor a number.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(phrase("no_number", method=method, got=format_text(repr(value))))
    return float(value)


def main() -> None:
    """Answer the requests on the socket whose file descriptor is the first command-line argument."""
    faulthandler.enable()
    serve(CandidateWorker(LoadedImplementations()).handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
