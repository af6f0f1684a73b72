"""Inputs of the identity regimes, in which the projections are exact and only the attention itself has rounding errors.

W_q = 2 I, W_k = W_o = I, and W_v is a permutation. Products with these matrices are exact in every dtype. In the
regimes ``uniform``, ``selection``, ``zeroleak`` and ``overflow`` the attention is also exact, in any order of
summation, so the allowed error is 0. Elements of ``value`` need at most 8 significant bits, as many as bfloat16 has.
"""

import math

import torch
from torch import Tensor

from attnbench.operators.multihead.problem import OVERFLOW_LOGIT, MultiheadProblem
from attnbench.oracle.inputs import Draw

__all__ = ["make_exact_tokens", "make_identity_parameters"]

# The query projection is this number times the identity. If query and key are standard normal, the logits have this
# standard deviation.
QUERY_SCALE = 2.0
# Every element of the values of keys that key_padding_mask hides, in the regime ``uniform``. It is large, so a check
# detects an implementation that uses these keys. The elements of all other values are −1, 0 or 1, so sums of up to 256
# such elements are exact.
HIDDEN_UNIFORM = 64.0
# Largest element of the values in the regimes ``selection`` and ``overflow``: elements are integers from −127 to 127.
LARGEST_SELECTED = 127
# Every element of the values of hidden keys, in the regime ``zeroleak``. It is large, so a check detects an
# implementation that uses hidden keys. The gradient of an attention weight sums such elements, times cotangents, over
# the features of a head. This sum must be below 65504, the largest number of float16.
HIDDEN_ZEROLEAK = 512.0


def make_identity_parameters(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Return the parameters of the projections of the identity regimes, keyed by their names in the reference."""
    embed = problem.embed_dim
    identity = torch.eye(embed, dtype=torch.float64)
    values = identity[draw.uniform("v_proj_weight", embed).argsort()]
    return {
        "in_proj_weight": torch.cat([QUERY_SCALE * identity, identity, values]),
        "out_proj.weight": identity.clone(),
    }


def make_exact_tokens(problem: MultiheadProblem, draw: Draw, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a regime whose output is exact; they replace the random tensors of the same names.

    The tensors are ``value``, in the regime ``uniform`` also ``query``, and in ``overflow`` also ``query`` and ``key``.
    """
    query, value = tensors["query"], tensors["value"]
    if problem.regime in ("selection", "overflow"):
        span = 2 * LARGEST_SELECTED + 1
        selected = {"value": (draw.uniform("value.whole", *value.shape) * span).floor() - LARGEST_SELECTED}
        return selected | (_make_overflowing_tokens(problem, draw) if problem.regime == "overflow" else {})
    if problem.regime == "zeroleak":
        return {"value": torch.zeros_like(value).masked_fill(_find_padding(problem, tensors), HIDDEN_ZEROLEAK)}
    whole = (draw.uniform("value.whole", *value.shape) * 3).floor() - 1
    return {
        "query": torch.zeros_like(query),
        "value": whole.masked_fill(_find_padding(problem, tensors), HIDDEN_UNIFORM),
    }


def _make_overflowing_tokens(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Return the tensors ``query`` and ``key``, in which each query agrees with one random key in each head.

    In each head, every key is nonzero in only one feature, which differs from key to key, and each query is nonzero in
    only the feature of a random key. The logit of this key is ``OVERFLOW_LOGIT``, and the product before the scale is
    √D times as large.
    """
    batch, heads, width = problem.sequences, problem.num_heads, problem.head_dim
    vectors = torch.eye(width, dtype=torch.float64)[draw.uniform("key.features", width).argsort()]
    keys = vectors[: problem.keys, None].expand(batch, problem.keys, heads, width)
    chosen = (draw.uniform("query.keys", batch, problem.queries, heads) * problem.keys).long()
    # The factor of a key is a power of two near the square root of the product, so no token overflows.
    product = OVERFLOW_LOGIT * math.sqrt(width)
    factor = 2.0 ** (math.log2(product) // 2)
    tokens = {"query": vectors[chosen] * (product / factor / QUERY_SCALE), "key": keys * factor}
    return {name: _to_layout(problem, token.flatten(2)) for name, token in tokens.items()}


def _to_layout(problem: MultiheadProblem, tokens: Tensor) -> Tensor:
    """Convert tokens (batch, length, width) to the layout of the problem."""
    if problem.batch is None:
        return tokens[0]
    return tokens if problem.batch_first else tokens.transpose(0, 1).contiguous()


def _find_padding(problem: MultiheadProblem, tensors: dict[str, Tensor]) -> Tensor:
    """Return a boolean mask in the layout of ``value``, true at padding tokens; the feature axis has size 1."""
    mask = tensors.get("key_padding_mask")
    if mask is None:
        return torch.zeros(1, dtype=torch.bool)
    padded = mask if mask.dtype == torch.bool else mask.isinf()
    return (padded if problem.batch is None or problem.batch_first else padded.T)[..., None]
