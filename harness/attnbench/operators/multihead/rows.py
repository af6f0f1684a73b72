"""Rows of queries from which every key is hidden: the contract leaves open what they get."""

import math

from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.oracle import logits_mask
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["hidden_rows"]


def hidden_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Where output and weights belong to a row without any visible key; empty where there is none.

    An output element mixes all heads, so it counts as soon as one head's row is hidden.

    Shape: broadcastable to output and to weights.
    """
    problem: MultiheadProblem = case.problem
    mask = logits_mask(problem, inputs)
    if mask is None or problem.columns == 0:
        return {}
    batch = problem.batch or 1
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
