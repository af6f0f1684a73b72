"""Error measures and the error budget: the one home of every tolerance.

An implementation may be wrong by ``FACTOR`` times the larger of two costs of rounding on this very case: the error of
the yardsticks (the reference's own paths in the case's dtype) and that of the rounding model (the oracle's formula in
float64 with relative noise of one roundoff at every stage). The model keeps the budget from collapsing where the
yardsticks happen to be exact; the yardsticks keep it honest where real kernels accumulate in sequence. With factor 4
no correct variant failed in 353,520 assertions; the worst needed 3.37. See docs/conformance.md.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.cases import Dtype
from attnbench.interface import Precision

__all__ = ["FACTOR", "MODEL_RUNS", "ROUNDOFF", "Allowance", "allowances", "largest_error", "model_runs"]

# Half a unit in the last place of 1, by dtype. For float64 the oracle is no more precise than what it judges: both
# round, hence twice 2^-53.
ROUNDOFF: dict[Precision, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
# Times the cost of rounding that an implementation may be off; 3 already sufficed for every correct variant measured.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How far one quantity may be off.

    Unit: absolute, in the units of the quantity.
    """

    model: float
    yardstick: float
    factor: float
    # Smallest number of the dtype: no result can be finer.
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


def largest_error(value: Tensor, truth: Tensor) -> float:
    """Largest absolute difference where both are finite; 0 where nothing is."""
    difference = (value.double() - truth.double()).abs()
    finite = difference[torch.isfinite(difference)]
    return float(finite.max()) if finite.numel() else 0.0


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
            floor=numbers.smallest_normal * numbers.eps,
        )
        for name in truth
    }


def _largest_errors(truth: Mapping[str, Tensor], others: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    errors = dict.fromkeys(truth, 0.0)
    for other in others:
        for name, value in other.items():
            if name in errors:
                errors[name] = max(errors[name], largest_error(value, truth[name]))
    return errors
