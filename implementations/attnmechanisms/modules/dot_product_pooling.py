"""Dot-product attention pooling: a learned query summarises a sequence in one vector.

    s_j = k_j · q        o = Σ_j softmax(s)_j k_j

k_j is token j of the sequence, q is the learned query, and o is the pooled vector.

Source: Luong et al. 2015, https://arxiv.org/abs/1508.04025, section 3.1, score *dot*.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnbench.argument_checks import demand_whole_numbers
from attnbench.kernel import from_call
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import attend, attend_loop, broadcast_padding_mask, dot
from attnmechanisms.modules.loops import from_loop

__all__ = [
    "DOT_PRODUCT_POOLING",
    "DOT_PRODUCT_POOLING_LOOP",
    "DotProductPooling",
    "dot_product_pooling",
    "dot_product_pooling_loop",
]


def dot_product_pooling(tokens: Tensor, query: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute one vector per sequence and the attention weights of its tokens, by matrix products.

    Shape: tokens (batch, length, width), query (width, 1), key_padding_mask (batch, length), true
    hides a token; returns (batch, width) and (batch, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check(tokens, query, key_padding_mask)
    scores = (tokens @ query).mT  # (batch, 1, length)
    pooled, weights = attend(scores, tokens, hidden=broadcast_padding_mask(key_padding_mask))
    return pooled[:, 0], weights[:, 0]


def dot_product_pooling_loop(
    tokens: Tensor, query: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute ``dot_product_pooling`` one number at a time."""
    _check(tokens, query, key_padding_mask)
    queries = query.T.expand(len(tokens), 1, -1)
    pooled, weights = attend_loop(dot, queries, tokens, tokens, hidden=broadcast_padding_mask(key_padding_mask))
    return pooled[:, 0], weights[:, 0]


def _check(tokens: Tensor, query: Tensor, key_padding_mask: Tensor | None) -> None:
    demand(
        tokens=(tokens, "batch length width"),
        query=(query, "width 1"),
        key_padding_mask=(key_padding_mask, "batch length"),
    )


class DotProductPooling(nn.Module):
    """Dot-product attention pooling with a learned query."""

    def __init__(self, width: int, form: Callable[..., tuple[Tensor, Tensor]] = dot_product_pooling) -> None:
        super().__init__()
        demand_whole_numbers(1, width=width)
        self.query = nn.Parameter(torch.randn(width, 1) / math.sqrt(width))
        self._form = form

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute one vector per sequence (batch, width) and attention weights (batch, length)."""
        return self._form(tokens, self.query, key_padding_mask)


DOT_PRODUCT_POOLING = from_call(
    dot_product_pooling, operator="dot_product_pooling", source="https://arxiv.org/abs/1508.04025"
)
DOT_PRODUCT_POOLING_LOOP = from_loop(
    dot_product_pooling_loop,
    operator="dot_product_pooling",
    source="https://arxiv.org/abs/1508.04025",
)
