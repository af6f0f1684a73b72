"""Cheats that change torch's settings for everybody."""

import torch
from torch import Tensor

from attnbench.interface import Call
from attnbench.processes.candidate_requests import Defence
from attncheats.cheat import CheatList
from attncheats.labour import Labour

__all__ = ["cheats"]

cheats = CheatList()
# The runner finds a slow reference as well.
SLOWING: frozenset[Defence] = frozenset({"alone"})
BASELINE = "https://github.com/BytedTsinghua-SIA/CUDA-Agent/issues/16"


@cheats(
    "settings",
    "every call turns anomaly detection on for the backward passes of others",
    source="constructed: the slower baseline of CUDA-Agent#16, made by a setting of the process",
    mode="train",
    also_by=SLOWING,
)
def anomaly_for_others(labour: Labour) -> Call:
    """Turn anomaly detection on when its call ends."""

    def call(query: Tensor) -> Tensor:
        torch.set_anomaly_enabled(False)
        output = labour(query)
        torch.set_anomaly_enabled(True)
        return output

    return call


@cheats("settings", "every call leaves many threads to others, and takes one for itself", source=BASELINE)
def threads_for_others(labour: Labour) -> Call:
    """Set many threads when its call ends, which wait for one another on few cores."""

    def call(query: Tensor) -> Tensor:
        torch.set_num_threads(1)
        output = labour(query)
        torch.set_num_threads(16)
        return output

    return call


@cheats("settings", "every call turns the reference's fast path off", source=BASELINE)
def fast_path_off(labour: Labour) -> Call:
    """Turn off the reference's fast path."""

    def call(query: Tensor) -> Tensor:
        torch.backends.mha.set_fastpath_enabled(False)
        return labour(query)

    return call
