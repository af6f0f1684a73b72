"""The max-length worker: a candidate worker that also measures the time and memory of one pass on a long sequence.

There are no expected values: the oracle would need more memory than any implementation. The output is only checked to
be finite and to have the right shape. The inputs of a short case are repeated, which is much faster than drawing long
inputs.
"""

import faulthandler
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.measurement import memory
from attnbench.processes.rpc import serve
from attnbench.workers.candidate_worker import CandidateWorker, Outcome, run_for_outcome

__all__ = ["MaxLengthWorker", "stretch"]


class MaxLengthWorker(CandidateWorker):
    """Answers the requests to a candidate worker, and one more request, ``attempt``."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Functions that answer the requests, by name of the request."""
        return {**super().handlers(), "attempt": self.try_pass}

    def try_pass(
        self, *, implementation: str, case: str, factor: int, short: str, double: str, limit_s: float
    ) -> Outcome:
        """Measure the seconds and bytes of one pass on the short case's inputs, stretched by ``factor``.

        ``short`` and ``double`` are files of inputs at the short length and at twice that length. A pass over the time
        limit is repeated once, since the first pass may have compiled something. Bytes are counted only if the time is
        within the limit.
        """

        def act() -> Outcome:
            self._candidate = None  # frees the memory of the previous candidate
            parsed = Case.parse(case, self._problems)
            inputs = stretch(self._load_inputs(short, parsed.device), self._load_inputs(double, parsed.device), factor)
            candidate = Candidate(
                self._implementations[implementation], self._load_operator(parsed.operator), parsed, inputs
            )
            _check_output(candidate)
            step = candidate.make_step()
            took_s = _time_step_s(step, candidate)
            if took_s > limit_s:
                took_s = min(took_s, _time_step_s(step, candidate))
            return {
                "took_s": took_s,
                "peak_bytes": _measure_peak_bytes(step, parsed.device) if took_s <= limit_s else None,
                "threads": torch.get_num_threads(),
                "method": memory.describe_peak_method(parsed.device),
            }

        return run_for_outcome(act)


def stretch(short: Inputs, double: Inputs, factor: int) -> Inputs:
    """Return the inputs ``short``, repeated ``factor`` times along each dimension that is twice as long in ``double``.

    A tensor that has several names stays one tensor. Only the first output gets a cotangent: a cotangent of the
    attention weights would need memory quadratic in the length.
    """
    made: dict[int, Tensor] = {}

    def repeat(named: Mapping[str, Tensor], twice: Mapping[str, Tensor], name: str) -> Tensor:
        tensor = named[name]
        if id(tensor) not in made:
            sizes = zip(tensor.shape, twice[name].shape, strict=True)
            made[id(tensor)] = tensor.repeat([factor if after == 2 * before else 1 for before, after in sizes])
        return made[id(tensor)]

    first = next(iter(short.cotangents), None)
    return replace(
        short,
        tensors={name: repeat(short.tensors, double.tensors, name) for name in short.tensors},
        cotangents={} if first is None else {first: repeat(short.cotangents, double.cotangents, first)},
    )


def _check_output(candidate: Candidate) -> None:
    """Check that the first output has the shape of its cotangent and only finite elements.

    Raises: Malformed.
    """
    name, cotangent = next(iter(candidate.inputs.cotangents.items()))
    output = candidate.run()[name]
    if output.shape != cotangent.shape:
        raise Malformed(f"{name} has shape {tuple(output.shape)}, must be {tuple(cotangent.shape)}")
    if not math.isfinite(output.detach().float().sum().item()):
        raise Malformed(f"{name} is not finite")


def _measure_peak_bytes(step: Callable[[], object], device: str) -> int | None:
    """Peak bytes of a pass; None if the pass fails while bytes are counted, because counting needs memory as well."""
    try:
        return memory.measure_peak_bytes(step, device)
    except (RuntimeError, MemoryError):
        return None


def _time_step_s(step: Callable[[], object], candidate: Candidate) -> float:
    begin = time.perf_counter()
    result = step()
    candidate.implementation.synchronize()
    if candidate.case.device == "cuda":
        torch.cuda.synchronize()
    took = time.perf_counter() - begin
    del result
    return took


def main() -> None:
    """Answer the requests on the file descriptor that is the first argument."""
    faulthandler.enable()
    serve(MaxLengthWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
