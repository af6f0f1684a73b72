"""Bytes of one call above its inputs, by means that are named in the record."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.measurement.kernel_trace import kernels
from attnbench.measurement.profiler_trace import traced
from attnbench.measurement.resident_memory import METHOD, outside_bytes
from attnbench.measurement.resident_memory import peak_bytes as physical_peak_bytes

__all__ = ["Footprint", "footprint", "held_bytes", "peak_bytes", "peak_method", "saved_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What one pass takes: the fields of a stored Memory, and what did the work meanwhile."""

    memory: dict[str, Any]
    kernels: tuple[str, ...]


def footprint(candidate: Candidate) -> Footprint:
    """Bytes that one pass of a subject takes, and the operators and kernels that ran; each from calls of its own.

    The call runs once before it is counted, so that workspaces that are made once are there.
    """
    case, step = candidate.case, candidate.step()
    known = [
        *candidate.inputs.tensors.values(),
        *candidate.inputs.cotangents.values(),
        *candidate.parameters().values(),
    ]
    made = _made_bytes(candidate, step, known)
    events = traced(step, case.device)
    saved = saved_bytes(candidate.run, known) if case.differentiates else None
    peak, reserved, physical = _peak_in(events), None, None
    if case.device == "cuda":
        peak, reserved = _device_peak(step)
    else:
        physical = physical_peak_bytes(step)
    method = peak_method(case.device)
    return Footprint(
        memory={
            "peak_bytes": peak,
            "saved_bytes": saved,
            # An output that is kept from call to call was not made in this one.
            "workspace_bytes": max(0, peak - made),
            "physical_bytes": physical,
            "outside_bytes": outside_bytes(physical, peak),
            "reserved_bytes": reserved,
            "threads": torch.get_num_threads(),
            "method": method if physical is None else f"{method}; physical peak: {METHOD}",
        },
        kernels=kernels(events),
    )


def _made_bytes(candidate: Candidate, step: Callable[[], Iterable[object]], known: list[Tensor]) -> int:
    """Bytes of what a pass makes: its outputs, or its output and all gradients."""
    made = list(step())
    if candidate.case.differentiates:
        made.append(candidate.run()[candidate.operator.outputs[0]])
    return held_bytes(made, known)


def peak_method(device: str) -> str:
    """How peak bytes are counted on a device."""
    return "torch.profiler memory events" if device == "cpu" else "torch.cuda.max_memory_allocated"


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Highest level of torch's allocator during a call, above the level before it; exact to the byte on a CPU.

    Everything that goes through the allocator counts, scratch inside fused kernels too; what a library allocates
    by itself (MKL, oneDNN) does not. The call runs once before, so that lazily made workspaces are there.
    """
    call()
    return _device_peak(call)[0] if device == "cuda" else _peak_in(traced(call, device))


def _peak_in(events: Iterable[Any]) -> int:
    """Highest sum of the bytes taken and given back so far."""
    now = highest = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    return highest


def _device_peak(call: Callable[[], object]) -> tuple[int, int]:
    """Highest levels, above those before the call, of what was allocated and of what was taken from the device."""
    torch.cuda.synchronize()
    # Blocks that earlier calls left in the cache would serve this one, and nothing would be taken.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - allocated, torch.cuda.max_memory_reserved() - reserved


def held_bytes(values: Iterable[object], known: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages behind tensors, each once, beyond those of ``known`` tensors."""
    theirs = {tensor.untyped_storage().data_ptr() for tensor in known}
    own = [value.untyped_storage() for value in values if isinstance(value, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in own if s.data_ptr() not in theirs}.values())


def saved_bytes(call: Callable[[], object], inputs: list[Tensor]) -> int:
    """Bytes that a forward call keeps alive for backward, beyond its inputs and parameters.

    Counted by storage: two views of one storage are one. ``call`` is the forward pass alone.
    """
    kept: list[Tensor] = []  # alive, because a storage that is freed could come back under the same address

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    return held_bytes(kept, inputs)
