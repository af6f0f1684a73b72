"""Single-head attention with a padding mask, an attention mask and an output projection.

    Q = X W_qᵀ,  K = X W_kᵀ,  V = X W_vᵀ        O = softmax(Q Kᵀ / √E + M) V W_outᵀ

M is −∞ where a mask hides a key, and 0 elsewhere. E is the width of a key. A padding mask
(batch, length) hides the padding of each sequence from all queries. An attention mask, such as a
causal mask, hides keys from each query separately. A key is hidden if either mask hides the key.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from attnbench.argument_checks import demand_whole_numbers
from attnbench.kernel import from_call
from attnbench.masks import union
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import attend, attend_loop, broadcast_padding_mask, dot, project_loop
from attnmechanisms.modules.loops import from_loop

__all__ = ["SINGLE_HEAD", "SINGLE_HEAD_LOOP", "SingleHeadAttention", "single_head", "single_head_loop"]


def single_head(
    tokens: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute output and attention weights, by matrix products.

    Shape: tokens (batch, length, embed_dim), each parameter (embed_dim, embed_dim) as in a linear
    layer; key_padding_mask (batch, length) and attn_mask (length, length) or
    (batch, length, length), true hides a key; returns (batch, length, embed_dim) and
    (batch, length, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    hidden = _combine_masks(tokens, key_padding_mask, attn_mask)
    _check(tokens, w_q, w_k, w_v, w_out)
    q, k, v = linear(tokens, w_q), linear(tokens, w_k), linear(tokens, w_v)
    scores = q @ k.mT / math.sqrt(k.shape[-1])  # (batch, length, length)
    attended, weights = attend(scores, v, hidden=hidden)
    return linear(attended, w_out), weights


def single_head_loop(
    tokens: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``single_head`` one number at a time."""
    hidden = _combine_masks(tokens, key_padding_mask, attn_mask)
    _check(tokens, w_q, w_k, w_v, w_out)
    q, k, v = (project_loop(tokens, weight) for weight in (w_q, w_k, w_v))
    root = math.sqrt(k.shape[-1])
    attended, weights = attend_loop(lambda query, key: dot(query, key) / root, q, k, v, hidden=hidden)
    return project_loop(attended, w_out), weights


def _check(tokens: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_out: Tensor) -> None:
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_out": w_out}
    square = {name: (weight, "embed_dim embed_dim") for name, weight in weights.items()}
    demand(tokens=(tokens, "batch length embed_dim"), **square)


def _combine_masks(tokens: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
    """Return a mask that is true where either mask hides a key, or None if both masks are None.

    Shape: broadcastable to (batch, queries, keys).
    """
    demand(
        tokens=(tokens, "batch length embed_dim"),
        key_padding_mask=(key_padding_mask, "batch length"),
        attn_mask=(attn_mask, "length length | batch length length"),
    )
    if key_padding_mask is None or attn_mask is None:
        return broadcast_padding_mask(key_padding_mask) if attn_mask is None else attn_mask
    return union(key_padding_mask, attn_mask)


class SingleHeadAttention(nn.Module):
    """Single-head attention with four projections without bias."""

    def __init__(self, embed_dim: int, form: Callable[..., tuple[Tensor, Tensor]] = single_head) -> None:
        super().__init__()
        demand_whole_numbers(1, embed_dim=embed_dim)
        spread = 1 / math.sqrt(embed_dim)
        self.w_q = nn.Parameter(spread * torch.randn(embed_dim, embed_dim))
        self.w_k = nn.Parameter(spread * torch.randn(embed_dim, embed_dim))
        self.w_v = nn.Parameter(spread * torch.randn(embed_dim, embed_dim))
        self.w_out = nn.Parameter(spread * torch.randn(embed_dim, embed_dim))
        self._form = form

    def forward(
        self, tokens: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute output (batch, length, embed_dim) and attention weights (batch, length, length)."""
        return self._form(
            tokens, self.w_q, self.w_k, self.w_v, self.w_out, key_padding_mask=key_padding_mask, attn_mask=attn_mask
        )


SINGLE_HEAD = from_call(single_head, operator="single_head", source="https://arxiv.org/abs/1706.03762")
SINGLE_HEAD_LOOP = from_loop(single_head_loop, operator="single_head", source="https://arxiv.org/abs/1706.03762")
