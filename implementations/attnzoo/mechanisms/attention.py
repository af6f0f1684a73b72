"""Attention in one form: score, mask, normalise over the keys, weighted sum of the values.

    w_ij = exp(s_ij − max s_i) / Σ_j exp(s_ij − max s_i)       over the keys j that query i may see
    o_i  = Σ_j w_ij v_j

Mechanisms differ in the score s_ij = s(q_i, k_j) and in where the queries come from. A query that sees no key gets
o_i = 0.

Source: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, section 3.1; Vaswani et al. 2017,
https://arxiv.org/abs/1706.03762, section 3.2.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnbench.masks import softmax_over_visible

__all__ = ["Score", "attend", "attend_loop", "dot", "hidden_keys", "softmax_loop", "weighted_sum"]

# Score of one query and one key, a number.
Score = Callable[[Tensor, Tensor], Tensor]


def hidden_keys(key_padding_mask: Tensor | None) -> Tensor | None:
    """What a padding mask hides from every query. Shape: (batch, keys), returns (batch, 1, keys)."""
    return None if key_padding_mask is None else key_padding_mask[:, None, :]


def attend(scores: Tensor, values: Tensor, *, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output and weights from scores, as matrix products.

    Shape: scores (batch, queries, keys), values (batch, keys, width), hidden (true hides) broadcastable to scores;
    returns (batch, queries, width) and (batch, queries, keys).
    """
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    weights = softmax_over_visible(scores)
    return weights @ values, weights


def attend_loop(
    score: Score, queries: Tensor, keys: Tensor, values: Tensor, *, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and weights, one query and one key at a time.

    Shape: queries (batch, queries, ·), keys (batch, keys, ·), values (batch, keys, width), hidden (true hides)
    broadcastable to (batch, queries, keys); returns (batch, queries, width) and (batch, queries, keys).
    """
    shape = (*queries.shape[:2], keys.shape[1])
    hides = (torch.zeros(shape, dtype=torch.bool) if hidden is None else hidden.expand(shape)).tolist()
    outputs, weights = [], []
    for b, sequence in enumerate(queries):
        for i, query in enumerate(sequence):
            scores = [score(query, key) for key in keys[b]]
            row = softmax_loop(scores, hides[b][i])
            outputs.append(weighted_sum(row, values[b]))
            weights.append(row)
    output, rows = (torch.unflatten(torch.stack(parts), 0, shape[:2]) for parts in (outputs, weights))
    return output, rows


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Σ_d first_d · second_d, element by element. Shape: (width) each, returns a number."""
    total = torch.zeros_like(first[0])
    for a, b in zip(first, second, strict=True):
        total = total + a * b
    return total


def softmax_loop(scores: Sequence[Tensor], hides: Sequence[bool]) -> Tensor:
    """exp(s_j − max s) / Σ_j exp(s_j − max s) over the keys that are not hidden; exactly 0 for those that are.

    Shape: a number for each key, returns (keys).
    """
    visible = [score for score, hide in zip(scores, hides, strict=True) if not hide]
    if not visible:
        return torch.zeros_like(torch.stack(list(scores)))
    largest = max(visible).detach()
    total = sum((torch.exp(score - largest) for score in visible), torch.zeros_like(largest))
    nothing = torch.zeros_like(largest)
    return torch.stack(
        [nothing if hide else torch.exp(score - largest) / total for score, hide in zip(scores, hides, strict=True)]
    )


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_j v_j. Shape: weights (keys), values (keys, width), returns (width)."""
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        total = total + weight * value
    return total
