"""The probability that a fault model fits observed values although another fault caused them."""

import math

from torch import Tensor

__all__ = ["log_chance_of_fit"]


def log_chance_of_fit(
    value: Tensor, faulty: Tensor, expected: Tensor, *, allowed: float, blank: Tensor | None
) -> float:
    """Return the natural logarithm of the probability that wrong elements are near ``faulty`` by chance.

    ``faulty`` has the values of a fault model. An element counts if ``faulty`` differs from ``expected`` by more than
    ``allowed``. A wrong value with another cause is about as far from ``expected`` as ``faulty`` is. It therefore comes
    within ``allowed`` of ``faulty`` with the probability ``allowed`` / distance.

    Values that many faults give do not count: in the output, elements as if no value contributed (``blank``); in other
    quantities, where ``blank`` is None, rows of zeros. NaN that ``faulty`` has too is evidence, unless no element of
    ``value`` is finite.

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
