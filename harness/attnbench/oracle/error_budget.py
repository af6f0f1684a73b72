"""Error measures and the error budget. Every tolerance of the harness is defined here.

The error budget of a case is ``FACTOR`` times the larger of two rounding errors on that case: the error of the
yardsticks (the reference's own paths in the case's dtype) and the error of the rounding model (the oracle's formula in
float64 with relative noise of one roundoff at every stage). The rounding model gives a lower bound where the yardsticks
happen to be exact. The yardsticks account for the sequential accumulation of real kernels; their error counts up to
``YARDSTICK_CAP`` times that of the rounding model. For sums longer than ``LONG`` in float32 and float64, the factor
grows with √(length / ``LONG``). ``research.variants`` measures which fraction of the budget correct variants use with
``FACTOR`` = 4; docs/evidence.md has the figures.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.cases import NUMBER_FORMATS, Dtype
from attnbench.interface import Precision

__all__ = [
    "DIFFERENCE_STEP",
    "FACTOR",
    "MODEL_RUNS",
    "ROUNDOFF",
    "SCALE_STEP",
    "TWO_RUNS",
    "Allowance",
    "allowed_join_error",
    "allowed_probe_error",
    "allowed_rounded_slope_error",
    "allowed_row_sum_error",
    "allowed_slope_error",
    "averaged_rounding_error",
    "choose_difference_step",
    "compute_allowances",
    "count_model_runs",
    "error_along",
    "largest_error",
]

# Roundoff by precision: half the distance from 1 to the next larger number. For float64 it is doubled, because the
# oracle computes in float64 too, with rounding errors as large as the candidate's.
ROUNDOFF: dict[Precision, float] = {
    **{dtype: 2.0**-numbers.significant_bits for dtype, numbers in NUMBER_FORMATS.items()},
    "tf32": 2.0**-11,
    "float64": 2.0**-52,
}
# Ratio of the allowed error to the rounding error of the case.
FACTOR = 4.0
# Number of runs of the rounding model; the largest error over the runs is used.
MODEL_RUNS = 8
# Cap on the error of a yardstick, as a multiple of the rounding model's error. A yardstick with a larger error is
# suspect.
YARDSTICK_CAP = 8.0
# Number of keys beyond which the error of sequential sums in float32 and float64 grows with the square root of the
# number of keys. Online softmax in blocks of 1 key was measured: its error was 2.3 times the rounding model's error at
# 256 keys, 4.4 times at 1024 keys and 9.4 times at 4096 keys.
LONG = 512
# Factor on the allowed error where two runs of one implementation are compared: each run has its own rounding error.
TWO_RUNS = 2.0
# Relative step of the finite difference that estimates the oracle's derivative with respect to the softmax scale.
SCALE_STEP = 1e-4
# Allowed error of the softmax scale or of the amplitude that is fitted over a whole tensor, in roundoffs. The first
# number of a pair is for outputs, the second number is for gradients. Each number is 4 times the worst error of all
# correct variants and built-in implementations on a CPU, with 6 seeds, batch 4, 33 queries and 47 keys. In float32,
# however, the worst errors are from an H100: 6.0 roundoffs for outputs and 8.6 for gradients, by the fused kernels of
# torch 2.11, whose exponential function is approximate. Over all elements of a tensor, the rounding of single elements
# averages out; the rounding of the scale itself remains. TF32 was not measured; it has the numbers of float16, because
# both precisions have the same roundoff.
PROBE_ROUNDOFFS: dict[Precision, tuple[float, float]] = {
    "float64": (2.5, 3.2),
    "float32": (24.0, 35.0),
    "tf32": (0.9, 1.7),
    "float16": (0.9, 1.7),
    "bfloat16": (1.05, 1.85),
}
# PROBE_ROUNDOFFS applies to tensors in which rounding averages out. PROBE_ELEMENTS is the smallest number of elements
# of such a tensor. PROBE_AVERAGED is the largest error of the rounding model on such a tensor, in roundoffs. (The
# largest error that was measured on tensors with enough elements was 1.6 roundoffs.)
PROBE_ELEMENTS, PROBE_AVERAGED = 2000, 2.0
# For tensors in which rounding does not average out, the allowed error of the softmax scale or of the amplitude is at
# least PROBE_FACTOR times the rounding model's error. The worst error of a correct variant was 4.4 times the rounding
# model's error. It was measured on 660 small cases with all masks, and with 25 correct variants on each case.
PROBE_FACTOR = 8.0
# Step of a central difference in float64. The error of its slope has two parts: the square of the step times a third
# derivative, and the roundoff divided by the step. The square of the step is 1e-10, the quotient is near 1e-11.
DIFFERENCE_STEP = 1e-5
# Allowed relative error of the slope of a central difference. The error grows with the third derivative, which may be
# large. Far more than 1e-10, the square of the step, is therefore allowed.
DIFFERENCE_ERROR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The allowed error of one quantity and the numbers that it is computed from.

    Unit: absolute, in the units of the quantity.
    """

    # Largest error of the rounding model.
    model: float
    # Largest error of the yardsticks.
    yardstick: float
    factor: float
    # Smallest number that every kernel distinguishes from zero: errors below this number cannot be avoided.
    floor: float

    @property
    def allowed(self) -> float:
        """Largest error that passes."""
        return self.factor * max(self.model, min(self.yardstick, YARDSTICK_CAP * self.model), self.floor)


def allowed_row_sum_error(precision: Precision, terms: int) -> float:
    """Allowed difference between 1 and the sum of a row of ``terms`` attention weights.

    Each weight is rounded, and so is the sum by which the row is normalised.

    Unit: absolute.
    """
    accumulated = min(ROUNDOFF[precision], ROUNDOFF["float32"])
    return FACTOR * (ROUNDOFF[precision] + math.sqrt(terms) * accumulated)


def allowed_join_error(precision: Precision, keys: int, *, partial: Precision) -> float:
    """Allowed error of a mean of at most ``keys`` values between −1 and 1 that may be joined from partial means.

    Without a join, such a mean of 2ᵐ whole numbers has no rounding error. In a join, the partial mean of nᵢ of the n
    values is multiplied by exp(Lᵢ − L), with Lᵢ = ln nᵢ and L = ln n. Lᵢ and L are at most ln n, so the error of each
    is at most ln n roundoffs. The partial mean, and its product with the factor, have an error of one roundoff each.
    Logsumexps and products are kept in float32 (in float64 for float64). The partial means may be stored in the
    precision ``partial``.

    Unit: absolute.
    """
    accumulated = min(ROUNDOFF[precision], ROUNDOFF["float32"])
    rounded = max(accumulated, ROUNDOFF[partial])
    return FACTOR * (rounded + (1 + math.log(max(keys, 1))) * accumulated)


def allowed_slope_error(slope: float) -> float:
    """Allowed difference between a derivative and ``slope``, the slope of a central difference in float64.

    Unit: absolute.
    """
    return DIFFERENCE_ERROR * max(abs(slope), 1.0)


def choose_difference_step(precision: Precision) -> float:
    """Return the step of a central difference of a loss that is computed in the given precision.

    The error of the slope is the square of the step times a third derivative, plus the roundoff over the step. The
    cube root of the roundoff makes both small.
    """
    return DIFFERENCE_STEP if precision == "float64" else math.cbrt(ROUNDOFF[precision])


def allowed_rounded_slope_error(*, rounding: float, step: float, curvature: float) -> float:
    """Allowed difference between a derivative and the slope of a loss that is computed in a coarse precision.

    ``rounding`` is the largest rounding error of the loss at either end of the central difference. ``curvature`` is the
    difference between the slope with ``step`` and the slope with twice this step. It is three times the error that the
    third derivative causes in the slope with ``step``.

    Unit: absolute.
    """
    return rounding / step + curvature


def largest_error(value: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the elements where both tensors are finite; 0 without such elements."""
    difference = (value.double() - expected.double()).abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = difference[torch.isfinite(difference)]
    return float(finite.max()) if finite.numel() else 0.0


def allowed_probe_error(precision: Precision, *, gradient: bool, elements: int, model: float) -> float:
    """Allowed relative error of a softmax scale or amplitude that is fitted over a whole tensor.

    The amplitude is the common factor of all elements. ``model`` is the largest relative error of the fitted scale or
    amplitude in the runs of the rounding model.
    """
    allowed = averaged_rounding_error(precision, gradient=gradient)
    averaged = elements >= PROBE_ELEMENTS and model <= PROBE_AVERAGED * ROUNDOFF[precision]
    return allowed if averaged else max(allowed, PROBE_FACTOR * model)


def averaged_rounding_error(precision: Precision, *, gradient: bool = False) -> float:
    """Allowed relative error of a softmax scale or amplitude that is fitted over a whole tensor.

    It applies to tensors in which the rounding errors of the elements average out.
    """
    return PROBE_ROUNDOFFS[precision][gradient] * ROUNDOFF[precision]


def error_along(value: Tensor, expected: Tensor, direction: Tensor) -> float:
    """Error along a direction g: ⟨value − expected, g⟩ / ⟨g, g⟩, or 0 if g is 0."""
    squared_norm = float((direction * direction).sum())
    return float(((value.double() - expected) * direction).sum()) / squared_norm if squared_norm else 0.0


def count_model_runs(elements: int) -> int:
    """Number of runs of the rounding model: ``MODEL_RUNS``, or two for more than a million elements.

    Two runs are then enough, because each run contains very many rounding errors.
    """
    return MODEL_RUNS if elements <= 1_000_000 else 2


def compute_allowances(
    expected: Mapping[str, Tensor],
    *,
    models: Iterable[Mapping[str, Tensor]],
    yardsticks: Iterable[Mapping[str, Tensor]],
    dtype: Dtype,
    length: int,
) -> dict[str, Allowance]:
    """Compute the allowance of every expected quantity.

    ``models`` holds the quantities of each run of the rounding model. ``yardsticks`` holds the quantities of each path
    of the reference. ``length`` is the number of terms in the longest sum.
    """
    model_errors = _find_largest_errors(expected, models)
    yardstick_errors = _find_largest_errors(expected, yardsticks)
    sequential = dtype in ("float32", "float64") and length > LONG
    factor = FACTOR * (math.sqrt(length / LONG) if sequential else 1.0)
    numbers = torch.finfo(getattr(torch, dtype))
    return {
        name: Allowance(
            model=model_errors[name],
            yardstick=yardstick_errors[name],
            factor=factor,
            floor=_smallest_number(numbers),
        )
        for name in expected
    }


def _smallest_number(numbers: torch.finfo) -> float:
    """Return the smallest positive number that no kernel flushes to zero.

    Kernels may flush subnormal numbers to zero in float32 and in dtypes with the exponent range of float32. In float16,
    no kernel does so; the subnormal numbers of float16 are those below 6e-5.
    """
    return numbers.smallest_normal * (numbers.eps if numbers.dtype == "float16" else 1.0)


def _find_largest_errors(expected: Mapping[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    errors = dict.fromkeys(expected, 0.0)
    for other in others:
        for name, value in other.items():
            if name in errors:
                errors[name] = max(errors[name], largest_error(value, expected[name]))
    return errors
