"""Bytes of one call above its inputs, by means that are named in the record."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes", "peak_method", "saved_bytes"]


def peak_method(device: str) -> str:
    """How ``peak_bytes`` counts on a device."""
    return "torch.profiler memory events" if device == "cpu" else "torch.cuda.max_memory_allocated"


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Highest level of torch's allocator during a call, above the level before it; exact to the byte on a CPU.

    Everything that goes through the allocator counts, scratch inside fused kernels too; what a library allocates
    by itself (MKL, oneDNN) does not. The call runs once before, so that lazily made workspaces are there.
    """
    call()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        del result
        return int(torch.cuda.max_memory_allocated() - before)
    # The events themselves, not the exported trace, which some builds leave empty (pytorch#166121).
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
        del result
    level = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    return highest


def saved_bytes(call: Callable[[], object], inputs: list[Tensor]) -> int:
    """Bytes that a forward call keeps alive for backward, beyond its inputs and parameters.

    Counted by storage: two views of one storage are one. ``call`` is the forward pass alone.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage that is freed could come back under the same address

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    del result
    return sum(kept.values())
