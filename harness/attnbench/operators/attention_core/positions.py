"""Where queries and keys stand: how far apart they are, and which keys a query may see."""

import torch
from torch import Tensor

from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["distances", "lengths", "visible"]


def lengths(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Number of keys that each sequence has. Shape: (batch)."""
    own = inputs.tensors.get("key_lengths")
    device = inputs.tensors["query"].device
    return torch.full((problem.sequences,), problem.keys, device=device) if own is None else own


def distances(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Position of each query less that of each key.

    Key j stands at j. Query i stands at i under a mask that is causal from the top left; elsewhere the last query
    stands where the last key of its sequence does.

    Shape: returns (batch, 1, queries, keys).
    """
    ends = lengths(problem, inputs)
    of_queries = torch.arange(problem.queries, device=ends.device).expand(problem.sequences, -1)
    if problem.causal != "top_left":
        of_queries = of_queries + (ends - problem.queries)[:, None]
    return of_queries[:, None, :, None] - torch.arange(problem.keys, device=ends.device)


def visible(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """True where a query may see a key. Shape: (batch, heads, queries, keys)."""
    apart, ends = distances(problem, inputs), lengths(problem, inputs)
    seen = torch.arange(problem.keys, device=ends.device) < ends[:, None, None, None]
    if problem.causal:
        seen = seen & (apart >= 0)
    if problem.window is not None:
        seen = seen & (apart.abs() <= problem.window)
    if problem.bias_hides:
        seen = seen & ~inputs.tensors["bias"].isneginf()
    return seen.expand(problem.sequences, problem.num_heads, problem.queries, problem.keys)
