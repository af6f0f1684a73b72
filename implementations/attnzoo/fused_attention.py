"""``scaled_dot_product_attention`` with arguments that every CUDA kernel of torch computes correctly.

O = softmax(scale · Q Kᵀ + M) V, with the mask M.

On a CPU, the arguments are passed to torch unchanged. On CUDA, torch 2.11 makes three errors, which
were found on an H100. This module avoids the errors:

- Rows that are not aligned to 16 bytes give NaN in cuDNN's kernel and the error "misaligned address" in the flash
  kernel. Such tensors are copied.
- cuDNN's kernel is the default in half precision. If it gets a boolean mask, it computes fully masked rows as if they
  had no mask. In half precision, boolean masks are therefore converted to additive masks.
- If the mask requires a gradient and no other tensor does, the forward of the memory-efficient kernel stores nothing
  for its backward (https://github.com/pytorch/pytorch/issues/148476). In this case, the query is
  made to require a gradient, too.

Shape: Q (batch, heads, queries, head_dim), K and V (batch, heads or kv_heads, keys, head_dim),
M broadcastable to (batch, heads, queries, keys).
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.masks import additive

__all__ = ["attend_fused", "make_rows_contiguous"]

# CUDA kernels need every row of a tensor to begin at a multiple of this number of bytes.
ALIGNMENT = 16


def attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention by the kernel that torch chooses; a boolean mask is true where a key may be attended to."""
    if q.is_cuda:
        q, k, v = (tensor if _is_aligned(tensor) else _copy(tensor) for tensor in (q, k, v))
        if mask is not None and mask.dtype == torch.bool and q.dtype in (torch.float16, torch.bfloat16):
            mask = additive(mask, q.dtype)
        tracked = torch.is_grad_enabled() and mask is not None and mask.requires_grad
        if tracked and not any(tensor.requires_grad for tensor in (q, k, v)):
            q = q.detach().requires_grad_()
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def make_rows_contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor if its last stride is 1, and a contiguous copy if not."""
    return tensor if tensor.stride(-1) == 1 else _copy(tensor)


def _copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of a tensor.

    The method contiguous() would not copy a tensor whose last dimension has size 1, even if the
    last stride is not 1.
    """
    return tensor.clone(memory_format=torch.contiguous_format)


def _is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor has a last stride of 1, and is contiguous or has every row at a multiple of ``ALIGNMENT`` bytes.

    Contiguous tensors need no copy here, because torch itself aligns them.
    """
    if tensor.stride(-1) != 1:
        return False
    steps = (tensor.storage_offset(), *tensor.stride()[:-1])
    return tensor.is_contiguous() or all(step * tensor.element_size() % ALIGNMENT == 0 for step in steps)
