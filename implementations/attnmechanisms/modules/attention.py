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

from attnbench.argument_checks import demand_shapes
from attnbench.masks import softmax_over_visible
from attnmechanisms.modules.arguments import demand_broadcast

__all__ = [
    "Score",
    "assembled",
    "attend",
    "attend_loop",
    "dot",
    "hidden_keys",
    "projected_loop",
    "softmax_loop",
    "weighted_sum",
]

# Score of one query and one key, a number.
Score = Callable[[Tensor, Tensor], Tensor]


def hidden_keys(key_padding_mask: Tensor | None) -> Tensor | None:
    """What a padding mask hides from every query. Shape: (batch, keys), returns (batch, 1, keys)."""
    return None if key_padding_mask is None else key_padding_mask[:, None, :]


def attend(scores: Tensor, values: Tensor, *, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Output and weights from scores, as matrix products.

    Shape: scores (batch, queries, keys), values (batch, keys, width), hidden (true hides) broadcastable to scores;
    returns (batch, queries, width) and (batch, queries, keys). All may have heads after the batch.

    Raises: ValueError, TypeError where these do not fit together.
    """
    before = "batch heads" if scores.dim() == 4 else "batch"
    demand_shapes(scores=(scores, f"{before} queries keys"), values=(values, f"{before} keys width"))
    demand_broadcast("hidden", hidden, scores.shape)
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

    Raises: ValueError, TypeError where these do not fit together.
    """
    demand_shapes(
        queries=(queries, "batch queries query_width"),
        keys=(keys, "batch keys key_width"),
        values=(values, "batch keys width"),
    )
    shape = (*queries.shape[:2], keys.shape[1])
    demand_broadcast("hidden", hidden, shape)
    hides = (torch.zeros(shape, dtype=torch.bool) if hidden is None else hidden.expand(shape)).tolist()
    outputs, weights = [], []
    for b, sequence in enumerate(queries):
        for i, query in enumerate(sequence):
            scores = assembled([score(query, key) for key in keys[b]], shape[2:], values)
            row = softmax_loop(scores, hides[b][i])
            outputs.append(weighted_sum(row, values[b]))
            weights.append(row)
    return assembled(outputs, (*shape[:2], values.shape[2]), values), assembled(weights, shape, values)


def assembled(parts: Sequence[Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
    """Parts in their order as one tensor; where there is none, as after a batch of 0, it is of the kind of another."""
    return torch.stack(list(parts)).reshape(tuple(shape)) if parts else like.new_zeros(tuple(shape))


def projected_loop(tokens: Tensor, rows: Tensor) -> Tensor:
    """Product of every token and every row, a number at a time.

    Shape: tokens (batch, length, width), rows (out_width, width), returns (batch, length, out_width).
    """
    numbers = [dot(row, token) for token in tokens.flatten(0, 1) for row in rows]
    return assembled(numbers, (*tokens.shape[:2], len(rows)), tokens)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Σ_d first_d · second_d, element by element. Shape: (width) each, returns a number."""
    total = first.new_zeros(())
    for a, b in zip(first, second, strict=True):
        total = total + a * b
    return total


def softmax_loop(scores: Tensor, hides: Sequence[bool]) -> Tensor:
    """exp(s_j − max s) / Σ_j exp(s_j − max s) over the keys that are not hidden; exactly 0 for those that are.

    Shape: scores (keys), returns (keys).
    """
    visible = [score for score, hide in zip(scores, hides, strict=True) if not hide]
    if not visible:
        return torch.zeros_like(scores)
    largest = max(visible).detach()
    total = sum((torch.exp(score - largest) for score in visible), torch.zeros_like(largest))
    nothing = torch.zeros_like(largest)
    return torch.stack(
        [nothing if hide else torch.exp(score - largest) / total for score, hide in zip(scores, hides, strict=True)]
    )


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_j w_j v_j. Shape: weights (keys), values (keys, width), returns (width)."""
    total = values.new_zeros(values.shape[1:])
    for weight, value in zip(weights, values, strict=True):
        total = total + weight * value
    return total
