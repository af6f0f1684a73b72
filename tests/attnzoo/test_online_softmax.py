"""Tests of online softmax: the result does not depend on the tile size, and memory grows linearly with the length."""

import pytest
import torch
from torch import Tensor

from attnzoo.online_softmax import online_softmax


def draw_qkv(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw queries, keys and values of two sequences and three heads; all three tensors require gradients."""
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, 4, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("tile", [1, 3, 7, 20, 64])
@pytest.mark.parametrize("how", ["none", "causal", "keep", "added", "one for all keys", "nothing seen"])
def test_tiles_of_any_size_give_attention_and_its_gradients(tile: int, how: str) -> None:
    """For any tile size, output and gradients agree with softmax attention on whole matrices.

    The gradients are those of q, k, v and, if the mask is additive, of the mask.
    """
    q, k, v = draw_qkv(20)
    generator = torch.Generator().manual_seed(1)
    keep = torch.rand(2, 1, 20, 20, generator=generator) < 0.6
    keep[:, :, 4] = how != "nothing seen"
    mask: Tensor | None = None
    if how in ("keep", "nothing seen"):
        mask = keep
    elif how == "added":
        mask = torch.randn(20, 20, generator=generator).double().requires_grad_()
    elif how == "one for all keys":
        mask = torch.randn(2, 1, 20, 1, generator=generator).double().requires_grad_()
    output = online_softmax(q, k, v, mask=mask, is_causal=how == "causal", scale=0.5, keys_per_tile=tile)

    logits = 0.5 * q @ k.transpose(2, 3)
    hidden = torch.ones(20, 20).triu(1).bool() if how == "causal" else None
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else None
        logits = logits if hidden is not None else logits + mask
    weights = torch.softmax(logits if hidden is None else logits.masked_fill(hidden, -torch.inf), dim=-1).nan_to_num()
    torch.testing.assert_close(output, weights @ v)

    leaves = [q, k, v, *([mask] if mask is not None and mask.requires_grad else [])]
    cotangent = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    found = torch.autograd.grad(output, leaves, cotangent)
    # Fully masked rows are left out of the expected gradients, because ``torch.softmax`` gives NaN gradients there.
    seen = torch.ones(20, dtype=torch.bool) if how != "nothing seen" else torch.arange(20) != 4
    wanted = torch.autograd.grad((weights @ v)[:, :, seen], leaves, cotangent[:, :, seen])
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, expected.nan_to_num())


def test_gradients_agree_with_finite_differences() -> None:
    """``torch.autograd.gradcheck`` passes for 5 keys in tiles of 2."""
    q, k, v = (tensor[:1, :1, :5].detach().requires_grad_() for tensor in draw_qkv(5))
    assert torch.autograd.gradcheck(
        lambda *qkv: online_softmax(*qkv, mask=None, is_causal=True, scale=0.7, keys_per_tile=2), (q, k, v)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    """With 300 keys in tiles of 8, the error is at most one eps of the dtype, relative to the largest output."""
    q, k, v = (tensor.detach() for tensor in draw_qkv(300, dtype))
    output = online_softmax(q, k, v, mask=None, is_causal=False, scale=0.5, keys_per_tile=8)
    wide = online_softmax(q.double(), k.double(), v.double(), mask=None, is_causal=False, scale=0.5)
    assert output.dtype == dtype
    assert (output.double() - wide).abs().max() <= torch.finfo(dtype).eps * wide.abs().max()


def count_saved_bytes(length: int) -> int:
    """Count the bytes that autograd saves for the backward pass of online softmax on sequences of this length."""
    q, k, v = draw_qkv(length, torch.float32)
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        online_softmax(q, k, v, mask=None, is_causal=False, scale=0.5)
    return sum(saved.values())


def test_saved_bytes_are_proportional_to_the_length() -> None:
    """The saved bytes are queries, keys, values, output and one number per row, so they double with the length."""
    assert count_saved_bytes(512) == 2 * count_saved_bytes(256) == 512 * 2 * 3 * 4 * (4 * 4 + 1)
