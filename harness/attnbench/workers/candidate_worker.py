"""The candidate worker: a process that loads implementations, runs checks and measurements, and stores observations.

It evaluates nothing. An exception that an implementation raises becomes an outcome; the runner notices a crash of the
process.
"""

import faulthandler
import math
import os
import re
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from attnbench.candidate import global_state
from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.checks import observations
from attnbench.checks.catalogue import load_check_function
from attnbench.interface import Implementation, Inputs, Refusal
from attnbench.measurement import device_memory_limit, roofline, sampling
from attnbench.measurement.memory import Footprint, measure_footprint
from attnbench.oracle import tensor_file
from attnbench.oracle.inputs import load_inputs
from attnbench.plugins.adapters import find_form, load_implementation
from attnbench.plugins.registry import OPERATORS, PluginError, list_names, load_operator, load_problem_types
from attnbench.processes.rpc import replace_home, serve
from attnbench.records import environment
from attnbench.workers import interleaved_timing

__all__ = ["CandidateWorker", "Outcome", "run_for_outcome"]

Outcome = dict[str, Any]
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory|bad_alloc",
    re.IGNORECASE,
)


class CandidateWorker:
    """Answers the runner's requests about implementations."""

    def __init__(self) -> None:
        self._problems = load_problem_types()
        # Looking up an entry point reads the metadata of all installed packages: 8 ms.
        self._load_operator = cache(load_operator)
        self._implementations: dict[str, Implementation] = {}
        # torch's settings after the last implementation was loaded; they are restored before every check.
        self._settings: dict[str, Any] = {}
        # The candidate of the current implementation and case: all its checks share one build and one first call.
        self._candidate: tuple[tuple[str, str], Candidate] | None = None
        # Memory and kernels of the last measured pass; one request returns the memory, another the kernels.
        self._measured: tuple[tuple[str, str], Footprint] | None = None
        self._process = os.getpid()
        # Number of threads as requested; loading an implementation may change it.
        self._threads = torch.get_num_threads()
        # Device memory that an implementation may use while it runs alone; None for no limit.
        self._device_memory_bytes: int | None = None

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Functions that answer the requests, by name of the request."""
        return {
            "start": self.start,
            "open": self.open,
            "describe": self.describe,
            "form": self.describe_form,
            "survey": self.survey,
            "observe": self.observe,
            "memory": self.measure_memory,
            "kernels": self.list_kernels,
            "ceiling": self.measure_roofline,
            "time": self.time,
        }

    def start(
        self, *, threads: int | None, memory_limit_bytes: int | None, device_memory_bytes: int | None = None
    ) -> dict[str, Any]:
        """Set the number of threads and limit the address space; return the number of threads.

        The memory of a CUDA device is limited later, before the first inputs are loaded onto the device.
        """
        self._device_memory_bytes = device_memory_bytes
        if threads:
            torch.set_num_threads(threads)
        self._threads = torch.get_num_threads()
        if memory_limit_bytes and not torch.cuda.is_available():
            # With CUDA there is no such limit, because a CUDA context reserves far more address space than it uses.
            limit = environment.read_address_space_bytes() + memory_limit_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return {"threads": torch.get_num_threads()}

    def open(self, *, implementation: str) -> Outcome:
        """Load an implementation and return what it declares."""
        try:
            loaded_one = load_implementation(implementation)
        except PluginError as error:
            return {"fault": str(error)}
        if loaded_one.operator not in self._problems:
            if loaded_one.operator in list_names(OPERATORS):
                try:
                    load_operator(loaded_one.operator)
                except PluginError as error:
                    return {"fault": str(error)}
            operator, available = loaded_one.operator, ", ".join(sorted(self._problems))
            return {"fault": f"{implementation!r} computes an unknown operator {operator!r}; available: {available}"}
        self._implementations[implementation] = loaded_one
        self._settings = global_state.read_settings()
        return {
            "operator": loaded_one.operator,
            "source": str(loaded_one.source),
            "policies": asdict(loaded_one.policies),
            "compiles": loaded_one.compiles,
            "environment": {str(name): str(value) for name, value in loaded_one.environment().items()},
        }

    def describe(self, *, implementation: str, case: str) -> Outcome:
        """Return what an implementation declares about a case, without running it."""
        parsed, one = Case.parse(case, self._problems), self._implementations[implementation]

        def answer() -> Outcome:
            return {
                "unsupported": _check_declared("unsupported", one.unsupported(parsed), str),
                "untimed": _check_declared("untimed", one.untimed(parsed), str),
                "predicted_s": _check_declared("predicted_s", one.predicted_s(parsed), int, float),
            }

        return run_for_outcome(answer)

    def describe_form(self, *, implementation: str) -> Outcome:
        """Return the fields of the ``Form`` of an implementation, or the reason why it has none."""
        try:
            return asdict(find_form(implementation))
        except PluginError as error:
            return {"fault": str(error)}

    def survey(self, *, implementation: str, cases: list[str]) -> Outcome:
        """Count the cases that an implementation supports, and for each reason the cases that it refuses."""
        one = self._implementations[implementation]

        def answer() -> Outcome:
            reasons = [one.unsupported(Case.parse(case, self._problems)) for case in cases]
            refused = Counter(reason for reason in reasons if reason)
            return {"supported": len(cases) - refused.total(), "refused": dict(refused.most_common())}

        return run_for_outcome(answer)

    def observe(
        self, *, implementation: str, case: str, checks: list[str], inputs: str, observation: str
    ) -> dict[str, Outcome]:
        """Run checks, store their observations in the file ``observation``, and return an outcome for each check."""
        made: dict[str, Any] = {}

        def run_check(check: str) -> Outcome:
            global_state.restore_settings(self._settings)
            candidate = self._get_candidate(implementation, case, inputs)
            # Packed as bytes, because the next check may overwrite the tensors that this one observed.
            made[check] = tensor_file.pack(observations.serialize(list(load_check_function(check)(candidate))))
            if candidate.case.device == "cuda":
                torch.cuda.synchronize()  # an error of asynchronous work belongs to this check, not to the next
            if os.getpid() != self._process:
                # An implementation forked, and this is the child: only the parent may answer.
                os._exit(1)
            return {"status": "observed"}

        def store() -> Outcome:
            tensor_file.write(Path(observation), made)
            return {"status": "observed"}

        outcomes = {check: run_for_outcome(partial(run_check, check)) for check in checks}
        stored = run_for_outcome(store)
        return outcomes if stored["status"] == "observed" else dict.fromkeys(checks, stored)

    def measure_memory(self, *, implementation: str, case: str, inputs: str) -> Outcome:
        """Measure the memory of one pass; return the fields of a Memory."""
        return run_for_outcome(lambda: self._get_footprint(implementation, case, inputs).memory)

    def list_kernels(self, *, implementation: str, case: str, inputs: str) -> Outcome:
        """List the operators and kernels of one pass; the same measurement also gives the memory of the pass."""
        return run_for_outcome(lambda: {"kernels": self._get_footprint(implementation, case, inputs).kernels})

    def measure_roofline(self, *, dtype: str, device: str) -> Outcome:
        """Measure the peak rates of this process on a matrix product and on a copy."""
        return run_for_outcome(lambda: asdict(roofline.measure_roofline(dtype, device)))

    def time(
        self,
        *,
        implementations: list[str],
        baseline: str | None,
        case: str,
        inputs: str,
        budget_s: float,
        seed: int,
        checks: list[str],
        observation: str,
        limit_s: float = math.inf,
    ) -> Outcome:
        """Take interleaved samples of one pass of every implementation, then run the checks on each."""
        self._candidate = None
        global_state.restore_settings(self._settings)
        torch.set_num_threads(self._threads)
        parsed = Case.parse(case, self._problems)
        timing = interleaved_timing.InterleavedTiming(
            implementations={name: self._implementations[name] for name in implementations},
            baseline=baseline,
            operator=self._load_operator(parsed.operator),
            case=parsed,
            inputs=inputs,
            seed=seed,
        )
        act = partial(timing.take_samples, budget_s=budget_s, limit_s=limit_s, checks=checks, observation=observation)
        return run_for_outcome(act)

    def _get_footprint(self, implementation: str, case: str, inputs: str) -> Footprint:
        """Return the memory and kernels of one pass; both are measured together, at the first request for either."""
        key = (implementation, case)
        if self._measured is None or self._measured[0] != key:
            self._measured = (key, measure_footprint(self._get_candidate(implementation, case, inputs)))
        return self._measured[1]

    def _get_candidate(self, implementation: str, case: str, inputs: str) -> Candidate:
        if self._candidate is None or self._candidate[0] != (implementation, case):
            self._candidate = None  # freed before the next candidate is built
            self._candidate = ((implementation, case), self._build(implementation, case, inputs))
        return self._candidate[1]

    def _build(self, implementation: str, case: str, inputs: str) -> Candidate:
        parsed, one = Case.parse(case, self._problems), self._implementations[implementation]
        return Candidate(one, self._load_operator(parsed.operator), parsed, self._load_inputs(inputs, parsed.device))

    def _load_inputs(self, inputs: str, device: str) -> Inputs:
        """Load the inputs of a case; on a CUDA device, set the memory limit first.

        Interleaved timing loads its inputs without the limit: its process has a copy of the inputs for each
        implementation, and each implementation has already run alone under the limit.
        """
        if device == "cuda" and self._device_memory_bytes:
            device_memory_limit.set_memory_limit(self._device_memory_bytes)
        return load_inputs(inputs, device)


def _check_declared(name: str, value: Any, *kinds: type) -> Any:
    """Return what an implementation declared about a case.

    Raises: Malformed if the value is neither None nor of one of the types ``kinds``.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise Malformed(f"{name}(case) must return {kinds[-1].__name__} or None, got {value!r}")
    return _format_text(value) if isinstance(value, str) else value


def run_for_outcome(act: Callable[[], Outcome]) -> Outcome:
    """Return the outcome of ``act``; if it raises, return a status and a reason."""
    try:
        return act()
    except sampling.CallFailed as failed:
        return _describe_fault(failed.__cause__ or failed) | {"culprit": failed.name}
    except BaseException as error:  # noqa: BLE001  # an implementation may raise anything, SystemExit too
        return _describe_fault(error)


def _describe_fault(error: BaseException) -> Outcome:
    """Return the status and the reason for an exception."""
    if isinstance(error, Refusal):
        return {"status": "unsupported", "reason": _format_text(error) or "refused"}
    if isinstance(error, Malformed | interleaved_timing.ProcessDisturbed):
        return {"status": "failed", "reason": f"{error}."}
    reason = _format_error(error)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(reason):
        return {"status": "out_of_memory", "reason": reason}
    if isinstance(error, torch.AcceleratorError):
        _end_process(reason)
    return {"status": "error", "reason": reason}


def _end_process(reason: str) -> None:
    """End this process after an error in a CUDA kernel, because every further call on the device would fail.

    The runner starts a new process, and reports the reason, which is the last line of output.
    """
    sys.stderr.write(f"{reason}\n")
    sys.stderr.flush()
    os._exit(1)


def _format_error(error: BaseException) -> str:
    """Format an exception in one line, with the innermost code location outside torch."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1] if frames else None
    )
    where = f" (at {Path(place.filename).name}:{place.lineno} in {place.name})" if place else ""
    # Stored results must not contain a home directory.
    text = replace_home(_format_text(error))
    return f"{type(error).__name__}: {text[:400]}{where}"


def _format_text(thing: object) -> str:
    """Format a value from an implementation as one line of valid UTF-8; its ``__str__`` may raise."""
    try:
        text = str(thing)
    except Exception as error:  # noqa: BLE001  # the __str__ of an implementation's class may raise anything
        return f"str() of it raised {type(error).__name__}"
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def main() -> None:
    """Answer the requests on the file descriptor that is the first argument."""
    faulthandler.enable()
    serve(CandidateWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
