"""Input values of its own for every timed call, drawn in a way that the called code cannot predict."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.interface import Inputs

__all__ = ["FreshValues", "Rotation"]


class Rotation(NamedTuple):
    """Makes new values from a tensor: rotate its last dimension by ``offset`` positions, and multiply by ``sign``."""

    offset: int
    sign: int


class FreshValues:
    """New values of the floating-point inputs and of the first output's cotangent of a case.

    New values are the case's own numbers in another order: each tensor is rotated along its last dimension by a random
    number of positions, and its sign is random. Numbers stay within their token, so what a hidden token contains stays
    hidden. No two tensors share a random number. For each tensor, every offset is used once before one is used again,
    so an implementation that caches results by its inputs finds none in the cache.

    Masks and parameters keep their values: an implementation may use both when it prepares its call.
    """

    def __init__(self, inputs: Inputs, cotangent: str | None) -> None:
        """``cotangent`` names the output whose cotangent gets new values; None: the case has no gradients."""
        given = {name: tensor for name, tensor in inputs.tensors.items() if _is_changed(name, tensor)}
        if cotangent is not None:
            given[f"cotangent.{cotangent}"] = inputs.cotangents[cotangent]
        seen: set[int] = set()
        self._random = random.SystemRandom()
        # Every tensor twice, one copy behind the other along the last dimension: each rotation is then one slice.
        self._doubled: dict[str, Tensor] = {}
        for name, tensor in given.items():
            if id(tensor) not in seen and tensor.dim():
                self._doubled[name] = torch.cat([tensor.detach()] * 2, dim=-1)
            seen.add(id(tensor))
        self._offsets: dict[str, list[int]] = {name: [] for name in self._doubled}

    def draw(self) -> dict[str, Rotation]:
        """Draw new values: a rotation of each tensor, by the name of the tensor."""
        return {name: Rotation(self._draw_offset(name), self._random.choice((-1, 1))) for name in self._doubled}

    def make(self, rotations: Mapping[str, Rotation]) -> dict[str, Tensor]:
        """Return the new values, by the name of the tensor; a cotangent is named ``cotangent.<output>``."""
        return {name: self._select(name, rotation) * rotation.sign for name, rotation in rotations.items()}

    def write(self, rotations: Mapping[str, Rotation], inputs: Inputs) -> None:
        """Write the new values into the tensors of ``inputs``, which keep their addresses and strides."""
        with torch.no_grad():
            for name, rotation in rotations.items():
                torch.mul(self._select(name, rotation), rotation.sign, out=_get_tensor(inputs, name))

    def _draw_offset(self, name: str) -> int:
        left = self._offsets[name]
        if not left:
            left.extend(range(self._doubled[name].shape[-1] // 2))
            self._random.shuffle(left)
        return left.pop() if left else 0

    def _select(self, name: str, rotation: Rotation) -> Tensor:
        doubled = self._doubled[name]
        return doubled.narrow(-1, rotation.offset, doubled.shape[-1] // 2)


def _is_changed(name: str, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not name.endswith("mask")


def _get_tensor(inputs: Inputs, name: str) -> Tensor:
    kind, _, output = name.partition(".")
    return inputs.cotangents[output] if kind == "cotangent" else inputs.tensors[name]
