"""Tensors in a file: what goes in comes out, and nothing else goes in."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.oracle import tensor_file

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 5), (2, 3, 5)], ids=str)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Of any dtype and shape, without their graph; NaN and infinity too."""
    value = (100 * torch.randn(shape)).to(dtype)
    if dtype.is_floating_point and value.numel() > 2:
        value.flatten()[:2] = torch.tensor([torch.nan, -torch.inf])
    tensor_file.write(tmp_path / "x", [value])
    (again,) = tensor_file.read(tmp_path / "x")
    assert (again.dtype, again.shape, again.requires_grad) == (dtype, value.shape, False)
    torch.testing.assert_close(again, value, rtol=0, atol=0, equal_nan=True)


def test_containers_come_back_as_they_were(tmp_path: Path) -> None:
    """Nested dicts and lists, texts, numbers and None; one tensor in two places is one again, and not contiguous is."""
    one = torch.randn(3, 4, requires_grad=True)
    value = {"a": [one, {"b": one, "tensor": None}], "dict": [True, 2, float("inf"), "x\ny"], "c": one.mT}
    tensor_file.write(tmp_path / "x", value)
    again = tensor_file.read(tmp_path / "x")
    assert again["a"][0] is again["a"][1]["b"]
    assert again["a"][1]["tensor"] is None
    assert again["dict"] == value["dict"]
    assert torch.equal(again["c"], one.mT)


def test_a_file_is_replaced(tmp_path: Path) -> None:
    """What was stored under the name before is gone."""
    tensor_file.write(tmp_path / "x", [torch.zeros(1000)])
    tensor_file.write(tmp_path / "x", [1])
    assert tensor_file.read(tmp_path / "x") == [1]


class Odd(torch.Tensor):
    """A tensor that may say anything of itself."""


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.eye(2).to_sparse(), "a sparse_coo tensor on cpu cannot be evaluated"),
        (torch.empty(2, device="meta"), "a strided tensor on meta cannot be evaluated"),
        (torch.ones(2).as_subclass(Odd), "a Odd cannot be evaluated: return a plain Tensor, not a subclass"),
        (object(), "object cannot be stored"),
        ({"x": [print]}, "builtin_function_or_method cannot be stored"),
    ],
)
def test_what_is_no_plain_value_is_refused(tmp_path: Path, value: Any, fault: str) -> None:
    """Neither a file nor a copy holds anything but numbers and what names them."""
    with pytest.raises(TypeError, match=fault):
        tensor_file.write(tmp_path / "x", value)
    with pytest.raises(TypeError, match=fault):
        tensor_file.copy_value(value)
    assert not (tmp_path / "x").exists()


def test_a_copy_is_not_changed_with_what_it_was_taken_of() -> None:
    """What is written later, in place, does not reach it."""
    value = torch.zeros(2)
    copy = tensor_file.copy_value([value, {"x": value}])
    value += 1
    assert copy[0].tolist() == [0, 0]
    assert copy[0] is copy[1]["x"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no line",
        b"{}\n",
        b'{"value": {"tensor": 0}, "tensors": [["float32", [1000000]]]}\n',
        b'{"value": {"tensor": 0}, "tensors": [["save", [1]]]}\n',
        b'{"value": {"tensor": 3}, "tensors": []}\n',
    ],
)
def test_a_file_that_lies_is_an_exception(tmp_path: Path, text: bytes) -> None:
    """Whoever wrote the file, reading it runs nothing, and ends with a value or an exception."""
    (tmp_path / "x").write_bytes(text)
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, AttributeError)):
        tensor_file.read(tmp_path / "x")
