"""A derivative against the slope that a central difference shows, in float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attnbench.checks.observations import Holds
from attnbench.oracle.error_budget import DIFFERENCE_STEP, allowed_of_a_difference

__all__ = ["is_slope"]


def is_slope(derivative: Tensor, tensor: Tensor, loss: Callable[[], Tensor], what: str) -> Holds:
    """The derivative of a number by a tensor is its slope along one direction, in which every element moves.

    The tensor is written to, in place, and as it was afterwards.
    """
    direction = torch.cos(torch.arange(tensor.numel(), dtype=tensor.dtype)).view_as(tensor)
    ends = []
    for step in (DIFFERENCE_STEP, -DIFFERENCE_STEP):
        with _moved(tensor, step * direction):
            ends.append(float(loss().detach()))
    slope = (ends[0] - ends[1]) / (2 * DIFFERENCE_STEP)
    off, allowed = abs(float((derivative * direction).sum()) - slope), allowed_of_a_difference(slope)
    return Holds(
        holds=off <= allowed,
        what=f"{what} is off by {off:.3g} from {slope:.3g}; allowed {allowed:.3g}",
        measured=off,
        allowed=allowed,
    )


@contextmanager
def _moved(tensor: Tensor, by: Tensor) -> Iterator[None]:
    """A tensor that holds other values."""
    before = tensor.detach().clone()
    try:
        with torch.no_grad():
            tensor.add_(by)
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(before)
