"""The distance of floating-point numbers, in units in the last place."""

import torch
from torch import Tensor

__all__ = ["count_ulps", "find_difference"]

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Largest distance that is told: larger ones would not fit a 64-bit integer.
LARGEST = 2.0**62


def count_ulps(one: Tensor, other: Tensor) -> int:
    """Return the largest distance of two tensors' elements: the number of steps from one float to the next.

    It is 0 exactly if all bits are equal; 0 and −0 are one step apart. Two NaN are equal, whatever their bits.

    Shape: both the same. Raises: ValueError for tensors of other shapes or dtypes.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        raise ValueError(f"other must be {one.dtype} {tuple(one.shape)}, got {other.dtype} {tuple(other.shape)}")
    if one.numel() == 0:
        return 0
    (negative, size), (other_negative, other_size) = _split_sign(one), _split_sign(other)
    # Between numbers of unequal sign lie both distances from 0, and the step from −0 to 0.
    across = (size.double() + other_size.double() + 1).clamp(max=LARGEST).long()
    apart = torch.where(negative == other_negative, (size - other_size).abs(), across)
    return int(apart.masked_fill(one.isnan() & other.isnan(), 0).max())


def find_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors' elements; two NaN, or two equal infinities, differ by 0."""
    apart = (one.double() - other.double()).abs()
    same = (one == other) | (one.isnan() & other.isnan())
    return float(apart.masked_fill(same, 0.0).max()) if apart.numel() else 0.0


def _split_sign(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether each sign bit is set, and the other bits as an integer, by which the floats are numbered."""
    integers = INTEGERS[tensor.element_size()]
    bits = tensor.detach().contiguous().view(integers)
    return bits < 0, (bits & torch.iinfo(integers).max).long()
