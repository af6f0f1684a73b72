"""Profiler events of one call, in the order in which they began."""

from collections.abc import Callable
from typing import Any

from torch.autograd.profiler import profile

from attnbench.devices import get_device

__all__ = ["trace_call"]


def trace_call(call: Callable[[], object], device: str) -> list[Any]:
    """Return the profiler events of one call, memory events included.

    The result of the call is freed before the profiler stops. The events are read from the profiler object, because
    the exported trace is empty in some builds of torch (pytorch#166121). ``torch.profiler`` starts this profiler, too,
    but imports torch's compiler before, which takes 1 s of processor time (AMD EPYC).
    """
    used = get_device(device)
    with profile(use_device=used.profiled_as, use_kineto=True, profile_memory=True) as profiler:
        result = call()
        del result
        used.synchronize()
    return list(profiler.kineto_results.events())
