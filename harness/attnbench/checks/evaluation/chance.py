"""The probability that a fault model fits observed values although the fault is another one."""

import math

from torch import Tensor

__all__ = ["log_chance_of_fit"]


def log_chance_of_fit(
    value: Tensor, faulty: Tensor, expected: Tensor, *, allowed: float, blank: Tensor | None
) -> float:
    """Return the natural logarithm of the probability that wrong elements are near a fault model's by chance.

    An element counts if the fault changes it by more than ``allowed``. A wrong value of another cause is about as far
    from ``expected`` as ``faulty`` is, so it comes within ``allowed`` of ``faulty`` with the probability of ``allowed``
    over that distance.

    What many faults give does not count: elements of the output that are as if no value contributed (``blank``), and
    rows of zeros in other quantities (``blank`` is None). NaN is evidence where the fault model gives NaN to some
    elements only.

    Shape: all tensors are of one shape; otherwise the shape itself is the evidence, and the result is minus infinity.
    """
    if value.shape != expected.shape or faulty.shape != expected.shape:
        return -math.inf
    value = value.double()
    finite = value.isfinite()
    if bool((faulty.isnan() & expected.isfinite() & value.isnan()).any()) and bool(finite.any()):
        return -math.inf
    distance = (faulty - expected).abs()
    if blank is None:
        informative = (value != 0).any(dim=-1, keepdim=True) if value.dim() else value != 0
    else:
        informative = (value - blank).abs() > allowed
    counts = finite & distance.isfinite() & (distance > allowed) & informative
    if not bool(counts.any()):
        return 0.0
    return float((allowed / distance[counts]).log().sum()) if allowed else -math.inf
