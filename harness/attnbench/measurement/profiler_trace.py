"""Profiler events of one call, in the order in which they began."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["trace_call"]


def trace_call(call: Callable[[], object], device: str) -> list[Any]:
    """Return the profiler events of one call, with memory events; the result is freed before the profiler stops.

    The events are read directly: some builds leave the exported trace empty (pytorch#166121).
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    # Older versions of torch warn that events of earlier profiler cycles are lost; here there is only one cycle.
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        result = call()
        del result
        if device == "cuda":
            torch.cuda.synchronize()
    return list(profiler.profiler.kineto_results.events())
