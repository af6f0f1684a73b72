"""Tests of the names of what ran: the way that was taken, and no name that did no work."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.measurement import kernel_trace as module
from attnbench.measurement.kernel_trace import list_kernels
from attnbench.measurement.profiler_trace import trace_call

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
COMPOSED = "aten::_scaled_dot_product_attention_math"


def names(call: object, *, without_calls: bool = True) -> list[str]:
    """Names of what a call runs, without the numbers of calls unless these are wanted."""
    call()  # type: ignore[operator]
    found = list_kernels(trace_call(call, "cpu"))  # type: ignore[arg-type]
    return [name.partition(" ×")[0] for name in found] if without_calls else list(found)


def attention(backend: SDPBackend) -> None:
    """Attention held to a backend."""
    q = torch.randn(2, 4, 64, 16)
    with sdpa_kernel(backend):
        scaled_dot_product_attention(q, q, q)


def test_the_fused_kernel_and_the_composed_path_have_names_of_their_own() -> None:
    """A fall-back is read from the names."""
    assert FUSED in names(lambda: attention(SDPBackend.FLASH_ATTENTION))
    fallen_back = names(lambda: attention(SDPBackend.MATH))
    assert COMPOSED in fallen_back
    assert "aten::bmm" in fallen_back
    assert FUSED not in fallen_back


def test_the_fused_backward_has_a_name_beside_the_copy_that_it_makes() -> None:
    """A cotangent in another layout is copied inside the kernel's own operator, and both are told."""
    leaves = [torch.randn(2, 64, 4, 16).transpose(1, 2).requires_grad_() for _ in range(3)]

    def step(cotangent: torch.Tensor) -> None:
        torch.autograd.grad(scaled_dot_product_attention(*leaves), leaves, cotangent)

    ready = torch.randn(2, 64, 4, 16).transpose(1, 2)
    assert names(lambda: step(ready)).count(f"{FUSED}_backward") == 1
    assert "aten::copy_" not in names(lambda: step(ready))
    assert {f"{FUSED}_backward", "aten::copy_"} <= set(names(lambda: step(ready.contiguous())))


def test_an_operator_that_others_do_the_work_of_is_left_out() -> None:
    """A linear layer is one product; the copy of its bias into the result is part of it."""
    x, weight, bias = torch.randn(64, 32), torch.randn(16, 32), torch.randn(16)
    assert names(lambda: linear(x, weight, bias)) == ["aten::addmm"]


def test_views_and_empty_tensors_are_no_work() -> None:
    """What moves no number has no name here."""
    x = torch.randn(8, 4, 2)
    assert names(lambda: x.transpose(0, 1)[1:].unsqueeze(0).expand(2, 3, 8, 2).permute(3, 1, 0, 2)) == []
    assert names(lambda: torch.empty_like(x).zero_()) == []
    assert names(lambda: x.transpose(0, 2).contiguous()) == ["aten::copy_"]


def test_the_longest_comes_first_with_the_number_of_its_calls() -> None:
    """Three large products, and one small sum."""
    x, y = torch.randn(300, 300), torch.randn(3)

    def call() -> None:
        for _ in range(3):
            torch.mm(x, x)
        torch.add(y, y)

    assert names(call, without_calls=False) == ["aten::mm ×3", "aten::add"]


def test_of_very_many_events_names_are_told_without_asking_who_made_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over tokens costs no half minute; names of work and of the way that was taken remain."""
    monkeypatch.setattr(module, "MOST_NESTED", 10)
    found = names(lambda: attention(SDPBackend.MATH))
    assert {COMPOSED, "aten::bmm", "aten::_softmax"} <= set(found)
    assert "aten::transpose" not in found
