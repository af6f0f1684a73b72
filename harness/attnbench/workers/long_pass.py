"""The time and memory of one pass on a long sequence.

There are no expected values: the oracle would need more memory than any implementation. The output must only be finite
and have the right shape. The inputs of a short case are repeated, which is much faster than drawing long inputs.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate, Malformed
from attnbench.devices import get_device
from attnbench.interface import Inputs
from attnbench.measurement import memory
from attnbench.processes.candidate_requests import LongPass, TryPass
from attnbench.records.value_facts import phrase
from attnbench.workers.loaded_implementations import LoadedImplementations

__all__ = ["measure_long_pass", "stretch"]


def measure_long_pass(loaded: LoadedImplementations, request: TryPass) -> LongPass:
    """Measure the time and memory of one pass on a long sequence.

    The inputs of the pass are short inputs, repeated ``request.factor`` times along the sequence.

    A pass over the time limit is repeated once, since the first pass may have compiled code. Peak bytes are counted
    only if the time is within the limit.

    Raises: Malformed if the output is not finite or has the wrong shape; what the implementation raises.
    """
    case = loaded.parse_case(request.case)
    short, double = (loaded.load_inputs(file, case.device) for file in (request.short, request.double))
    inputs = stretch(short, double, request.factor)
    del short, double
    candidate = loaded.build_candidate(request.implementation, case, inputs)
    _check_output(candidate)
    step = candidate.make_step()
    took_s = _time_step_s(step, candidate)
    if took_s > request.limit_s:
        took_s = min(took_s, _time_step_s(step, candidate))
    return LongPass(
        took_s=took_s,
        peak_bytes=_measure_peak_bytes(step, case.device) if took_s <= request.limit_s else None,
        threads=torch.get_num_threads(),
        method=get_device(case.device).peak_method,
    )


def stretch(short: Inputs, double: Inputs, factor: int) -> Inputs:
    """Return the inputs ``short``, repeated ``factor`` times along each dimension that is twice as long in ``double``.

    If several names share one tensor in ``short``, they share one tensor in the result too. Only the first output gets
    a cotangent: a cotangent of the attention weights would need memory quadratic in the length.
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
    """Check that the first output has the shape of its cotangent, and that all its elements are finite.

    Raises: Malformed if the shapes differ, or if an element is not finite.
    """
    name, cotangent = next(iter(candidate.inputs.cotangents.items()))
    output = candidate.run()[name]
    if output.shape != cotangent.shape:
        raise Malformed(
            phrase("wrong_shape", name=name, shape=str(tuple(output.shape)), expected=str(tuple(cotangent.shape)))
        )
    if not math.isfinite(output.detach().float().sum().item()):
        raise Malformed(phrase("not_finite", name=name))


def _measure_peak_bytes(step: Callable[[], object], device: str) -> int | None:
    """Peak bytes of a pass; None if the count ends in an error, for example because counting needs more memory."""
    try:
        return memory.measure_peak_bytes(step, device)
    except (RuntimeError, MemoryError):
        return None


def _time_step_s(step: Callable[[], object], candidate: Candidate) -> float:
    begin = time.perf_counter()
    result = step()
    candidate.implementation.synchronize()
    get_device(candidate.case.device).synchronize()
    took = time.perf_counter() - begin
    del result
    return took
