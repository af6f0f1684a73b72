"""Heads as a separate dimension: matrix products of four-dimensional tensors.

O = softmax(scale · Q Kᵀ + M) V over the last two dimensions; the mask M broadcasts over the first two. With a
soft-cap c, M is added to c · tanh(scale · Q Kᵀ / c).

Shape: Q (batch, heads, queries, head_dim), K (batch, kv_heads, keys, head_dim), V (batch, kv_heads, keys, head_dim_v).
Source: Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762.

K is transposed after its heads are split. A single permutation of K from (batch, keys, heads, head_dim) gives wrong
numbers when torch compiles it (https://github.com/pytorch/pytorch/issues/195320).
"""

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.masks import softmax_over_visible

__all__ = ["CORE_RESHAPED", "RESHAPED", "reshaped"]


def reshaped(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,
    softcap: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by ``torch.matmul`` on four dimensions; ``mask`` is additive."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = (q * scale) @ k.transpose(2, 3)  # (batch, heads, queries, keys)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is not None:
        logits = logits + mask
    weights = torch.nn.functional.dropout(softmax_over_visible(logits), dropout_p)
    return weights @ v, weights if need_weights else None


RESHAPED = from_kernel(
    reshaped,
    source="https://arxiv.org/abs/1706.03762",
    additive_mask=True,
    policies=Policies(twice_differentiable=True),
)
CORE_RESHAPED = core_from_kernel(RESHAPED)
