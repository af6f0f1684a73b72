"""Seeded numbers: drawn on the CPU in float64, one independent stream per name, then rounded to a dtype.

The same case therefore gets the same numbers on every device and in every dtype, and a tensor that one case has and
another lacks changes no other tensor.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attnbench.interface import Inputs
from attnbench.oracle import tensor_file

__all__ = ["Draw", "changed", "loaded", "picked", "rounded", "stored"]


class Draw:
    """Random tensors of one case; each is a function of the case's seed and its own name."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def normal(self, name: str, *shape: int, std: float = 1.0) -> Tensor:
        """Independent normal numbers, float64."""
        return std * torch.randn(shape, generator=self._stream(name), dtype=torch.float64)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Independent numbers in [0, 1), float64."""
        return torch.rand(shape, generator=self._stream(name), dtype=torch.float64)

    def _stream(self, name: str) -> torch.Generator:
        seed = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:7]
        return torch.Generator().manual_seed(int.from_bytes(seed, "big"))


def rounded(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """These inputs with every floating tensor in ``dtype``."""
    return inputs.mapped(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def changed(inputs: Inputs, change: Callable[[str, Tensor], Tensor]) -> Inputs:
    """Inputs whose tensors ``change(name, tensor)`` made, each once, under its first name; they track as before."""
    made: dict[int, Tensor] = {}
    for name, tensor in inputs.tensors.items():
        if id(tensor) not in made:
            made[id(tensor)] = change(name, tensor.detach()).requires_grad_(tensor.requires_grad)
    return replace(inputs, tensors={name: made[id(tensor)] for name, tensor in inputs.tensors.items()})


def picked(tensor: Tensor, index: Mapping[int, Sequence[int] | None]) -> Tensor:
    """A copy with these positions along each axis, in any order and as often as they are named; None: all."""
    for axis, positions in index.items():
        if positions is not None:
            chosen = torch.tensor(positions, dtype=torch.long, device=tensor.device)
            tensor = tensor.index_select(axis, chosen)
    return tensor.clone()


def stored(inputs: Inputs) -> dict[str, dict[str, object]]:
    """Plain containers of these inputs, as ``tensorfile`` takes them; one tensor under two names stays one."""
    return {
        "parameters": dict(inputs.parameters),
        "tensors": dict(inputs.tensors),
        "options": dict(inputs.options),
        "cotangents": dict(inputs.cotangents),
    }


def loaded(path: str | Path, device: str = "cpu") -> Inputs:
    """Inputs that were stored at ``path``, on a device, each tensor in memory of its own."""
    return Inputs(**tensor_file.read(Path(path))).mapped(lambda tensor: tensor.clone().to(device))
