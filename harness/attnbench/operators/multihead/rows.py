"""Which keys a row of queries may see, and rows that see none: the contract leaves open what they get."""

import math

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.oracle import logits_mask
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["hidden_rows", "visible"]


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
    rows = rows.expand(batch, problem.num_heads, problem.queries)
    in_any_head = rows.any(dim=1)  # (batch, queries)
    weights = in_any_head if problem.average_attn_weights else rows
    if problem.batch is None:
        return {"output": in_any_head[0, :, None], "weights": weights[0, ..., None]}
    output = in_any_head if problem.batch_first else in_any_head.T
    return {"output": output[..., None], "weights": weights[..., None]}
