"""Which keys a query may see, and the rows of output and weights to which policies apply.

Hidden rows are the rows of queries without a visible key. Padded queries are queries whose token is hidden by
key_padding_mask.
"""

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Choices, Inputs
from attnbench.operators.multihead.oracle import CORRECT_STEPS, Steps, compute_logits_mask
from attnbench.operators.multihead.problem import MultiheadProblem
from attnbench.operators.rounding import RowRule, fill_hidden_rows

__all__ = ["declare_hidden_rows", "find_hidden_rows", "find_padded_rows", "find_visible"]


def find_visible(case: Case, inputs: Inputs) -> Tensor:
    """Return a boolean mask, true where a query may see a key, without the extra keys (bias_k, zero key).

    Shape: returns (batch, heads, queries, keys).
    """
    problem: MultiheadProblem = case.problem
    shape = (problem.sequences, problem.num_heads, problem.queries, problem.keys)
    mask = compute_logits_mask(problem, inputs)
    if mask is None:
        return inputs.tensors["query"].new_ones(shape, dtype=torch.bool)
    return (mask != -math.inf)[..., : problem.keys].expand(shape)


def find_hidden_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Return masks of the fully masked rows of output and weights; an empty dict without such rows or without keys.

    An output element mixes all heads, so an output row counts as fully masked if the row of any head is fully masked.

    Shape: broadcastable to output and to weights.
    """
    problem: MultiheadProblem = case.problem
    mask = compute_logits_mask(problem, inputs)
    if mask is None or problem.columns == 0:
        return {}
    batch = problem.sequences
    rows = (mask == -math.inf).all(dim=-1)  # broadcastable to (batch, heads, queries)
    if not rows.any():
        return {}
    return _to_output_layout(problem, rows.expand(batch, problem.num_heads, problem.queries))


def declare_hidden_rows(choices: Choices, fault: Steps | None = None) -> Steps:
    """Return the steps of the formula with the mistake ``fault``, and fully masked rows as ``choices`` declare them.

    If ``fault`` replaces the softmax, ``fault`` also determines the fully masked rows, and ``choices`` have no effect.
    """
    steps = fault or CORRECT_STEPS
    if steps.normalise is not CORRECT_STEPS.normalise:
        return steps
    rule = RowRule(weights=choices.hidden_rows, gradients=choices.hidden_row_gradients)
    return replace(steps, normalise=partial(fill_hidden_rows, rule))


def find_padded_rows(case: Case, inputs: Inputs) -> dict[str, Tensor]:
    """Return masks of the rows of padded queries in output and weights, or an empty dict if no query can be padded.

    If query and key are one tensor, the keys that key_padding_mask hides are also the padded queries. Otherwise no
    query is padded.

    Shape: broadcastable to output and to weights.
    """
    problem: MultiheadProblem = case.problem
    mask = inputs.tensors.get("key_padding_mask")
    if mask is None or not problem.shares_queries:
        return {}
    padded = mask.detach() if mask.dtype == torch.bool else mask.detach() == -math.inf
    rows = padded.reshape(problem.sequences, 1, problem.keys)
    return _to_output_layout(problem, rows.expand(-1, problem.num_heads, -1))


def _to_output_layout(problem: MultiheadProblem, rows: Tensor) -> dict[str, Tensor]:
    """Convert a mask of rows to two masks: ``output`` for the rows of the output, ``weights`` for those of the weights.

    Shape: rows (batch, heads, queries); returns masks broadcastable to output and to weights.
    """
    in_any_head = rows.any(dim=1)  # (batch, queries)
    weights = in_any_head if problem.average_attn_weights else rows
    if problem.batch is None:
        return {"output": in_any_head[0, :, None], "weights": weights[0, ..., None]}
    output = in_any_head if problem.batch_first else in_any_head.T
    return {"output": output[..., None], "weights": weights[..., None]}
