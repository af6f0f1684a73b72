"""Inputs of the identity regimes, in which projections are exact, so that only attention itself rounds.

W_q = 2 I, W_k = W_o = I and W_v is a permutation: all exact in every dtype. In the exact regimes the attention is also
exact, in any order of summation, so the allowed error is 0. ``value`` needs at most the 8 significant bits of bfloat16.
"""

import torch
from torch import Tensor

from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.oracle.inputs import Draw

__all__ = ["make_exact_tokens", "make_identity_parameters"]

# Factor of the query projection: the standard deviation of the logits if queries and keys are standard normal.
QUERY_SCALE = 2.0
# Value of hidden keys in the regime ``uniform``: large, so that a leak is detected. The values of visible keys are −1,
# 0 or 1, so sums of up to 256 values are exact.
HIDDEN_UNIFORM = 64.0
# In the regime ``selection`` values lie between −127 and 127.
LARGEST_SELECTED = 127
# Value of hidden keys in the regime ``zeroleak``: large, so that a leak is detected, but small enough for float16. The
# gradient of an attention weight, a sum of such values times cotangents over a head, must be below 65504.
HIDDEN_ZEROLEAK = 512.0


def make_identity_parameters(problem: MultiheadProblem, draw: Draw) -> dict[str, Tensor]:
    """Return exact projections: multiples of the identity and a permutation."""
    embed = problem.embed_dim
    identity = torch.eye(embed, dtype=torch.float64)
    values = identity[draw.uniform("v_proj_weight", embed).argsort()]
    return {
        "in_proj_weight": torch.cat([QUERY_SCALE * identity, identity, values]),
        "out_proj.weight": identity.clone(),
    }


def make_exact_tokens(problem: MultiheadProblem, draw: Draw, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that replace drawn tokens in a regime whose output is exact."""
    query, value = tensors["query"], tensors["value"]
    if problem.regime == "selection":
        span = 2 * LARGEST_SELECTED + 1
        return {"value": (draw.uniform("value.whole", *value.shape) * span).floor() - LARGEST_SELECTED}
    if problem.regime == "zeroleak":
        return {"value": torch.zeros_like(value).masked_fill(_find_padding(problem, tensors), HIDDEN_ZEROLEAK)}
    whole = (draw.uniform("value.whole", *value.shape) * 3).floor() - 1
    return {
        "query": torch.zeros_like(query),
        "value": whole.masked_fill(_find_padding(problem, tensors), HIDDEN_UNIFORM),
    }


def _find_padding(problem: MultiheadProblem, tensors: dict[str, Tensor]) -> Tensor:
    """Return a mask of the padding tokens in the layout of ``value``, with a feature axis of size 1."""
    mask = tensors.get("key_padding_mask")
    if mask is None:
        return torch.zeros(1, dtype=torch.bool)
    padded = mask if mask.dtype == torch.bool else mask.isinf()
    return (padded if problem.batch is None or problem.batch_first else padded.T)[..., None]
