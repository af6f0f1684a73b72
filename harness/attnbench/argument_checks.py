"""Checks of arguments; an invalid argument raises an error with a message of one line.

No check reads the values of a tensor. The checks therefore never wait for a device, and a compiler can trace them.
"""

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Kind",
    "demand_dtype",
    "demand_heads",
    "demand_shapes",
    "demand_tensor",
    "demand_whole_numbers",
    "describe_argument",
]

# Name of a group of dtypes, as it appears in messages.
Kind = Literal["boolean", "floating point", "whole numbers"]
KINDS: dict[Kind, Callable[[torch.dtype], bool]] = {
    "boolean": lambda dtype: dtype == torch.bool,
    "floating point": lambda dtype: dtype.is_floating_point,
    "whole numbers": lambda dtype: not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool),
}


def demand_tensor(name: str, tensor: object, *kinds: Kind) -> Tensor:
    """Return the argument if it is a tensor whose dtype is of one of the given kinds; without kinds, of any dtype.

    Raises: TypeError if the argument is not such a tensor.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if kinds and not any(KINDS[kind](tensor.dtype) for kind in kinds):
        remedy = "; attnbench.masks.from_additive converts an additive mask" if kinds == ("boolean",) else ""
        raise TypeError(f"{name} must be {' or '.join(kinds)}, got {tensor.dtype}{remedy}")
    return tensor


def demand_dtype(dtype: object) -> None:
    """Refuse a dtype that is not floating point, because such a dtype cannot represent minus infinity.

    Raises: TypeError.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype must be floating point, got {dtype}")


def demand_shapes(**given: tuple[Tensor, str]) -> None:
    """Refuse tensors whose shapes are inconsistent.

    Each tensor is given with the names of its dimensions, such as "batch length width". A number instead of a name is
    the required size, and ``|`` separates alternative shapes. Dimensions of one name must have the same size in all
    tensors; the first of these tensors defines the size.

    Raises: ValueError, TypeError.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, words) in given.items():
        demand_tensor(name, tensor)
        lists, shape = [part.split() for part in words.split("|")], tuple(tensor.shape)
        known = [word for word in dict.fromkeys(words.split()) if word in sizes]
        labels = next((part for part in lists if len(part) == len(shape)), None)
        found = [
            int(label) if label.isdigit() else sizes.setdefault(label, size)
            for label, size in zip(labels or (), shape, strict=False)
        ]
        if labels is None or found != list(shape):
            wanted = " or ".join(f"({', '.join(part)})" for part in lists)
            values = f" with {', '.join(f'{word} = {sizes[word]}' for word in known)}" if known else ""
            raise ValueError(f"{name} must have shape {wanted}{values}, got {shape}")


def demand_whole_numbers(least: int | None = None, /, **numbers: object) -> None:
    """Refuse a number that is not an integer, or that is less than ``least``.

    Raises: TypeError, ValueError.
    """
    for name, number in numbers.items():
        whole = isinstance(number, (Integral, torch.SymInt)) and not isinstance(number, bool)
        if whole and (least is None or number >= least):  # type: ignore[operator]
            continue
        wanted = "a whole number" if least is None else f"a whole number of at least {least}"
        raise (ValueError if whole else TypeError)(f"{name} must be {wanted}, got {describe_argument(number)}")


def demand_heads(num_heads: int, sizes: Mapping[str, int]) -> None:
    """Refuse a number of heads that does not divide every size; ``sizes`` maps a name to each size.

    Raises: TypeError, ValueError.
    """
    demand_whole_numbers(1, num_heads=num_heads)
    for name, size in sizes.items():
        if size % num_heads:
            raise ValueError(f"num_heads must divide {name} = {size}, got {num_heads}")


def describe_argument(given: object) -> str:
    """Return the text for an argument in messages: the value of a number, string or None, else the name of the type."""
    return repr(given) if given is None or isinstance(given, str | int | float) else type(given).__name__
