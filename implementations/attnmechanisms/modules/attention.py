"""The four steps of attention: score, mask, softmax over the keys, weighted sum of the values.

    w_ij = exp(s_ij − max s_i) / Σ_j exp(s_ij − max s_i)       over the keys j that query i may see
    o_i  = Σ_j w_ij v_j

Mechanisms differ in the score s_ij = s(q_i, k_j) and in where the queries come from. In a fully masked row (a query
that sees no key) o_i = 0.

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
    "assemble",
    "attend",
    "attend_loop",
    "broadcast_padding_mask",
    "dot",
    "project_loop",
    "softmax_loop",
    "weighted_sum",
]

# A function that returns the score of one query and one key as a scalar tensor.
Score = Callable[[Tensor, Tensor], Tensor]


def broadcast_padding_mask(key_padding_mask: Tensor | None) -> Tensor | None:
    """Add a dimension of queries to a padding mask. Shape: (batch, keys), returns (batch, 1, keys)."""
    return None if key_padding_mask is None else key_padding_mask[:, None, :]


def attend(scores: Tensor, values: Tensor, *, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute output and attention weights from scores, by matrix products.

    Shape: scores (batch, queries, keys), values (batch, keys, width), hidden (true hides a key)
    broadcastable to scores; returns (batch, queries, width) and (batch, queries, keys). All tensors
    may have a dimension of heads after the dimension ``batch``.

    Raises: ValueError, TypeError if shapes or dtypes do not match.
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
    """Compute output and attention weights, one query and one key at a time.

    Shape: queries (batch, queries, query_width), keys (batch, keys, key_width), values
    (batch, keys, width), hidden (true hides a key) broadcastable to (batch, queries, keys); returns
    (batch, queries, width) and (batch, queries, keys).

    Raises: ValueError, TypeError if shapes or dtypes do not match.
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
            scores = assemble([score(query, key) for key in keys[b]], shape[2:], values)
            row = softmax_loop(scores, hides[b][i])
            outputs.append(weighted_sum(row, values[b]))
            weights.append(row)
    return assemble(outputs, (*shape[:2], values.shape[2]), values), assemble(weights, shape, values)


def assemble(parts: Sequence[Tensor], shape: Sequence[int], like: Tensor) -> Tensor:
    """Stack tensors and reshape the stack to ``shape``.

    If there are no tensors, as for an empty batch, return zeros with the dtype and device of
    ``like``.
    """
    return torch.stack(list(parts)).reshape(tuple(shape)) if parts else like.new_zeros(tuple(shape))


def project_loop(tokens: Tensor, rows: Tensor) -> Tensor:
    """Compute the dot product of every token and every row of a weight matrix, one number at a time.

    Shape: tokens (batch, length, width), rows (out_width, width), returns (batch, length, out_width).
    """
    numbers = [dot(row, token) for token in tokens.flatten(0, 1) for row in rows]
    return assemble(numbers, (*tokens.shape[:2], len(rows)), tokens)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Compute Σ_d first_d · second_d element by element. Shape: (width) each, returns a scalar."""
    total = first.new_zeros(())
    for a, b in zip(first, second, strict=True):
        total = total + a * b
    return total


def softmax_loop(scores: Tensor, hides: Sequence[bool]) -> Tensor:
    """Compute exp(s_j − max s) / Σ_j exp(s_j − max s) over the keys that are not hidden; hidden keys get exactly 0.

    Shape: scores (keys), hides (keys), true hides a key; returns (keys).
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
    """Compute Σ_j w_j v_j. Shape: weights (keys), values (keys, width), returns (width)."""
    total = values.new_zeros(values.shape[1:])
    for weight, value in zip(weights, values, strict=True):
        total = total + weight * value
    return total
