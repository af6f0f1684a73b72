"""Additive (Bahdanau) attention pooling: a learned query summarises a sequence in one vector.

    s_j = w · tanh(W_k k_j + W_q q)        o = Σ_j softmax(s)_j k_j

k_j is token j of the sequence, q is the learned query, and o is the pooled vector. The score s_j is
the output of a small network with one hidden layer, instead of a dot product. The absolute value of
a score is at most Σ|w|, whatever the width of the vectors.

Source: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, section A.1.2.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnbench.argument_checks import demand_whole_numbers
from attnbench.kernel import from_call
from attnmechanisms.modules.arguments import demand
from attnmechanisms.modules.attention import assemble, attend, attend_loop, broadcast_padding_mask, dot
from attnmechanisms.modules.loops import from_loop

__all__ = [
    "ADDITIVE_POOLING",
    "ADDITIVE_POOLING_LOOP",
    "AdditivePooling",
    "additive_pooling",
    "additive_pooling_loop",
    "additive_scores",
]


def additive_scores(tokens: Tensor, query: Tensor, w_q: Tensor, w_k: Tensor, w: Tensor) -> Tensor:
    """Compute the score w · tanh(W_k k + W_q q) of every token k.

    Shape: tokens (batch, length, width), query (1, width), w_q and w_k (width, width), w (width, 1); returns
    (batch, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    _check(tokens, query, w_q, w_k, w)
    return (torch.tanh(tokens @ w_k.T + query @ w_q.T) @ w).squeeze(-1)


def additive_pooling(
    tokens: Tensor, query: Tensor, w_q: Tensor, w_k: Tensor, w: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute one vector per sequence and the attention weights of its tokens, by matrix products.

    Shape: parameters as in ``additive_scores``; key_padding_mask (batch, length), true hides a
    token; returns (batch, width) and (batch, length).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
    """
    demand(tokens=(tokens, "batch length width"), key_padding_mask=(key_padding_mask, "batch length"))
    scores = additive_scores(tokens, query, w_q, w_k, w)[:, None, :]  # (batch, 1, length)
    pooled, weights = attend(scores, tokens, hidden=broadcast_padding_mask(key_padding_mask))
    return pooled[:, 0], weights[:, 0]


def additive_pooling_loop(
    tokens: Tensor, query: Tensor, w_q: Tensor, w_k: Tensor, w: Tensor, key_padding_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute ``additive_pooling`` one number at a time."""
    demand(tokens=(tokens, "batch length width"), key_padding_mask=(key_padding_mask, "batch length"))
    _check(tokens, query, w_q, w_k, w)

    def score(query: Tensor, key: Tensor) -> Tensor:
        hidden_layer = [torch.tanh(dot(w_k[row], key) + dot(w_q[row], query)) for row in range(len(w))]
        return dot(w[:, 0], assemble(hidden_layer, (len(w),), w))

    queries = query.expand(len(tokens), 1, -1)
    pooled, weights = attend_loop(score, queries, tokens, tokens, hidden=broadcast_padding_mask(key_padding_mask))
    return pooled[:, 0], weights[:, 0]


def _check(tokens: Tensor, query: Tensor, w_q: Tensor, w_k: Tensor, w: Tensor) -> None:
    demand(
        tokens=(tokens, "batch length width"),
        query=(query, "1 width"),
        w_q=(w_q, "width width"),
        w_k=(w_k, "width width"),
        w=(w, "width 1"),
    )


class AdditivePooling(nn.Module):
    """Additive attention pooling with a learned query and a learned score (w_q, w_k and w), without biases."""

    def __init__(self, width: int, form: Callable[..., tuple[Tensor, Tensor]] = additive_pooling) -> None:
        super().__init__()
        demand_whole_numbers(1, width=width)
        spread = 1 / math.sqrt(width)
        self.query = nn.Parameter(torch.randn(1, width))
        self.w_q = nn.Parameter(spread * torch.randn(width, width))
        self.w_k = nn.Parameter(spread * torch.randn(width, width))
        self.w = nn.Parameter(spread * torch.randn(width, 1))
        self._form = form

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute one vector per sequence (batch, width) and attention weights (batch, length)."""
        return self._form(tokens, self.query, self.w_q, self.w_k, self.w, key_padding_mask)


ADDITIVE_POOLING = from_call(additive_pooling, operator="additive_pooling", source="https://arxiv.org/abs/1409.0473")
ADDITIVE_POOLING_LOOP = from_loop(
    additive_pooling_loop, operator="additive_pooling", source="https://arxiv.org/abs/1409.0473"
)
