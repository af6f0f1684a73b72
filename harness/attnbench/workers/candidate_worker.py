"""The process in which implementations run: it loads plug-ins, calls them, and hands out what it saw.

It judges nothing. Whatever an implementation raises becomes an outcome; a crash of this process is the runner's to see.
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
from attnbench.checks.catalogue import check_function
from attnbench.interface import Implementation, Inputs, Refusal
from attnbench.measurement import device_memory_limit, roofline, sampling
from attnbench.measurement.memory import Footprint, footprint
from attnbench.oracle import tensor_file
from attnbench.oracle.inputs import loaded
from attnbench.plugins.adapters import load_implementation
from attnbench.plugins.registry import PluginError, load_operator, problems
from attnbench.processes.rpc import serve, without_home
from attnbench.records import environment
from attnbench.workers import interleaved_timing

__all__ = ["CandidateWorker", "Outcome", "outcome_of"]

Outcome = dict[str, Any]
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory|bad_alloc",
    re.IGNORECASE,
)


class CandidateWorker:
    """Answers the runner's requests about implementations."""

    def __init__(self) -> None:
        self._problems = problems()
        # Finding an entry point reads the metadata of everything that is installed: 8 ms.
        self._operator = cache(load_operator)
        self._implementations: dict[str, Implementation] = {}
        # As they are once everything is loaded; every check starts from them.
        self._settings: dict[str, Any] = {}
        # The subject of the case at hand: its checks share one build and one first call.
        self._subject: tuple[tuple[str, str], Candidate] | None = None
        # What the pass of a case took, for as long as another request may ask for the rest of it.
        self._measured: tuple[tuple[str, str], Footprint] | None = None
        self._process = os.getpid()
        # As asked for; loading an implementation may set another number.
        self._threads = torch.get_num_threads()
        # What an implementation that is alone here may take of a device's memory; None: all that there is.
        self._device_memory_bytes: int | None = None

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Requests by name."""
        return {
            "start": self.start,
            "open": self.open,
            "describe": self.describe,
            "survey": self.survey,
            "observe": self.observe,
            "memory": self.memory,
            "kernels": self.kernels,
            "ceiling": self.ceiling,
            "time": self.time,
        }

    def start(
        self, *, threads: int | None, memory_limit_bytes: int | None, device_memory_bytes: int | None = None
    ) -> dict[str, Any]:
        """Set the threads and the address space that is left to this process; say what they came to.

        Memory of a device is limited before the first case on one.
        """
        self._device_memory_bytes = device_memory_bytes
        if threads:
            torch.set_num_threads(threads)
        self._threads = torch.get_num_threads()
        if memory_limit_bytes and not torch.cuda.is_available():
            # A CUDA context reserves far more address space than it uses.
            limit = environment.address_space_bytes() + memory_limit_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return {"threads": torch.get_num_threads()}

    def open(self, *, implementation: str) -> Outcome:
        """Load an implementation and say what it declares."""
        try:
            loaded_one = load_implementation(implementation)
        except PluginError as error:
            return {"fault": str(error)}
        if loaded_one.operator not in self._problems:
            wanted, known = loaded_one.operator, ", ".join(sorted(self._problems))
            return {"fault": f"{implementation!r} computes an unknown operator {wanted!r}; available: {known}"}
        self._implementations[implementation] = loaded_one
        self._settings = global_state.noted()
        return {
            "operator": loaded_one.operator,
            "source": str(loaded_one.source),
            "policies": asdict(loaded_one.policies),
            "compiles": loaded_one.compiles,
            "environment": {str(name): str(value) for name, value in loaded_one.environment().items()},
        }

    def describe(self, *, implementation: str, case: str) -> Outcome:
        """What an implementation says of a case before it runs."""
        parsed, one = Case.parse(case, self._problems), self._implementations[implementation]

        def answer() -> Outcome:
            return {
                "unsupported": _declared("unsupported", one.unsupported(parsed), str),
                "untimed": _declared("untimed", one.untimed(parsed), str),
                "predicted_s": _declared("predicted_s", one.predicted_s(parsed), int, float),
            }

        return outcome_of(answer)

    def survey(self, *, implementation: str, cases: list[str]) -> Outcome:
        """How many of these cases an implementation takes, and how many it refuses for which reason."""
        one = self._implementations[implementation]

        def answer() -> Outcome:
            reasons = [one.unsupported(Case.parse(case, self._problems)) for case in cases]
            refused = Counter(reason for reason in reasons if reason)
            return {"supported": len(cases) - refused.total(), "refused": dict(refused.most_common())}

        return outcome_of(answer)

    def observe(
        self, *, implementation: str, case: str, checks: list[str], inputs: str, observation: str
    ) -> dict[str, Outcome]:
        """Run checks in turn; their claims go to the file ``observation``, their outcomes by name to the runner."""
        made: dict[str, Any] = {}

        def look(check: str) -> Outcome:
            global_state.put_back(self._settings)
            candidate = self._on(implementation, case, inputs)
            # As bytes, because the next check may write to what this one saw.
            made[check] = tensor_file.packed(observations.stored(list(check_function(check)(candidate))))
            if os.getpid() != self._process:
                # A fork that an implementation made and let return; the answer is the parent's to give.
                os._exit(1)
            return {"status": "observed"}

        def keep() -> Outcome:
            tensor_file.write(Path(observation), made)
            return {"status": "observed"}

        outcomes = {check: outcome_of(partial(look, check)) for check in checks}
        kept = outcome_of(keep)
        return outcomes if kept["status"] == "observed" else dict.fromkeys(checks, kept)

    def memory(self, *, implementation: str, case: str, inputs: str) -> Outcome:
        """The fields of a Memory: bytes that one pass takes at its peak, saves for backward, and needs besides."""
        return outcome_of(lambda: self._footprint(implementation, case, inputs).memory)

    def kernels(self, *, implementation: str, case: str, inputs: str) -> Outcome:
        """Operators and kernels that ran in one pass; nothing is called again after ``memory`` of the same case."""
        return outcome_of(lambda: {"kernels": self._footprint(implementation, case, inputs).kernels})

    def ceiling(self, *, dtype: str, device: str) -> Outcome:
        """What this process reaches on a matrix product and on a copy."""
        return outcome_of(lambda: asdict(roofline.reached(dtype, device)))

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
        """Interleaved samples of one pass of every implementation, and afterwards what checks claim of each."""
        self._subject = None
        global_state.put_back(self._settings)
        torch.set_num_threads(self._threads)
        parsed = Case.parse(case, self._problems)
        turn = interleaved_timing.InterleavedTiming(
            implementations={name: self._implementations[name] for name in implementations},
            baseline=baseline,
            operator=self._operator(parsed.operator),
            case=parsed,
            inputs=inputs,
            seed=seed,
        )
        taken = partial(turn.taken, budget_s=budget_s, limit_s=limit_s, checks=checks, observation=observation)
        return outcome_of(taken)

    def _footprint(self, implementation: str, case: str, inputs: str) -> Footprint:
        """What one pass takes, measured at the first request."""
        key = (implementation, case)
        if self._measured is None or self._measured[0] != key:
            self._measured = (key, footprint(self._on(implementation, case, inputs)))
        return self._measured[1]

    def _on(self, implementation: str, case: str, inputs: str) -> Candidate:
        if self._subject is None or self._subject[0] != (implementation, case):
            self._subject = None  # freed before the next one is built
            self._subject = ((implementation, case), self._build(implementation, case, inputs))
        return self._subject[1]

    def _build(self, implementation: str, case: str, inputs: str) -> Candidate:
        parsed, one = Case.parse(case, self._problems), self._implementations[implementation]
        return Candidate(one, self._operator(parsed.operator), parsed, self._loaded(inputs, parsed.device))

    def _loaded(self, inputs: str, device: str) -> Inputs:
        """Inputs of a case, on a device of which no more may be taken than was asked for.

        Not for turns: whoever takes part was alone under the limit before, and turns hold the inputs of all.
        """
        if device == "cuda" and self._device_memory_bytes:
            device_memory_limit.limit(self._device_memory_bytes)
        return loaded(inputs, device)


def _declared(name: str, value: Any, *kinds: type) -> Any:
    """What an implementation said of a case, if it is of a kind that can be stored, or None.

    Raises: Malformed.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise Malformed(f"{name}(case) must return {kinds[-1].__name__} or None, got {value!r}")
    return _text(value) if isinstance(value, str) else value


def outcome_of(act: Callable[[], Outcome]) -> Outcome:
    """What ``act`` answers, or a status and a reason for what it raised."""
    try:
        return act()
    except sampling.Broken as broken:
        return _fault(broken.__cause__ or broken) | {"culprit": broken.name}
    except BaseException as error:  # noqa: BLE001  # an implementation may raise anything, SystemExit too
        return _fault(error)


def _fault(error: BaseException) -> Outcome:
    """Status and reason of what was raised."""
    if isinstance(error, Refusal):
        return {"status": "unsupported", "reason": _text(error) or "refused"}
    if isinstance(error, Malformed | interleaved_timing.Unfit):
        return {"status": "failed", "reason": f"{error}."}
    said = _said(error)
    memory_is_out = isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(said)
    return {"status": "out_of_memory" if memory_is_out else "error", "reason": said}


def _said(error: BaseException) -> str:
    """Exception in one line, with the innermost place outside torch and the harness."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if "/torch/" not in frame.filename), frames[-1] if frames else None
    )
    where = f" (at {Path(place.filename).name}:{place.lineno} in {place.name})" if place else ""
    # Stored results carry no home directory.
    text = without_home(_text(error))
    return f"{type(error).__name__}: {text[:400]}{where}"


def _text(thing: object) -> str:
    """What a plug-in says, on one line and as text that can be stored; saying it may fail, too."""
    try:
        said = str(thing)
    except Exception as error:  # noqa: BLE001  # an exception's own words may raise anything
        return f"its text cannot be had: {type(error).__name__}"
    return " ".join(said.encode("utf-8", "replace").decode("utf-8").split())


def main() -> None:
    """Serve on the descriptor given as first argument."""
    faulthandler.enable()
    serve(CandidateWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
