"""Comparing a derivative with a central finite difference."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from attnbench.checks.observations import Holds, Observation, Slope
from attnbench.interface import Precision
from attnbench.oracle.error_budget import allowed_slope_error, choose_difference_step

__all__ = ["compare_with_slope"]


def compare_with_slope(
    derivative: Tensor,
    tensor: Tensor,
    loss: Callable[[], Tensor],
    what: str,
    *,
    precision: Precision = "float64",
    weights: Mapping[str, Tensor] | None = None,
) -> Observation:
    """Observe that the derivative of ``loss`` by ``tensor`` equals a central finite difference.

    The difference is taken along one direction that changes every element of ``tensor``. The tensor, which is in
    float64, is changed in place and then restored. ``what`` names the derivative in messages.

    ``precision`` is that of the implementation's arithmetic. If it is coarser than float64, the rounding of the loss
    decides the step and the allowed error. ``weights`` is then needed: the loss is a sum of elements of
    quantities, each times a factor, and ``weights`` has the factors by the name of the quantity.
    """
    direction = torch.cos(torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device)).view_as(tensor)
    step, along = choose_difference_step(precision), float((derivative * direction).sum())
    slope = _measure_slope(tensor, loss, direction, step)
    if precision != "float64":
        return Slope(
            derivative=along,
            slope=slope,
            wider=_measure_slope(tensor, loss, direction, 2 * step),
            step=step,
            weights={name: float(factors.abs().sum()) for name, factors in (weights or {}).items()},
            what=what,
        )
    off, allowed = abs(along - slope), allowed_slope_error(slope)
    return Holds(
        holds=off <= allowed,
        what=f"{what} differs by {off:.3g} from the central difference {slope:.3g}; allowed {allowed:.3g}",
        measured=off,
        allowed=allowed,
    )


def _measure_slope(tensor: Tensor, loss: Callable[[], Tensor], direction: Tensor, step: float) -> float:
    """Return the central difference of ``loss`` along a direction."""
    ends = []
    for signed in (step, -step):
        with _displace(tensor, signed * direction):
            ends.append(float(loss().detach()))
    return (ends[0] - ends[1]) / (2 * step)


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
