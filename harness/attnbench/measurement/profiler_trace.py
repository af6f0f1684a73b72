"""What torch's profiler saw of one call: its events, in the order in which they began."""

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

__all__ = ["traced"]


def traced(call: Callable[[], object], device: str) -> list[Any]:
    """Events of one call, its result freed before the last of them; memory events among them.

    The events themselves, not the exported trace, which some builds leave empty (pytorch#166121).
    """
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    # Older versions warn that events of earlier cycles are lost; there is one cycle.
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
        result = call()
        del result
        if device == "cuda":
            torch.cuda.synchronize()
    return list(profiler.profiler.kineto_results.events())
