"""Tests of the distance of floating-point numbers in units in the last place."""

import math

import pytest
import torch

from attninvariance.ulps import count_ulps, find_difference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.5, 0.0])
def test_the_next_number_is_one_ulp_away(dtype: torch.dtype, start: float) -> None:
    """From a number to the next larger one is 1 ulp, and to the one after it 2, in each dtype."""
    if dtype in (torch.float16, torch.bfloat16):
        bits = torch.tensor([start], dtype=dtype).view(torch.int16)
        steps = [(bits + (count if start >= 0 else -count)).view(dtype) for count in (1, 2)]
    else:
        one = torch.tensor([start], dtype=dtype)
        first = torch.nextafter(one, torch.full_like(one, math.inf))
        steps = [first, torch.nextafter(first, torch.full_like(one, math.inf))]
    base = torch.tensor([start], dtype=dtype)
    assert [count_ulps(base, step) for step in steps] == [1, 2]
    assert [count_ulps(step, base) for step in steps] == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_numbers_of_unequal_sign_are_apart(dtype: torch.dtype) -> None:
    """0 and −0 are one step apart, and large numbers of unequal sign do not overflow the distance."""
    zero, huge = torch.zeros(1, dtype=dtype), torch.tensor([1e30], dtype=dtype)
    tiny = torch.nextafter(zero, zero + 1)
    assert count_ulps(zero, -zero) == 1
    assert count_ulps(tiny, -tiny) == 3
    assert count_ulps(huge, -huge) > 2**30


def test_equal_numbers_have_no_distance() -> None:
    """Equal tensors, NaN in the same places, and empty tensors have the distance 0; NaN and a number do not."""
    numbers = torch.tensor([1.0, math.nan, math.inf])
    assert count_ulps(numbers, numbers.clone()) == 0
    assert find_difference(numbers, numbers.clone()) == 0
    assert count_ulps(numbers[:0], numbers[:0]) == 0
    assert count_ulps(numbers, torch.ones(3)) > 0


def test_tensors_of_other_shapes_are_refused() -> None:
    """A tensor of another shape is refused, with both shapes."""
    with pytest.raises(ValueError, match=r"other must be torch.float32 \(2,\), got torch.float32 \(3,\)"):
        count_ulps(torch.ones(2), torch.ones(3))
