"""A worker that also tries one pass on a long sequence: whether it goes through, what it holds, how long it takes.

What is right there is not known: an oracle would need more than any implementation. Shapes and finiteness are looked
at, and the inputs are those of two short cases put in a row as often as it takes, which costs nothing to draw.
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
from attnbench.workers.candidate_worker import CandidateWorker, Outcome, outcome_of

__all__ = ["MaxLengthWorker", "stretched"]


class MaxLengthWorker(CandidateWorker):
    """Answers what a worker answers, and ``attempt``."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """Requests by name."""
        return {**super().handlers(), "attempt": self.attempt}

    def attempt(
        self, *, implementation: str, case: str, factor: int, short: str, double: str, limit_s: float
    ) -> Outcome:
        """Seconds and bytes of one pass on inputs ``factor`` times as long as the short ones.

        A first pass that takes too long is made twice: it may have built something. Bytes are counted where the time
        is within the limit.
        """

        def act() -> Outcome:
            self._subject = None  # what the pass before held is not this one's
            parsed = Case.parse(case, self._problems)
            inputs = stretched(self._loaded(short, parsed.device), self._loaded(double, parsed.device), factor)
            candidate = Candidate(
                self._implementations[implementation], self._operator(parsed.operator), parsed, inputs
            )
            _look(candidate)
            step = candidate.step()
            took_s = _seconds(step, candidate)
            if took_s > limit_s:
                took_s = min(took_s, _seconds(step, candidate))
            return {
                "took_s": took_s,
                "peak_bytes": _peak(step, parsed.device) if took_s <= limit_s else None,
                "threads": torch.get_num_threads(),
                "method": memory.peak_method(parsed.device),
            }

        return outcome_of(act)


def stretched(short: Inputs, double: Inputs, factor: int) -> Inputs:
    """Inputs in which every dimension that doubles from ``short`` to ``double`` is ``factor`` times that of ``short``.

    One tensor under several names stays one. Cotangents are made for the first output alone: those of weights would
    need the square of the length.
    """
    made: dict[int, Tensor] = {}

    def longer(named: Mapping[str, Tensor], twice: Mapping[str, Tensor], name: str) -> Tensor:
        tensor = named[name]
        if id(tensor) not in made:
            sizes = zip(tensor.shape, twice[name].shape, strict=True)
            made[id(tensor)] = tensor.repeat([factor if after == 2 * before else 1 for before, after in sizes])
        return made[id(tensor)]

    first = next(iter(short.cotangents), None)
    return replace(
        short,
        tensors={name: longer(short.tensors, double.tensors, name) for name in short.tensors},
        cotangents={} if first is None else {first: longer(short.cotangents, double.cotangents, first)},
    )


def _look(candidate: Candidate) -> None:
    """Refuse an output that has another shape than its cotangent, or elements that are not finite.

    Raises: Malformed.
    """
    name, cotangent = next(iter(candidate.inputs.cotangents.items()))
    output = candidate.run()[name]
    if output.shape != cotangent.shape:
        raise Malformed(f"{name} has shape {tuple(output.shape)}, must be {tuple(cotangent.shape)}")
    if not math.isfinite(output.detach().float().sum().item()):
        raise Malformed(f"{name} is not finite")


def _peak(step: Callable[[], object], device: str) -> int | None:
    """Bytes of a pass that went through before; None where it does not while they are counted, which takes some too."""
    try:
        return memory.peak_bytes(step, device)
    except (RuntimeError, MemoryError):
        return None


def _seconds(step: Callable[[], object], candidate: Candidate) -> float:
    begin = time.perf_counter()
    result = step()
    candidate.implementation.synchronize()
    if candidate.case.device == "cuda":
        torch.cuda.synchronize()
    took = time.perf_counter() - begin
    del result
    return took


def main() -> None:
    """Serve on the descriptor given as first argument."""
    faulthandler.enable()
    serve(MaxLengthWorker().handlers(), int(sys.argv[1]))


if __name__ == "__main__":
    main()
