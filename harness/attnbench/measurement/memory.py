"""Measures the memory that one call needs beyond its inputs. Each record names the method of measurement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.candidate.candidate import Candidate
from attnbench.devices import get_device
from attnbench.measurement.kernel_trace import list_kernels
from attnbench.measurement.profiler_trace import trace_call
from attnbench.measurement.resident_memory import METHOD, bytes_outside_allocator
from attnbench.measurement.resident_memory import measure_peak_bytes as physical_peak_bytes

__all__ = [
    "Footprint",
    "count_held_bytes",
    "measure_footprint",
    "measure_peak_bytes",
    "measure_saved_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory of one pass (the fields of a stored ``Memory``), and names of its torch operators and device kernels."""

    memory: dict[str, Any]
    kernels: tuple[str, ...]


def measure_footprint(candidate: Candidate) -> Footprint:
    """Measure the memory of one pass of a candidate, and list the torch operators and device kernels of the pass.

    The pass runs several times. The first run is not traced, so that memory that is allocated only once, and then kept,
    is not counted.
    """
    case, step = candidate.case, candidate.make_step()
    existing = [
        *candidate.inputs.tensors.values(),
        *candidate.inputs.cotangents.values(),
        *candidate.parameters().values(),
    ]
    made = count_held_bytes(list(step()), existing)
    events = trace_call(step, case.device)
    saved = measure_saved_bytes(candidate.run, existing) if case.differentiates else None
    device = get_device(case.device)
    counted = device.measure_peak(step)
    peak, reserved = (_find_peak(events), None) if counted is None else counted
    physical = physical_peak_bytes(step) if counted is None else None
    method = device.peak_method
    return Footprint(
        memory={
            "peak_bytes": peak,
            "saved_bytes": saved,
            # ``peak - made`` is negative if the traced call returned an output that an earlier call had allocated.
            "workspace_bytes": max(0, peak - made),
            "physical_bytes": physical,
            "outside_bytes": bytes_outside_allocator(physical, peak),
            "reserved_bytes": reserved,
            "threads": torch.get_num_threads(),
            "method": method if physical is None else f"{method}; physical peak: {METHOD}",
        },
        kernels=list_kernels(events),
    )


def measure_peak_bytes(call: Callable[[], object], device: str) -> int:
    """Peak bytes of torch's allocator during a call, above the level before the call; exact to the byte on a CPU.

    All memory from the allocator counts, including scratch memory inside fused kernels. Memory that a library (MKL,
    oneDNN) allocates by itself does not count. An unmeasured call runs first, so that memory that is allocated only
    once, and then kept, is not counted.
    """
    call()
    counted = get_device(device).measure_peak(call)
    return _find_peak(trace_call(call, device)) if counted is None else counted[0]


def _find_peak(events: Iterable[Any]) -> int:
    """Highest running sum of allocated minus freed bytes, over the profiler's memory events."""
    now = highest = 0
    for event in events:
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    return highest


def count_held_bytes(values: Iterable[object], existing: Iterable[Tensor] = ()) -> int:
    """Bytes of the storages of the tensors in ``values``.

    A storage counts once, even if several tensors share it. A storage of an ``existing`` tensor does not count.
    """
    existing_storages = {tensor.untyped_storage().data_ptr() for tensor in existing}
    own = [value.untyped_storage() for value in values if isinstance(value, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in own if s.data_ptr() not in existing_storages}.values())


def measure_saved_bytes(call: Callable[[], object], inputs: list[Tensor]) -> int:
    """Bytes that a forward call keeps alive for backward, beyond its inputs and parameters.

    Each storage counts once, even if several views of it are kept. ``call`` is the forward pass alone.
    """
    # The list keeps the tensors alive until they are counted. Storages are distinguished by their addresses, and the
    # address of a freed storage could be reused.
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    return count_held_bytes(kept, inputs)
