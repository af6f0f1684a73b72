"""Positions of queries and keys: the distances between them, and which keys a query may see."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnbench.interface import Inputs
from attnbench.operators.attention_core.problem import AttentionCoreProblem

__all__ = ["compute_distances", "find_visible", "get_lengths", "list_indices"]


def get_lengths(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Return the number of keys of each sequence. Shape: (batch)."""
    given = inputs.tensors.get("key_lengths")
    device = inputs.tensors["query"].device
    return torch.full((problem.sequences,), problem.keys, device=device) if given is None else given


def compute_distances(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Compute the position of each query minus the position of each key.

    Key j has position j. With a causal mask aligned at the top left, query i has position i. Otherwise the last query
    has the position of the last key of its sequence.

    Shape: returns (batch, 1, queries, keys).
    """
    lengths = get_lengths(problem, inputs)
    of_queries = torch.arange(problem.queries, device=lengths.device).expand(problem.sequences, -1)
    if problem.causal != "top_left":
        of_queries = of_queries + (lengths - problem.queries)[:, None]
    return of_queries[:, None, :, None] - torch.arange(problem.keys, device=lengths.device)


def find_visible(problem: AttentionCoreProblem, inputs: Inputs) -> Tensor:
    """Return a boolean mask (batch, heads, queries, keys), true where a query may see a key.

    A call of ``attnbench.testing`` may have any mask of this kind as the tensor ``visible``.
    """
    distances, lengths = compute_distances(problem, inputs), get_lengths(problem, inputs)
    visible = torch.arange(problem.keys, device=lengths.device) < lengths[:, None, None, None]
    if problem.causal:
        visible = visible & (distances >= 0)
    if problem.window is not None:
        visible = visible & (distances.abs() <= problem.window)
    if problem.bias_hides:
        visible = visible & ~inputs.tensors["bias"].isneginf()
    if (given := inputs.tensors.get("visible")) is not None:
        visible = visible & given
    return visible.expand(problem.sequences, problem.num_heads, problem.queries, problem.keys)


def list_indices(sizes: Sequence[int]) -> list[Tensor]:
    """Return the indices along each dimension of a tensor of these sizes, broadcastable to its shape."""
    return [
        torch.arange(size).reshape([-1 if i == axis else 1 for i in range(len(sizes))])
        for axis, size in enumerate(sizes)
    ]
