"""Comparing a derivative with a central finite difference, in float64."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attnbench.checks.observations import Holds
from attnbench.oracle.error_budget import DIFFERENCE_STEP, allowed_slope_error

__all__ = ["compare_with_slope"]


def compare_with_slope(derivative: Tensor, tensor: Tensor, loss: Callable[[], Tensor], what: str) -> Holds:
    """Observe that the derivative of ``loss`` by ``tensor`` equals a central finite difference.

    The difference is taken along one direction that changes every element of ``tensor``. The tensor
    is changed in place and then restored. ``what`` names the derivative in messages.
    """
    direction = torch.cos(torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device)).view_as(tensor)
    ends = []
    for step in (DIFFERENCE_STEP, -DIFFERENCE_STEP):
        with _displace(tensor, step * direction):
            ends.append(float(loss().detach()))
    slope = (ends[0] - ends[1]) / (2 * DIFFERENCE_STEP)
    off, allowed = abs(float((derivative * direction).sum()) - slope), allowed_slope_error(slope)
    return Holds(
        holds=off <= allowed,
        what=f"{what} differs by {off:.3g} from the central difference {slope:.3g}; allowed {allowed:.3g}",
        measured=off,
        allowed=allowed,
    )


@contextmanager
def _displace(tensor: Tensor, by: Tensor) -> Iterator[None]:
    """Context in which ``by`` is added to a tensor in place; afterwards the tensor is restored."""
    before = tensor.detach().clone()
    try:
        with torch.no_grad():
            tensor.add_(by)
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(before)
