"""Input values of its own for every timed call, drawn in a way that the called code cannot predict."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.devices.device import Device
from attnbench.interface import Inputs

__all__ = ["FreshValues", "Signs"]


class Signs(NamedTuple):
    """Makes new values from a tensor: multiply its rows and its columns by 1 or −1.

    Rows are positions along the last dimension but one, and columns are positions along the last dimension.
    """

    rows: Tensor
    columns: Tensor

    def apply(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the new values, or write them into ``out``."""
        return torch.mul(tensor, self.columns, out=out).mul_(self.rows)


class FreshValues:
    """New values of the floating-point inputs and of the first output's cotangent of a case.

    New values are the case's own numbers with random signs, which are drawn for each token and for each feature. There
    are 2 to the power of (tokens + features − 1) of them, so a call meets none twice. Their magnitudes stay, and the
    numbers of a hidden token stay within this token. Masks and parameters keep their values, because an implementation
    may use both when it prepares its call.
    """

    def __init__(self, inputs: Inputs, cotangent: str | None, device: Device) -> None:
        """``cotangent`` names the output whose cotangent gets new values; None: the case has no gradients."""
        given = {name: tensor for name, tensor in inputs.tensors.items() if _is_changed(name, tensor)}
        if cotangent is not None:
            given[f"cotangent.{cotangent}"] = inputs.cotangents[cotangent]
        # The signs come from the operating system. The state of a generator of torch or Python can be read, or computed
        # from the signs of 66 calls: with it, an implementation knew which values belong to judged calls.
        self._random = random.SystemRandom()
        self._device = device
        self._given: dict[str, Tensor] = {}
        for name, tensor in given.items():
            if tensor.dim() and not any(tensor is other for other in self._given.values()):
                self._given[name] = tensor
        self._given = {name: tensor.detach().clone() for name, tensor in self._given.items()}

    def draw(self) -> dict[str, Signs]:
        """Draw new values: the signs of each tensor, by the name of the tensor."""
        return {
            name: Signs(self._draw_signs(tensor, -2).unsqueeze(-1), self._draw_signs(tensor, -1))
            for name, tensor in self._given.items()
        }

    def make(self, signs: Mapping[str, Signs]) -> dict[str, Tensor]:
        """Return the new values, by the name of the tensor; a cotangent is named ``cotangent.<output>``."""
        return {name: own.apply(self._given[name]) for name, own in signs.items()}

    def write(self, signs: Mapping[str, Signs], inputs: Inputs) -> None:
        """Write the new values into the tensors of ``inputs``, which keep their addresses and strides.

        Wait until the device has written them, so that the writing is no part of a call that follows.
        """
        with torch.no_grad():
            for name, own in signs.items():
                own.apply(self._given[name], out=_get_tensor(inputs, name))
        if signs:
            self._device.synchronize()

    def find_changed(self, signs: Mapping[str, Signs], inputs: Inputs) -> list[str]:
        """Return the names of the tensors of ``inputs`` that no longer have the values that were written.

        ``signs`` are those of the written values; a tensor without signs has the values of the case.
        """
        wanted = self._given | self.make(signs)
        return [name for name, value in wanted.items() if not _is_same(value, _get_tensor(inputs, name))]

    def restore(self, inputs: Inputs) -> None:
        """Write the case's own values into the tensors of ``inputs``."""
        with torch.no_grad():
            for name, tensor in self._given.items():
                _get_tensor(inputs, name).copy_(tensor)

    def _draw_signs(self, tensor: Tensor, dimension: int) -> Tensor:
        count = tensor.shape[dimension] if tensor.dim() >= -dimension else 1
        drawn = torch.frombuffer(bytearray(self._random.randbytes(count)), dtype=torch.uint8)
        return (drawn % 2).to(device=tensor.device, dtype=tensor.dtype).mul_(2).sub_(1)


def _is_changed(name: str, tensor: Tensor) -> bool:
    return tensor.is_floating_point() and not name.endswith("mask")


def _get_tensor(inputs: Inputs, name: str) -> Tensor:
    kind, _, output = name.partition(".")
    return inputs.cotangents[output] if kind == "cotangent" else inputs.tensors[name]


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
