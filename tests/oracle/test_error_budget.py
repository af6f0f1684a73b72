"""Tests of the error budget, on numbers that can be computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from attnbench.cases import DTYPES, Dtype
from attnbench.interface import Precision
from attnbench.oracle.error_budget import (
    Allowance,
    allowed_probe_error,
    allowed_slope_error,
    averaged_rounding_error,
    compute_allowances,
    count_model_runs,
    error_along,
    largest_error,
)

INF, NAN = math.inf, math.nan
ZEROS = torch.zeros(4, dtype=torch.float64)


def make_output(error: float) -> dict[str, Tensor]:
    """Return an output whose largest error against ``ZEROS`` is ``error``."""
    return {"output": torch.tensor([0.0, -error, error / 2, 0.0], dtype=torch.float64)}


def compute_allowance(
    *, models: list[float], yardsticks: list[float], dtype: Dtype = "float32", length: int = 7
) -> Allowance:
    """Return the allowance of an output that must be 0, given the errors of the rounding model and of yardsticks."""
    return compute_allowances(
        {"output": ZEROS},
        models=[make_output(error) for error in models],
        yardsticks=[make_output(error) for error in yardsticks],
        dtype=dtype,
        length=length,
    )["output"]


@pytest.mark.parametrize(
    ("models", "yardsticks", "expected"),
    [
        # 4 times the larger of the rounding model's error and the yardstick's error.
        ([1.0], [0.5], 4.0),
        ([1.0], [3.0], 12.0),
        # The largest error of several runs of the model, or of several yardsticks, counts.
        ([0.25, 1.0, 0.5], [0.1, 0.2], 4.0),
        ([1.0], [0.5, 2.0], 8.0),
        # A yardstick's error counts as 8 times the model's error at most, because a larger error may be a mistake.
        ([1.0], [8.0], 32.0),
        ([1.0], [100.0], 32.0),
        ([1.0], [INF], 4.0),
        ([1.0], [NAN], 4.0),
        # Without a yardstick, the model's error alone counts.
        ([1.0], [], 4.0),
    ],
)
def test_the_allowance_is_four_times_the_larger_rounding_error(
    models: list[float], yardsticks: list[float], expected: float
) -> None:
    """The allowance is 4 times the larger of the rounding model's and the yardsticks' errors on the same case."""
    assert compute_allowance(models=models, yardsticks=yardsticks).allowed == expected


@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [("float64", 2.0**-1022), ("float32", 2.0**-126), ("bfloat16", 2.0**-126), ("float16", 2.0**-24)],
)
def test_the_floor_is_the_smallest_number_that_kernels_do_not_flush_to_zero(dtype: Dtype, smallest: float) -> None:
    """Even if the rounding model has no error, 4 times the smallest such number is allowed."""
    assert compute_allowance(models=[0.0], yardsticks=[1.0], dtype=dtype).allowed == 4 * smallest


@pytest.mark.parametrize(
    ("dtype", "length", "factor"),
    [
        ("float32", 512, 4.0),
        ("float32", 2048, 8.0),
        ("float64", 511, 4.0),
        ("float64", 8192, 16.0),
        ("float32", 513, 4 * math.sqrt(513 / 512)),
        # Sums of half precision are accumulated in float32: their rounding does not grow with the length.
        ("bfloat16", 8192, 4.0),
        ("float16", 8192, 4.0),
    ],
)
def test_sums_of_more_than_512_terms_allow_more_in_single_and_double(dtype: Dtype, length: int, factor: float) -> None:
    """From 512 terms on, the factor grows with the square root of the number of terms."""
    assert compute_allowance(models=[1.0], yardsticks=[], dtype=dtype, length=length).factor == factor


def test_every_quantity_has_its_own_allowance() -> None:
    """Each quantity of the oracle has an allowance, from the yardsticks and rounding-model runs that have it."""
    expected = {"output": ZEROS, "weights": ZEROS}
    models = [make_output(1.0) | {"weights": ZEROS + 2}, make_output(0.5)]
    yardsticks = [{"weights": ZEROS + 3, "grad.query": ZEROS + 9}, make_output(0.25)]
    found = compute_allowances(expected, models=models, yardsticks=yardsticks, dtype="float32", length=1)
    assert {name: (a.model, a.yardstick, a.allowed) for name, a in found.items()} == {
        "output": (1.0, 0.25, 4.0),
        "weights": (2.0, 3.0, 12.0),
    }


@pytest.mark.parametrize(
    ("value", "reference", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, -2.0], [1.5, 2.0], 4.0),
        # Elements that are NaN or infinite are left out: another comparison covers their positions.
        ([NAN, 2.0], [1.0, 2.25], 0.25),
        ([INF, 2.0], [INF, 2.25], 0.25),
        ([1.0, 2.0], [-INF, 2.25], 0.25),
        ([NAN, INF], [NAN, INF], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_largest_error_is_over_elements_that_are_finite_in_both(
    value: list[float], reference: list[float], expected: float
) -> None:
    """The largest error is an absolute one, and 0 if no element is finite in both tensors."""
    assert largest_error(torch.tensor(value), torch.tensor(reference)) == expected


def test_errors_are_computed_in_float64() -> None:
    """The difference of two bfloat16 numbers is not rounded to bfloat16."""
    assert largest_error(torch.tensor([256.0], dtype=torch.bfloat16), torch.tensor([257.0])) == 1.0
    assert largest_error(torch.tensor([1e-5]), torch.tensor([0.0], dtype=torch.float64)) == pytest.approx(1e-5)


def test_large_cases_run_the_model_twice() -> None:
    """The rounding model runs eight times for up to a million elements, and twice for more."""
    assert (count_model_runs(1), count_model_runs(1_000_000), count_model_runs(1_000_001)) == (8, 8, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_allowance_is_never_zero(dtype: Dtype) -> None:
    """Without any error of a rounding model or a yardstick, the allowance is still greater than 0."""
    assert compute_allowances({"output": ZEROS}, models=[], yardsticks=[], dtype=dtype, length=1)["output"].allowed > 0


# Errors of a whole tensor


def test_the_error_along_a_direction_ignores_orthogonal_errors() -> None:
    """If the error is 0.5 times the direction plus an orthogonal vector, ``error_along`` returns 0.5."""
    direction = torch.tensor([3.0, 0.0, -4.0], dtype=torch.float64)
    orthogonal = torch.tensor([4.0, 7.0, 3.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert error_along(expected + 0.5 * direction + orthogonal, expected, direction) == pytest.approx(0.5)
    assert error_along(expected.bfloat16(), expected, direction) == 0
    assert error_along(expected + orthogonal, expected, 0 * direction) == 0
    assert math.isnan(error_along(expected * NAN, expected, direction))


@pytest.mark.parametrize(
    ("elements", "model", "expected"),
    [
        # From 2000 elements on, rounding averages out: 0.9 roundoffs are allowed, if the model's error is small.
        (2000, 0.0, 0.9),
        (2000, 2.0, 0.9),
        # For fewer elements, or a large error of the rounding model: 8 times that error, but at least 0.9 roundoffs.
        (1999, 0.0, 0.9),
        (1999, 0.5, 4.0),
        (2000, 2.5, 20.0),
    ],
)
def test_rounding_averages_out_in_the_allowed_error_of_a_scale(elements: int, model: float, expected: float) -> None:
    """From 2000 elements on, 0.9 roundoffs are allowed, or more if the rounding model's error is large."""
    u = 2.0**-11
    allowed = allowed_probe_error("float16", gradient=False, elements=elements, model=model * u)
    assert allowed == pytest.approx(expected * u)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16", "bfloat16"])
def test_gradients_are_allowed_more_than_outputs_and_less_than_one_percent(precision: Precision) -> None:
    """In every precision, the averaged rounding error is smaller for outputs than for gradients, and below 1 %."""
    output, gradient = (averaged_rounding_error(precision, gradient=of_gradient) for of_gradient in (False, True))
    assert 0 < output < gradient < 0.01


def test_the_allowed_error_of_a_slope_grows_with_its_size() -> None:
    """The allowed error does not depend on the slope's sign, and is greater than 0 for a slope of 0."""
    assert allowed_slope_error(1e3) > allowed_slope_error(0.0) > 0
    assert allowed_slope_error(-1e3) == allowed_slope_error(1e3)
