"""Tests of ``list_kernels``, which names the operators and kernels that compute or copy numbers in a call."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.measurement import kernel_trace as module
from attnbench.measurement.kernel_trace import list_kernels
from attnbench.measurement.profiler_trace import trace_call

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
COMPOSED = "aten::_scaled_dot_product_attention_math"


def list_names(call: object, *, without_calls: bool = True) -> list[str]:
    """List the names of the kernels that ``call`` runs, by default without the count (" ×3") after each name."""
    call()  # type: ignore[operator]
    found = list_kernels(trace_call(call, "cpu"))  # type: ignore[arg-type]
    return [name.partition(" ×")[0] for name in found] if without_calls else list(found)


def attend(backend: SDPBackend) -> None:
    """Compute ``scaled_dot_product_attention`` of random tensors with one backend."""
    q = torch.randn(2, 4, 64, 16)
    with sdpa_kernel(backend):
        scaled_dot_product_attention(q, q, q)


def test_the_fused_kernel_and_the_fallback_have_different_names() -> None:
    """The names tell whether the flash backend or the math backend of SDPA ran."""
    assert FUSED in list_names(lambda: attend(SDPBackend.FLASH_ATTENTION))
    fallback = list_names(lambda: attend(SDPBackend.MATH))
    assert COMPOSED in fallback
    assert "aten::bmm" in fallback
    assert FUSED not in fallback


def test_the_fused_backward_is_listed_with_the_copy_that_it_makes() -> None:
    """A contiguous cotangent, whose strides differ from the output's, is copied; the copy is listed as a kernel."""
    leaves = [torch.randn(2, 64, 4, 16).transpose(1, 2).requires_grad_() for _ in range(3)]

    def step(cotangent: torch.Tensor) -> None:
        torch.autograd.grad(scaled_dot_product_attention(*leaves), leaves, cotangent)

    ready = torch.randn(2, 64, 4, 16).transpose(1, 2)
    assert list_names(lambda: step(ready)).count(f"{FUSED}_backward") == 1
    assert "aten::copy_" not in list_names(lambda: step(ready))
    assert {f"{FUSED}_backward", "aten::copy_"} <= set(list_names(lambda: step(ready.contiguous())))


def test_an_operator_that_calls_others_for_its_work_is_left_out() -> None:
    """A linear layer is listed as ``aten::addmm`` alone: the copy of the bias inside addmm is not listed."""
    x, weight, bias = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    assert list_names(lambda: linear(x, weight, bias)) == ["aten::addmm"]


def test_views_and_empty_tensors_are_not_listed() -> None:
    """Operators that only make a view, or allocate and fill a tensor, are not listed; a copy is."""
    x = torch.randn(8, 4, 2)
    assert list_names(lambda: x.transpose(0, 1)[1:].unsqueeze(0).expand(2, 3, 8, 2).permute(3, 1, 0, 2)) == []
    assert list_names(lambda: torch.empty_like(x).zero_()) == []
    assert list_names(lambda: x.transpose(0, 2).contiguous()) == ["aten::copy_"]


def test_the_longest_comes_first_with_the_number_of_its_calls() -> None:
    """Names are sorted by total time: three large products come before one small sum."""
    x, y = torch.randn(300, 300), torch.randn(3)

    def call() -> None:
        for _ in range(3):
            torch.mm(x, x)
        torch.add(y, y)

    assert list_names(call, without_calls=False) == ["aten::mm ×3", "aten::add"]


def test_very_many_events_are_not_nested_by_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond ``MOST_NESTED`` events, names are listed without knowing which event called which.

    Nesting a million events takes half a minute. Kernels and the chosen backend are listed all the same.
    """
    monkeypatch.setattr(module, "MOST_NESTED", 10)
    found = list_names(lambda: attend(SDPBackend.MATH))
    assert {COMPOSED, "aten::bmm", "aten::_softmax"} <= set(found)
    assert "aten::transpose" not in found
