"""Checks of tensor arguments: a wrong shape or dtype raises a one-line error instead of giving a wrong result."""

from collections.abc import Mapping

import torch
from torch import Tensor

from attnbench.argument_checks import Kind, demand_shapes, demand_tensor

__all__ = ["demand", "demand_broadcast"]

# Names of mask arguments. A mask must be None or boolean, because numbers would be interpreted as true and false.
MASKS = ("key_padding_mask", "attn_mask", "keep")
# Names of dimensions that a formula divides by: by the size of the dimension, or by the square root
# of the size. If the size is 0, the result of the formula is NaN.
DIVISORS = ("embed_dim", "head_dim", "out_width", "rows")


def demand(**given: tuple[Tensor | None, str]) -> None:
    """Refuse a tensor whose shape or dtype is wrong.

    Masks must be boolean. All other tensors must be floating point and have the same dtype. Each
    argument is a tensor with a string that names the dimensions of the tensor, as in
    ``demand_shapes``.

    Raises: ValueError, TypeError.
    """
    present: dict[str, tuple[Tensor, str]] = {}
    for name, (tensor, words) in given.items():
        if tensor is not None or name not in MASKS:
            kind: Kind = "boolean" if name in MASKS else "floating point"
            present[name] = demand_tensor(name, tensor, kind), words
    demand_shapes(**present)
    numbers = {name: each for name, each in present.items() if name not in MASKS}
    _demand_one_dtype({name: tensor for name, (tensor, _) in numbers.items()})
    for name, (number, words) in numbers.items():
        labels, shape = words.split(), tuple(number.shape)
        for label, size in zip(labels, shape, strict=True):
            if size == 0 and label in DIVISORS:
                raise ValueError(f"{name} must have shape ({', '.join(labels)}) with {label} at least 1, got {shape}")


def _demand_one_dtype(tensors: Mapping[str, Tensor]) -> None:
    (first, one), *others = tensors.items()
    for name, tensor in others:
        # Dtypes may differ under autocast, because torch casts the operands to one dtype.
        if tensor.dtype != one.dtype and not torch.is_autocast_enabled(one.device.type):
            raise TypeError(f"{name} must have the dtype of {first}, {one.dtype}, got {tensor.dtype}")


def demand_broadcast(name: str, mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or does not broadcast to ``shape``.

    Raises: ValueError, TypeError.
    """
    if mask is None:
        return
    demand_tensor(name, mask, "boolean")
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)
    if mask.dim() > len(shape) or any(size not in (1, whole) for size, whole in pairs):
        raise ValueError(f"{name} must be broadcastable to {tuple(shape)}, got {tuple(mask.shape)}")
