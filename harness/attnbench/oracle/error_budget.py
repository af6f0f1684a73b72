"""Error measures and the error budget: the one home of every tolerance.

An implementation may be wrong by ``FACTOR`` times the larger of two costs of rounding on this very case: the error of
the yardsticks (the reference's own paths in the case's dtype) and that of the rounding model (the oracle's formula in
float64 with relative noise of one roundoff at every stage). The model keeps the budget from collapsing where the
yardsticks happen to be exact; the yardsticks keep it honest where real kernels accumulate in sequence. How near
correct variants come to what factor 4 allows is measured by ``studies.variants``; docs/conformance.md has the figures.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.cases import Dtype
from attnbench.interface import Precision

__all__ = [
    "DIFFERENCE_STEP",
    "FACTOR",
    "MODEL_RUNS",
    "ROUNDOFF",
    "SCALE_STEP",
    "TWO_RUNS",
    "Allowance",
    "allowances",
    "allowed_of_a_difference",
    "allowed_of_a_probe",
    "allowed_of_a_sum",
    "along",
    "largest_error",
    "model_runs",
    "rounding_of_a_whole",
]

# Half a unit in the last place of 1, by dtype. For float64 the oracle is no more precise than what it judges: both
# round, hence twice 2^-53.
ROUNDOFF: dict[Precision, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
# Times the cost of rounding that an implementation may be off.
FACTOR = 4.0
# Runs of the rounding model whose largest error counts.
MODEL_RUNS = 8
# A yardstick further off than this many times the model is itself suspect and counts no more than that.
YARDSTICK_CAP = 8.0
# Beyond this many keys the error of sequential sums in float32 and float64 grows with the root of the length: block-1
# online softmax measured 2.3 times the cost at 256 keys, 4.4 at 1024, 9.4 at 4096.
LONG = 512
# Two runs of one implementation may each be off.
TWO_RUNS = 2.0
# Relative step of the finite difference by which the oracle tells how it depends on the softmax scale.
SCALE_STEP = 1e-4
# Roundoffs that the softmax scale or the amplitude seen over a whole tensor may be off, for outputs and for gradients:
# 4 times the worst of all correct variants and built-in implementations on a CPU, at 6 seeds of 4 × 33 × 47 tokens.
# Rounding averages out there; what is left is how the scale itself was rounded. TF32 was not measured and has float16's
# roundoff.
PROBE_ROUNDOFFS: dict[Precision, tuple[float, float]] = {
    "float64": (2.5, 3.2),
    "float32": (5.5, 8.3),
    "tf32": (0.9, 1.7),
    "float16": (0.9, 1.7),
    "bfloat16": (1.05, 1.85),
}
# Elements over which rounding averages out, where the rounding model is within so many roundoffs too (a run's worst is
# 1.6 where it does). Elsewhere its runs times a factor say what is allowed: 4.4 was the worst seen on 660 small cases
# with all masks, 25 correct variants each.
PROBE_ELEMENTS, PROBE_AVERAGED = 2000, 2.0
PROBE_FACTOR = 8.0
# Step of a central difference in float64, and its relative error: the step's square and roundoff over the step are both
# near 1e-10; the third derivatives that the square multiplies may be large.
DIFFERENCE_STEP = 1e-5
DIFFERENCE_ERROR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How far one quantity may be off.

    Unit: absolute, in the units of the quantity.
    """

    model: float
    yardstick: float
    factor: float
    # Smallest number that is told from zero: no result can be finer.
    floor: float

    @property
    def allowed(self) -> float:
        """Largest error that passes."""
        return self.factor * max(self.model, min(self.yardstick, YARDSTICK_CAP * self.model), self.floor)

    def origin(self) -> str:
        """Where the number comes from, in words."""
        return (
            f"{self.factor:.3g} × the larger of the rounding model's error {self.model:.3g} "
            f"and the reference's own {self.yardstick:.3g}"
        )


def allowed_of_a_sum(precision: Precision, terms: int) -> float:
    """How far a row of weights may be from summing to one: each is rounded by itself, and so is their normaliser.

    Unit: absolute.
    """
    accumulated = min(ROUNDOFF[precision], ROUNDOFF["float32"])
    return FACTOR * (ROUNDOFF[precision] + math.sqrt(terms) * accumulated)


def allowed_of_a_difference(slope: float) -> float:
    """How far a derivative may be from the slope that a central difference in float64 shows.

    Unit: absolute.
    """
    return DIFFERENCE_ERROR * max(abs(slope), 1.0)


def largest_error(value: Tensor, truth: Tensor) -> float:
    """Largest absolute difference where both are finite; 0 where nothing is."""
    difference = (value.double() - truth.double()).abs()
    largest = float(difference.max()) if difference.numel() else 0.0
    if math.isfinite(largest):
        return largest
    finite = difference[torch.isfinite(difference)]
    return float(finite.max()) if finite.numel() else 0.0


def allowed_of_a_probe(precision: Precision, *, gradient: bool, elements: int, model: float) -> float:
    """How far the scale or the amplitude seen over a whole tensor may be off, relatively.

    ``model`` is how far the rounding model's runs are.
    """
    allowed = rounding_of_a_whole(precision, gradient=gradient)
    averaged = elements >= PROBE_ELEMENTS and model <= PROBE_AVERAGED * ROUNDOFF[precision]
    return allowed if averaged else max(allowed, PROBE_FACTOR * model)


def rounding_of_a_whole(precision: Precision, *, gradient: bool = False) -> float:
    """What rounding leaves of the scale or the amplitude of a tensor where it averages out, relatively."""
    return PROBE_ROUNDOFFS[precision][gradient] * ROUNDOFF[precision]


def along(value: Tensor, truth: Tensor, direction: Tensor) -> float:
    """How far a value is off along a direction, as a multiple of it; 0 where there is no direction."""
    length = float((direction * direction).sum())
    return float(((value.double() - truth) * direction).sum()) / length if length else 0.0


def model_runs(elements: int) -> int:
    """Runs of the rounding model: fewer where a single one already samples more than a million elements."""
    return MODEL_RUNS if elements <= 1_000_000 else 2


def allowances(
    truth: Mapping[str, Tensor],
    *,
    models: Iterable[Mapping[str, Tensor]],
    yardsticks: Iterable[Mapping[str, Tensor]],
    dtype: Dtype,
    length: int,
) -> dict[str, Allowance]:
    """Allowance of every quantity of the oracle.

    ``models`` are the quantities from runs of the rounding model, ``yardsticks`` those of the reference's paths;
    ``length`` is the number of terms in the longest sum.
    """
    model_errors = _largest_errors(truth, models)
    yardstick_errors = _largest_errors(truth, yardsticks)
    sequential = dtype in ("float32", "float64") and length > LONG
    factor = FACTOR * (math.sqrt(length / LONG) if sequential else 1.0)
    numbers = torch.finfo(getattr(torch, dtype))
    return {
        name: Allowance(
            model=model_errors[name],
            yardstick=yardstick_errors[name],
            factor=factor,
            floor=_floor(numbers),
        )
        for name in truth
    }


def _floor(numbers: torch.finfo) -> float:
    """Smallest number that every kernel computes with; float32's subnormals, and those as wide, may be flushed to zero.

    Those of float16 begin at 6e-5, and are ordinary numbers.
    """
    return numbers.smallest_normal * (numbers.eps if numbers.dtype == "float16" else 1.0)


def _largest_errors(truth: Mapping[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    errors = dict.fromkeys(truth, 0.0)
    for other in others:
        for name, value in other.items():
            if name in errors:
                errors[name] = max(errors[name], largest_error(value, truth[name]))
    return errors
