"""Tests of the memory layouts in which the checks of the chapter *layouts* pass tensors."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.checks.chapters.layouts import LAYOUTS, UNEQUAL, repeat_part
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.operators.attention_core.suites import PLAIN

if TYPE_CHECKING:
    from conftest import Conformance

TENSORS = [
    torch.arange(30.0).reshape(2, 3, 5),
    torch.arange(30).reshape(2, 3, 5) % 2 == 0,
    torch.arange(15.0).reshape(3, 5),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}, {tensor.dim()}")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_the_memory_and_no_value(layout: str, tensor: torch.Tensor) -> None:
    """A tensor in another layout equals the original; its memory, read with the original's strides, does not."""
    other = LAYOUTS[layout](tensor)
    assert other.equal(tensor)
    assert not other.is_contiguous()
    in_order = other.as_strided(other.shape, tensor.stride(), 0)
    assert not in_order.equal(tensor)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_repeated_part_is_followed_by_gaps(axis: int) -> None:
    """``repeat_part`` makes the stride of ``axis`` 0; the half of the storage that no index reaches is NaN."""
    tensor = TENSORS[0]
    other = repeat_part(tensor, axis, 1)
    assert other.equal(tensor.narrow(axis, 1, 1).expand(tensor.shape))
    assert other.stride(axis) == 0
    whole = other.as_strided((other.untyped_storage().nbytes() // 4,), (1,), 0)
    assert int(whole.isnan().sum()) == whole.numel() // 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_torch_multiplies_every_layout_correctly(dtype: torch.dtype) -> None:
    """``F.linear`` gives the same numbers for a tensor in any layout as for a contiguous one."""
    tensor = (torch.arange(4 * 33 * 21) % 7).to(dtype).reshape(4, 33, 21)
    weight = (torch.arange(21 * 21) % 3).to(dtype).reshape(21, 21)
    for layout in LAYOUTS.values():
        assert torch.nn.functional.linear(layout(tensor), weight).equal(torch.nn.functional.linear(tensor, weight))


def test_gaps_are_nan_in_the_dtypes_in_which_torch_reads_no_gap() -> None:
    """Gaps between rows are NaN in float32 and float64, because NaN shows even after multiplication by 0."""
    for dtype in (torch.float32, torch.float64):
        sliced = LAYOUTS["sliced_inputs"](torch.ones(3, 5, dtype=dtype))
        assert sliced.as_strided((3,), (1,), 0).isnan().all()


def test_keys_and_values_get_different_strides() -> None:
    """Their strides along tokens and features differ, and their values stay."""
    key, value = (UNEQUAL[name](TENSORS[0]) for name in ("key", "value"))
    assert key.equal(value)
    assert key.stride(-1) != value.stride(-1)
    assert key.stride(-2) != value.stride(-2)


class _StridesOfTheKeys(CoreFormula):
    """Stores values as keys are stored, and loses the order if they are stored otherwise."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        if (key.stride(-1) == 1) != (value.stride(-1) == 1):
            value = value.flip(-1)
        return super().forward(query, key, value, **named)


def test_an_implementation_that_expects_equal_strides_fails(conformance: "Conformance") -> None:
    """Values that are read with the strides of the keys fail, though one layout for all tensors is read rightly."""
    one = Case(operator="attention_core", problem=replace(PLAIN, keys=7), mode="inference")
    wrong = ModuleImplementation(_StridesOfTheKeys, operator="attention_core")
    assert conformance.finding(wrong, one, "strided_inputs").status == "failed"
    right = ModuleImplementation(CoreFormula, operator="attention_core")
    assert conformance.finding(right, one, "strided_inputs").status == "passed"
