"""Comparing a derivative with a central finite difference."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from attnbench.checks.observations import Observation, Slope
from attnbench.interface import Precision
from attnbench.oracle.error_budget import choose_difference_step
from attnbench.records.value_facts import Phrase

__all__ = ["compare_with_slope"]


def compare_with_slope(
    derivative: Tensor,
    tensor: Tensor,
    loss: Callable[[], Tensor],
    quantity: str,
    *,
    how: Phrase | str | None = None,
    precision: Precision = "float64",
    weights: Mapping[str, Tensor] | None = None,
) -> Observation:
    """Observe that the derivative of ``loss`` by ``tensor`` equals a central finite difference.

    The difference is taken along one direction that changes every element of ``tensor``. The tensor, which is in
    float64, is changed in place and then restored. ``quantity`` is the derivative; ``how`` says of what,
    unless it is that of the loss.

    ``precision`` is that of the implementation's arithmetic. If it is coarser than float64, the rounding of the loss
    decides the step and the allowed error. ``weights`` is then needed: the loss is a sum of elements of
    quantities, each times a factor, and ``weights`` has the factors by the name of the quantity.
    """
    direction = torch.cos(torch.arange(tensor.numel(), dtype=tensor.dtype, device=tensor.device)).view_as(tensor)
    step, along = choose_difference_step(precision), float((derivative * direction).sum())
    return Slope(
        derivative=along,
        slope=_measure_slope(tensor, loss, direction, step),
        wider=None if precision == "float64" else _measure_slope(tensor, loss, direction, 2 * step),
        step=step,
        weights={name: float(factors.abs().sum()) for name, factors in (weights or {}).items()},
        quantity=quantity,
        how=how,
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
