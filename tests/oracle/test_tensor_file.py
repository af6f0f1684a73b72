"""Tests of the file format for tensors: tensors and plain containers are restored exactly, other values refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.oracle import tensor_file

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 5), (2, 3, 5)], ids=str)
def test_tensors_are_restored_bit_for_bit(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Tensors of any dtype and shape, also with NaN and infinity, are restored; ``requires_grad`` is not."""
    value = (100 * torch.randn(shape)).to(dtype)
    if dtype.is_floating_point and value.numel() > 2:
        value.flatten()[:2] = torch.tensor([torch.nan, -torch.inf])
    tensor_file.write(tmp_path / "x", [value])
    (again,) = tensor_file.read(tmp_path / "x")
    assert (again.dtype, again.shape, again.requires_grad) == (dtype, value.shape, False)
    torch.testing.assert_close(again, value, rtol=0, atol=0, equal_nan=True)


def test_containers_are_restored(tmp_path: Path) -> None:
    """Nested dicts and lists of strings, numbers, None and tensors are restored.

    A tensor that occurs twice is still one object.
    """
    one = torch.randn(3, 4, requires_grad=True)
    value = {"a": [one, {"b": one, "tensor": None}], "dict": [True, 2, float("inf"), "x\ny"], "c": one.mT}
    tensor_file.write(tmp_path / "x", value)
    again = tensor_file.read(tmp_path / "x")
    assert again["a"][0] is again["a"][1]["b"]
    assert again["a"][1]["tensor"] is None
    assert again["dict"] == value["dict"]
    assert torch.equal(again["c"], one.mT)


def test_writing_replaces_the_file(tmp_path: Path) -> None:
    """If a file is written twice, reading gives the second value."""
    tensor_file.write(tmp_path / "x", [torch.zeros(1000)])
    tensor_file.write(tmp_path / "x", [1])
    assert tensor_file.read(tmp_path / "x") == [1]


class Subclass(torch.Tensor):
    """Tensor subclass, which is refused because its methods could return anything."""


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.eye(2).to_sparse(), "a sparse_coo tensor on cpu cannot be evaluated"),
        (torch.empty(2, device="meta"), "a strided tensor on meta cannot be evaluated"),
        (torch.ones(2).as_subclass(Subclass), "a Subclass cannot be evaluated: return a plain Tensor, not a subclass"),
        (object(), "object cannot be stored"),
        ({"x": [print]}, "builtin_function_or_method cannot be stored"),
    ],
)
def test_values_that_are_not_plain_are_refused(tmp_path: Path, value: Any, fault: str) -> None:
    """``write`` and ``copy_value`` accept only plain containers, plain values and dense CPU tensors."""
    with pytest.raises(TypeError, match=fault):
        tensor_file.write(tmp_path / "x", value)
    with pytest.raises(TypeError, match=fault):
        tensor_file.copy_value(value)
    assert not (tmp_path / "x").exists()


def test_a_copy_does_not_change_with_the_original() -> None:
    """An in-place change of a tensor after ``copy_value`` does not change the copy."""
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
def test_reading_a_malformed_file_raises(tmp_path: Path, text: bytes) -> None:
    """Reading a malformed file raises an exception, and never runs code from the file."""
    (tmp_path / "x").write_bytes(text)
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, AttributeError)):
        tensor_file.read(tmp_path / "x")
