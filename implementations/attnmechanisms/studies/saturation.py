"""Softmax saturation: without the scale 1/√d, wide heads give one-hot attention weights and vanishing gradients.

Queries q and keys k have independent standard normal elements. The variance of q · k is therefore
d, the width of a head.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1, footnote 4.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attnstudies.rows import entropy_bits, gradient_norm, quartiles

__all__ = ["saturation"]

# Number of rows of scores over which medians and quartiles are taken. With 512 rows, the quartiles
# are accurate to a few percent.
ROWS = 512
# The worked example is a softmax of normal random numbers. DRAWS: how many numbers. DRAWN_STD:
# their standard deviation.
DRAWS, DRAWN_STD = 20_000, 100.0


def saturation(*, head_dims: Sequence[int], keys: int, seed: int) -> dict[str, Any]:
    """Return statistics of attention weights for each head_dim, with and without the scale 1/√d.

    The statistics are the mean weight at each rank, the entropy, the largest weight and the
    gradient norm. The entry ``draws`` is a worked example: the largest weight in a softmax of
    normal random numbers.
    """
    return {
        "keys": keys,
        "rows": [row for head_dim in head_dims for row in _measure_width(head_dim, keys, seed)],
        "draws": _softmax_of_wide_draws(seed),
    }


def _measure_width(head_dim: int, keys: int, seed: int) -> Iterator[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(ROWS, 1, head_dim, generator=generator)
    products = torch.cat([row @ torch.randn(keys, head_dim, generator=generator).T for row in queries]).double()
    cotangent = torch.randn(ROWS, keys, generator=generator).double()
    for scale, scores in (("1/√d", products / math.sqrt(head_dim)), ("none", products)):
        weights = torch.softmax(scores, dim=-1)
        yield {
            "head_dim": head_dim,
            "scale": scale,
            **quartiles("entropy_bits", entropy_bits(weights)),
            **quartiles("largest_weight", weights.amax(dim=-1)),
            **quartiles("gradient_norm", gradient_norm(scores, cotangent)),
            # Each row of weights is sorted, largest weight first. The result has, for each rank, the
            # mean over the rows.
            "by_rank": weights.sort(dim=-1, descending=True).values.mean(dim=0).tolist(),
        }


def _softmax_of_wide_draws(seed: int) -> dict[str, float]:
    """Return the largest weight in a softmax of normal random numbers, and how the numbers were drawn.

    ``count`` and ``std`` are the number of random numbers and their standard deviation.
    ``largest_weight_divided`` is the largest weight if the numbers are first divided by ``std``.
    """
    draws = DRAWN_STD * torch.randn(DRAWS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return {
        "count": DRAWS,
        "std": DRAWN_STD,
        "largest_weight": torch.softmax(draws, dim=0).max().item(),
        "largest_weight_divided": torch.softmax(draws / DRAWN_STD, dim=0).max().item(),
    }
