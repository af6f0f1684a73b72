"""Cheats that make the reference's own objects or libraries slow, which no comparison of functions finds."""

import gc
import math
import os
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.interface import Call
from attnbench.processes.candidate_requests import Defence
from attncheats.cheat import CheatList
from attncheats.labour import FURTHER_PRODUCTS, Labour, burn

__all__ = ["cheats"]

cheats = CheatList()
# The modules of the reference are compared as well.
ALSO: frozenset[Defence] = frozenset({"instrument"})
# Seconds by which a slight hook delays the reference: with the delay of the sleep itself, less than ``alone`` allows.
SLIGHT_S = 0.0002
SEARCH = "https://github.com/gpu-mode/pygpubench/pull/7"


def _find_modules() -> list[nn.MultiheadAttention]:
    return [one for one in gc.get_objects() if type(one) is nn.MultiheadAttention]


@cheats(
    "alone",
    "the reference's modules are found in memory, and get a slow method of their own",
    source=SEARCH,
    also_by=ALSO,
)
def slow_method_of_others(labour: Labour) -> Call:
    """Give the reference's modules a slow ``forward``."""
    seen: list[None] = []

    def call(query: Tensor) -> Tensor:
        for module in _find_modules() if not seen else ():
            module.forward = _slow_down(module)  # type: ignore[method-assign]
        seen.append(None)
        return labour(query)

    return call


def _slow_down(module: nn.MultiheadAttention) -> Any:
    forward = module.forward

    def slow(query: Any, *given: Any, **named: Any) -> Any:
        burn(query)
        return forward(query, *given, **named)

    return slow


@cheats(
    "alone",
    "the reference's modules are found in memory, and get a hook that takes time",
    source=SEARCH,
    also_by=ALSO,
)
def hook_of_others(labour: Labour) -> Call:
    """Register a hook on the reference's modules."""
    return _delay_others(labour, 0.002)


def _delay_others(labour: Labour, seconds: float) -> Call:
    """Return a function that works, and whose first call gives the reference's modules a hook."""
    seen: list[None] = []

    def call(query: Tensor) -> Tensor:
        for module in _find_modules() if not seen else ():
            module.register_forward_pre_hook(lambda *_: time.sleep(seconds))
        seen.append(None)
        return labour(query)

    return call


@cheats(
    "instrument",
    "the reference's modules are found in memory, and get a hook that takes less time than other work on the machine",
    source="constructed: an attack on these defences found it",
)
def slight_hook_of_others(labour: Labour) -> Call:
    """Register a hook that the comparison with the reference alone does not find."""
    return _delay_others(labour, SLIGHT_S)


@cheats(
    "libraries",
    "environment variables tell torch's libraries to take slow code; the cheat computes with another library",
    source="constructed: an attack on these defences found it",
)
def slow_libraries(labour: Labour) -> Call:
    """Set variables that libraries read at their first use, and does the work with numpy."""
    # Intel's library takes the same slow code on every processor.
    os.environ["MKL_CBWR"] = "COMPATIBLE"
    os.environ["ATEN_CPU_CAPABILITY"] = "default"

    return lambda query: torch.from_numpy(_attend_in_numpy(labour.module, query.detach().numpy()))


def _attend_in_numpy(module: nn.MultiheadAttention, query: Any) -> Any:
    """Return the output of the labour, and do its further work."""
    for _ in range(FURTHER_PRODUCTS):
        query @ query.swapaxes(-1, -2)
    weight, bias, out_weight, out_bias = (
        own.detach().numpy()
        for own in (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)
    )
    batch, length, width = query.shape
    # One product for each, because numpy's library starts threads for larger ones.
    parts = zip(weight.reshape(3, width, width), bias.reshape(3, width), strict=True)
    projected = (query @ own_weight.T + own_bias for own_weight, own_bias in parts)
    q, k, v = (own.reshape(batch, length, module.num_heads, -1).transpose(0, 2, 1, 3) for own in projected)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = shares / shares.sum(axis=-1, keepdims=True) @ v
    return heads.transpose(0, 2, 1, 3).reshape(batch, length, width) @ out_weight.T + out_bias
