"""Seeded inputs: drawn on the CPU in float64 from one independent random stream per tensor, then rounded to a dtype.

A case therefore gets the same numbers on every device and, before rounding, in every dtype. Adding a tensor to a case,
or removing one, does not change the other tensors.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attnbench.devices import HOST, get_device
from attnbench.interface import Inputs
from attnbench.oracle import tensor_file

__all__ = ["Draw", "change_tensors", "inputs_to_dict", "load_inputs", "round_inputs", "select_positions"]


class Draw:
    """Random tensors of one case; the case's seed and the tensor's name determine each tensor."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def normal(self, name: str, *shape: int, std: float = 1.0) -> Tensor:
        """Return independent normal numbers in float64, with mean 0 and standard deviation ``std``."""
        return std * torch.randn(shape, generator=self._stream(name), dtype=torch.float64)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """Return independent uniform numbers from [0, 1) in float64."""
        return torch.rand(shape, generator=self._stream(name), dtype=torch.float64)

    def _stream(self, name: str) -> torch.Generator:
        seed = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:7]
        return torch.Generator().manual_seed(int.from_bytes(seed, "big"))


def round_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return the inputs with every floating-point tensor converted to ``dtype``."""
    return inputs.map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def change_tensors(inputs: Inputs, change: Callable[[str, Tensor], Tensor]) -> Inputs:
    """Return the inputs with each tensor replaced by ``change(name, tensor)``.

    A tensor under several names is changed once, under its first name. ``requires_grad`` is kept.
    """
    made: dict[int, Tensor] = {}
    for name, tensor in inputs.tensors.items():
        if id(tensor) not in made:
            made[id(tensor)] = change(name, tensor.detach()).requires_grad_(tensor.requires_grad)
    return replace(inputs, tensors={name: made[id(tensor)] for name, tensor in inputs.tensors.items()})


def select_positions(tensor: Tensor, index: Mapping[int, Sequence[int] | None]) -> Tensor:
    """Return a copy of a tensor that has only the positions in ``index``, which maps an axis to a list of positions.

    None instead of a list selects all positions. Positions may be in any order and may be repeated.
    """
    for axis, positions in index.items():
        if positions is not None:
            chosen = torch.tensor(positions, dtype=torch.long, device=tensor.device)
            tensor = tensor.index_select(axis, chosen)
    return tensor.clone()


def inputs_to_dict(inputs: Inputs) -> dict[str, dict[str, object]]:
    """Return the inputs as nested dicts for ``tensor_file``; a tensor under two names stays one tensor."""
    return {
        "parameters": dict(inputs.parameters),
        "tensors": dict(inputs.tensors),
        "options": dict(inputs.options),
        "cotangents": dict(inputs.cotangents),
    }


def load_inputs(path: str | Path, device: str = HOST) -> Inputs:
    """Read inputs from ``path`` onto a device; each tensor gets its own memory."""
    place = get_device(device).torch_type
    return Inputs(**tensor_file.read(Path(path))).map_tensors(lambda tensor: tensor.clone().to(place))
