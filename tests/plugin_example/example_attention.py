"""Attention by ``torch.einsum``: a plain function of q, k and v that ``from_kernel`` turns into an implementation."""

import torch
from torch import Tensor

from attnbench.kernel import from_kernel

__all__ = ["EINSUM", "einsum_attention"]


def einsum_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, scale: float, dropout_p: float) -> Tensor:
    """Compute O = softmax(scale · Q Kᵀ + M) V; ``mask`` is boolean (true keeps a key) or additive.

    The function has no keyword ``need_weights``, so cases that need the attention weights are refused.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), mask broadcastable to
    (batch, heads, queries, keys).
    """
    logits = torch.einsum("bhqd,bhkd->bhqk", q * scale, k)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
    # The weights of a fully masked row are 0; the softmax alone would give NaN.
    empty = (logits == float("-inf")).all(dim=-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
    return torch.einsum("bhqk,bhkd->bhqd", torch.nn.functional.dropout(weights, dropout_p), v)


EINSUM = from_kernel(einsum_attention, name="example_einsum")
