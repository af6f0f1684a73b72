"""The oracle: multi-head attention from its formula, and the same formula with rounding at every stage.

    q = x_q W_qᵀ + b_q,  k = x_k W_kᵀ + b_k,  v = x_v W_vᵀ + b_v            split into heads of width D
    k, v are followed by the learned column (bias_k, bias_v) and by a column of zeros, where the problem has them
    P = softmax over keys of (q / √D) kᵀ + mask
    weights = P, or P · keep / (1 − p) under dropout
    output = concat_heads(weights · v) W_oᵀ + b_o

A row from which every key is hidden has P = 0. It is written apart from every implementation, so that no mistake is
shared, and tested against ``torch.nn.MultiheadAttention`` in float64.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.problem import IDENTITY_REGIMES, MultiheadProblem
from attnbench.operators.quantities import quantities
from attnbench.operators.rounding import Noise, softmax, weighted_sum

__all__ = ["RIGHT", "Noise", "Steps", "evaluate", "logits_mask", "softmax"]


def logits_mask(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    """What the reference's masks add to the logits, broadcastable to (batch, heads, queries, columns)."""
    total: Tensor | None = None
    for name in ("attn_mask", "key_padding_mask"):
        mask = inputs.tensors.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            precision = inputs.parameters["out_proj.weight"].dtype
            mask = torch.zeros(mask.shape, dtype=precision).masked_fill(mask, -math.inf)
        if name == "key_padding_mask":
            mask = mask.reshape(problem.sequences, 1, 1, problem.keys)
        elif mask.dim() == 3:
            mask = mask.reshape(problem.sequences, problem.num_heads, problem.queries, problem.keys)
        total = mask if total is None else total + mask
    if total is not None and problem.columns > problem.keys:
        total = torch.nn.functional.pad(total, (0, problem.columns - problem.keys))
    return total


def _split(problem: MultiheadProblem, features: Tensor) -> Tensor:
    """(batch, length, embed_dim) to (batch, heads, length, head_dim)."""
    return torch.unflatten(features, -1, (problem.num_heads, problem.head_dim)).transpose(1, 2)


def _merge(heads: Tensor) -> Tensor:
    """(batch, heads, queries, head_dim) to (batch, queries, embed_dim)."""
    return heads.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of the formula that known mistakes replace; as they stand here they are right."""

    # Problem and inputs as they are used.
    receive: Callable[[MultiheadProblem, Inputs], tuple[MultiheadProblem, Inputs]] = lambda *given: given
    split: Callable[[MultiheadProblem, Tensor], Tensor] = _split
    mask: Callable[[MultiheadProblem, Inputs], Tensor | None] = logits_mask
    normalise: Callable[[Tensor, Noise | None], Tensor] = softmax
    merge: Callable[[Tensor], Tensor] = _merge


RIGHT = Steps()


def evaluate(
    case: Case, inputs: Inputs, *, noise: Noise | None = None, keep: Tensor | None = None, steps: Steps = RIGHT
) -> dict[str, Tensor]:
    """Quantities by name: output, weights if asked for, and gradients (``grad.<name>``) that the case takes.

    ``keep`` is a dropout mask, true where a weight was kept; gradients are by the inputs as they are given, whatever
    ``steps`` makes of them.

    Shape: keep broadcastable to (batch, heads, queries, columns).
    """
    problem: MultiheadProblem = case.problem

    def attended(given: Inputs) -> dict[str, Tensor]:
        output, weights = _attention(problem, given, noise, keep, steps)
        return {"output": output} | ({"weights": weights} if problem.need_weights else {})

    return quantities(case, inputs, attended, noise=noise)


def _attention(
    problem: MultiheadProblem, inputs: Inputs, noise: Noise | None, keep: Tensor | None, steps: Steps = RIGHT
) -> tuple[Tensor, Tensor]:
    def rounded(tensor: Tensor, terms: int = 0) -> Tensor:
        """As it is stored after a step, which is a sum of so many products."""
        return noise(noise.on_sum(tensor, terms)) if noise else tensor

    problem, inputs = steps.receive(problem, inputs)
    # A product with an identity adds nothing up.
    untouched = problem.regime in IDENTITY_REGIMES
    tokens = [_batch_first(problem, inputs.tensors[name]) for name in ("query", "key", "value")]
    q, k, v = (
        steps.split(problem, rounded(tensor @ weight.mT + bias, 0 if untouched else tensor.shape[-1]))
        for tensor, (weight, bias) in zip(tokens, _projections(problem, inputs), strict=True)
    )  # (batch, heads, length, head_dim)
    k, v = _with_columns(problem, inputs, k, v, steps)

    logits = rounded(rounded(q / math.sqrt(problem.head_dim)) @ k.mT, problem.head_dim)
    mask = steps.mask(problem, inputs)
    if mask is not None:
        logits = rounded(logits + mask)
    weights = steps.normalise(logits, noise)
    if keep is not None:
        weights = rounded(weights * keep / (1 - problem.dropout))

    heads = weighted_sum(weights, v, logits, noise)
    output = steps.merge(rounded(heads)) @ inputs.parameters["out_proj.weight"].mT
    if problem.bias:
        output = output + inputs.parameters["out_proj.bias"]
    output = rounded(output, 0 if untouched else problem.embed_dim)  # (batch, queries, embed_dim)
    if problem.average_attn_weights:
        weights = rounded(weights.mean(dim=1))
    if problem.batch is None:
        return output[0], weights[0]
    return (output if problem.batch_first else output.transpose(0, 1)), weights


def _batch_first(problem: MultiheadProblem, tensor: Tensor) -> Tensor:
    """Tokens as (batch, length, width)."""
    if problem.batch is None:
        return tensor[None]
    return tensor if problem.batch_first else tensor.transpose(0, 1)


def _projections(problem: MultiheadProblem, inputs: Inputs) -> list[tuple[Tensor, Tensor | float]]:
    """Weight and bias of queries, keys and values."""
    parameters = inputs.parameters
    if "in_proj_weight" in parameters:
        weights = parameters["in_proj_weight"].chunk(3)
    else:
        weights = tuple(parameters[f"{name}_proj_weight"] for name in "qkv")
    biases: tuple[Tensor | float, ...] = parameters["in_proj_bias"].chunk(3) if problem.bias else (0.0, 0.0, 0.0)
    return list(zip(weights, biases, strict=True))


def _with_columns(
    problem: MultiheadProblem, inputs: Inputs, k: Tensor, v: Tensor, steps: Steps
) -> tuple[Tensor, Tensor]:
    batch = k.shape[0]
    if problem.add_bias_kv:
        learned = (inputs.parameters[name].expand(batch, 1, -1) for name in ("bias_k", "bias_v"))
        k, v = (torch.cat([t, steps.split(problem, column)], dim=2) for t, column in zip((k, v), learned, strict=True))
    if problem.add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(*t.shape[:2], 1, t.shape[-1])], dim=2) for t in (k, v))
    return k, v
