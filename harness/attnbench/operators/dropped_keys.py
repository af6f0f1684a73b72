"""Fault models that drop the last keys, before or after the softmax."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import FaultModel
from attnbench.operators.rounding import Noise, softmax

__all__ = ["TILES", "generate_dropped_keys"]

# Common tile sizes of kernels; a tile is a block of keys that a kernel processes together.
TILES = (16, 32, 64, 128)


def generate_dropped_keys(
    columns: int, tails: Mapping[int, tuple[str, Sequence[int]]], make_steps: Callable[..., Any]
) -> Iterator[FaultModel]:
    """Yield two fault models for each tail of keys; ``make_steps`` makes the steps of an operator's formula.

    ``tails`` has, by its first key, what a tail is called, and the tile sizes of which it is the last tile.
    """
    for first, (name, tiles) in tails.items():
        values: dict[str, int | str] = {"first": first} if name == "keys" else {}
        if tiles:
            values["tiles"] = ", ".join(map(str, tiles))
        dropped = torch.arange(columns) >= first
        for suffix, normalise in (("dropped", _drop_before_softmax), ("dropped_after_softmax", _drop_after_softmax)):
            fault = make_steps(normalise=partial(normalise, dropped))
            yield FaultModel(name=f"{name}_{'tile_' * bool(tiles)}{suffix}", values=values, fault=fault)


def _drop_before_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits.masked_fill(dropped, -math.inf), noise)


def _drop_after_softmax(dropped: Tensor, logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits, noise).masked_fill(dropped, 0.0)
