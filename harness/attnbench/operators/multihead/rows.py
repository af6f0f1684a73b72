"""Which keys a row of queries may see, and rows that see none: the contract leaves open what they get."""

import math

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.oracle import logits_mask
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["hidden_rows", "padded_rows", "visible"]


def visible(case: Case, inputs: Inputs) -> Tensor:
    """True where a query may see a key; extra columns are left out.

    Shape: (batch, heads, queries, keys).
    """
    problem: MultiheadProblem = case.problem
    shape = (problem.sequences, problem.num_heads, problem.queries, problem.keys)
    mask = logits_mask(problem, inputs)
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    return (mask != -math.inf)[..., : problem.keys].expand(shape)


def hidden_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Where output and weights belong to a row without any visible key; empty where there is none.

    An output element mixes all heads, so it counts as soon as one head's row is hidden.

    Shape: broadcastable to output and to weights.
    """
    problem: MultiheadProblem = case.problem
    mask = logits_mask(problem, inputs)
    if mask is None or problem.columns == 0:
        return {}
    batch = problem.sequences
    rows = (mask == -math.inf).all(dim=-1)  # broadcastable to (batch, heads, queries)
    if not rows.any():
        return {}
    return _by_output(problem, rows.expand(batch, problem.num_heads, problem.queries))


def padded_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Where output and weights belong to a query that key_padding_mask hides as a key; empty where nothing tells.

    A token is a query and a key at once only where both are one tensor.

    Shape: broadcastable to output and to weights.
    """
    problem: MultiheadProblem = case.problem
    mask = inputs.tensors.get("key_padding_mask")
    if mask is None or not problem.shares_queries:
        return {}
    padded = mask.detach() if mask.dtype == torch.bool else mask.detach() == -math.inf
    rows = padded.reshape(problem.sequences, 1, problem.keys)
    return _by_output(problem, rows.expand(-1, problem.num_heads, -1))


def _by_output(problem: MultiheadProblem, rows: Tensor) -> dict[str, Tensor]:
    """Rows of queries (batch, heads, queries) as they lie in output and weights."""
    in_any_head = rows.any(dim=1)  # (batch, queries)
    weights = in_any_head if problem.average_attn_weights else rows
    if problem.batch is None:
        return {"output": in_any_head[0, :, None], "weights": weights[0, ..., None]}
    output = in_any_head if problem.batch_first else in_any_head.T
    return {"output": output[..., None], "weights": weights[..., None]}
