"""Heads stacked into the batch: one batched matrix product for the logits and one for the output.

O = softmax(scale · Q Kᵀ + M) V for each of the batch·heads matrices. M is the additive mask.

Shape: Q (batch·heads, queries, head_dim), K and V (batch·heads, keys, head_dim).
Source: Vaswani et al., Attention Is All You Need, 2017, equation 1, https://arxiv.org/abs/1706.03762;
torch.nn.functional.multi_head_attention_forward stacks the heads in the same way.
"""

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.kernel import core_from_kernel, from_kernel
from attnbench.masks import softmax_over_visible

__all__ = ["BATCHED_MATMUL", "CORE_BATCHED_MATMUL", "batched_matmul"]


def batched_matmul(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by ``torch.bmm`` over batch·heads; ``mask`` is additive."""
    stacked = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (batch·heads, length, head_dim)
    logits = torch.bmm(q * scale, k.transpose(1, 2))  # (batch·heads, queries, keys)
    if mask is not None:
        logits = logits + mask.expand(*stacked, *logits.shape[1:]).flatten(0, 1)
    weights = torch.nn.functional.dropout(softmax_over_visible(logits), dropout_p)
    output = torch.unflatten(torch.bmm(weights, v), 0, stacked)  # (batch, heads, queries, head_dim)
    return output, torch.unflatten(weights, 0, stacked) if need_weights else None


BATCHED_MATMUL = from_kernel(
    batched_matmul,
    source="https://arxiv.org/abs/1706.03762",
    additive_mask=True,
    policies=Policies(twice_differentiable=True),
)
CORE_BATCHED_MATMUL = core_from_kernel(BATCHED_MATMUL)
