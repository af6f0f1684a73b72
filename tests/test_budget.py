"""Tests of how far an implementation may be off, on numbers that can be worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from attnbench.cases import DTYPES, Dtype
from attnbench.interface import Precision
from attnbench.oracle.error_budget import Allowance, allowed_probe_error, allowed_slope_error, averaged_rounding_error, compute_allowances, count_model_runs, error_along, largest_error

INF, NAN = math.inf, math.nan
ZEROS = torch.zeros(4, dtype=torch.float64)


def off(error: float) -> dict[str, Tensor]:
    """Output whose largest error against ``ZEROS`` is ``error``."""
    return {"output": torch.tensor([0.0, -error, error / 2, 0.0], dtype=torch.float64)}


def allowed(*, models: list[float], yardsticks: list[float], dtype: Dtype = "float32", length: int = 7) -> Allowance:
    """Allowance of an output that is 0, from the errors of models and yardsticks."""
    return compute_allowances(
        {"output": ZEROS},
        models=[off(error) for error in models],
        yardsticks=[off(error) for error in yardsticks],
        dtype=dtype,
        length=length,
    )["output"]


@pytest.mark.parametrize(
    ("models", "yardsticks", "expected"),
    [
        # 4 times the larger of the two.
        ([1.0], [0.5], 4.0),
        ([1.0], [3.0], 12.0),
        # The largest of several counts.
        ([0.25, 1.0, 0.5], [0.1, 0.2], 4.0),
        ([1.0], [0.5, 2.0], 8.0),
        # A yardstick counts no more than 8 times the model: it is itself suspect.
        ([1.0], [8.0], 32.0),
        ([1.0], [100.0], 32.0),
        ([1.0], [INF], 4.0),
        ([1.0], [NAN], 4.0),
        # Without a yardstick, the model alone.
        ([1.0], [], 4.0),
    ],
)
def test_four_times_the_larger_cost_of_rounding(models: list[float], yardsticks: list[float], expected: float) -> None:
    """What is allowed comes from the model and the yardsticks on this very case."""
    assert allowed(models=models, yardsticks=yardsticks).allowed == expected


@pytest.mark.parametrize(
    ("dtype", "smallest"),
    [("float64", 2.0**-1022), ("float32", 2.0**-126), ("bfloat16", 2.0**-126), ("float16", 2.0**-24)],
)
def test_the_floor_is_the_smallest_number_that_is_computed_with(dtype: Dtype, smallest: float) -> None:
    """Where rounding costs nothing, a few of the smallest numbers that no kernel flushes to zero are still allowed."""
    assert allowed(models=[0.0], yardsticks=[1.0], dtype=dtype).allowed == 4 * smallest


@pytest.mark.parametrize(
    ("dtype", "length", "factor"),
    [
        ("float32", 512, 4.0),
        ("float32", 2048, 8.0),
        ("float64", 511, 4.0),
        ("float64", 8192, 16.0),
        ("float32", 513, 4 * math.sqrt(513 / 512)),
        # A sum in half precision is kept in float32 and grows with nothing.
        ("bfloat16", 8192, 4.0),
        ("float16", 8192, 4.0),
    ],
)
def test_sums_of_more_than_512_terms_allow_more_in_single_and_double(dtype: Dtype, length: int, factor: float) -> None:
    """The factor grows with the root of the length, from 512 on."""
    assert allowed(models=[1.0], yardsticks=[], dtype=dtype, length=length).factor == factor


def test_every_quantity_has_its_own_allowance() -> None:
    """What only one path gives counts where it is given, and what the oracle has not is passed over."""
    truth = {"output": ZEROS, "weights": ZEROS}
    models = [off(1.0) | {"weights": ZEROS + 2}, off(0.5)]
    yardsticks = [{"weights": ZEROS + 3, "grad.query": ZEROS + 9}, off(0.25)]
    found = compute_allowances(truth, models=models, yardsticks=yardsticks, dtype="float32", length=1)
    assert {name: (a.model, a.yardstick, a.allowed) for name, a in found.items()} == {
        "output": (1.0, 0.25, 4.0),
        "weights": (2.0, 3.0, 12.0),
    }


def test_an_allowance_says_where_it_comes_from() -> None:
    """The words name the factor and both errors."""
    assert allowed(models=[0.000125], yardsticks=[0.5], length=2048).describe_origin() == (
        "8 × the larger of the rounding model's error 0.000125 and the reference's own 0.5"
    )


@pytest.mark.parametrize(
    ("value", "truth", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, -2.0], [1.5, 2.0], 4.0),
        # A NaN or an infinity is a fault of another kind: the pattern is judged apart.
        ([NAN, 2.0], [1.0, 2.25], 0.25),
        ([INF, 2.0], [INF, 2.25], 0.25),
        ([1.0, 2.0], [-INF, 2.25], 0.25),
        ([NAN, INF], [NAN, INF], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_largest_error_is_taken_where_both_are_finite(
    value: list[float], truth: list[float], expected: float
) -> None:
    """It is absolute, and 0 where nothing is finite."""
    assert largest_error(torch.tensor(value), torch.tensor(truth)) == expected


def test_errors_are_taken_in_double_precision() -> None:
    """The difference of two numbers of a narrow type is not rounded to that type."""
    assert largest_error(torch.tensor([256.0], dtype=torch.bfloat16), torch.tensor([257.0])) == 1.0
    assert largest_error(torch.tensor([1e-5]), torch.tensor([0.0], dtype=torch.float64)) == pytest.approx(1e-5)


def test_large_cases_run_the_model_twice() -> None:
    """Eight runs up to a million elements; beyond, one run samples enough."""
    assert (count_model_runs(1), count_model_runs(1_000_000), count_model_runs(1_000_001)) == (8, 8, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_allowed_is_never_nothing(dtype: Dtype) -> None:
    """Even without any error to go by, a result may be off by the last digit of 0."""
    assert compute_allowances({"output": ZEROS}, models=[], yardsticks=[], dtype=dtype, length=1)["output"].allowed > 0


# A tensor as a whole


def test_how_far_a_value_is_off_along_a_direction() -> None:
    """What is off by half a direction, and by anything across it, is off by 0.5 along it."""
    direction = torch.tensor([3.0, 0.0, -4.0], dtype=torch.float64)
    across = torch.tensor([4.0, 7.0, 3.0], dtype=torch.float64)
    truth = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert error_along(truth + 0.5 * direction + across, truth, direction) == pytest.approx(0.5)
    assert error_along(truth.bfloat16(), truth, direction) == 0
    assert error_along(truth + across, truth, 0 * direction) == 0
    assert math.isnan(error_along(truth * NAN, truth, direction))


@pytest.mark.parametrize(
    ("elements", "model", "expected"),
    [
        # 0.9 roundoffs where rounding averages out, whatever the model's few runs came to.
        (2000, 0.0, 0.9),
        (2000, 2.0, 0.9),
        # Of few elements, or badly conditioned ones, 8 times the model; never less than that.
        (1999, 0.0, 0.9),
        (1999, 0.5, 4.0),
        (2000, 2.5, 20.0),
    ],
)
def test_a_scale_may_be_off_by_less_than_a_roundoff(elements: int, model: float, expected: float) -> None:
    """All elements together show what rounding hides in each of them."""
    u = 2.0**-11
    allowed = allowed_probe_error("float16", gradient=False, elements=elements, model=model * u)
    assert allowed == pytest.approx(expected * u)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "float16", "bfloat16"])
def test_gradients_may_be_off_by_more_and_one_percent_is_seen(precision: Precision) -> None:
    """In every precision the scale of an output is told to within 1 %, and the amplitude of a gradient."""
    output, gradient = (averaged_rounding_error(precision, gradient=of_gradient) for of_gradient in (False, True))
    assert 0 < output < gradient < 0.01


def test_a_difference_is_as_good_as_its_step() -> None:
    """A slope by differences is allowed a millionth of its size, and of 1 where it is small."""
    assert allowed_slope_error(1e3) > allowed_slope_error(0.0) > 0
    assert allowed_slope_error(-1e3) == allowed_slope_error(1e3)
