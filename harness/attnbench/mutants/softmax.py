"""Parts of the softmax that mutants and variants compute in their own way."""

import math

import torch
from torch import Tensor

__all__ = ["divide_by_sum", "find_maximum", "make_finite", "sum_in_sequence", "widen"]


def widen(tensor: Tensor) -> Tensor:
    """Convert a tensor to float32; a float64 tensor stays float64."""
    return tensor.double() if tensor.dtype == torch.float64 else tensor.float()


def make_finite(rows: Tensor) -> Tensor:
    """Return maxima or logsumexps of rows, with 0 in place of −∞, the value of a row without a visible key."""
    return rows.masked_fill(rows == -math.inf, 0.0)


def find_maximum(logits: Tensor) -> Tensor:
    """Return the maximum of each row as a constant, with 0 in a row without a visible key. Shape: (…, keys) to (…, 1).

    Raises: IndexError if there are no keys.
    """
    return make_finite(logits.detach().amax(dim=-1, keepdim=True))


def divide_by_sum(exponentials: Tensor) -> Tensor:
    """Divide each row by its sum; a row of zeros stays zero."""
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)


def sum_in_sequence(exponentials: Tensor) -> Tensor:
    """Sum each row from its first element to its last, and round after each. Shape: (…, keys) to (…, 1)."""
    total = torch.zeros_like(exponentials[..., :1])
    for column in torch.split(exponentials, 1, dim=-1):
        total = total + column
    return total
