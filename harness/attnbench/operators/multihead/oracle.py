"""The oracle: the formula of multi-head attention, and the same formula with rounding noise at every step.

    q = x_q W_qᵀ + b_q,  k = x_k W_kᵀ + b_k,  v = x_v W_vᵀ + b_v            split into heads of width D
    k and v get one extra key (bias_k, bias_v) with add_bias_kv, and one extra key of zeros with add_zero_attn
    P = softmax over keys of (q / √D) kᵀ + mask
    weights = P, or P · keep / (1 − p) with a dropout mask keep and a dropout probability p
    output = concat_heads(weights · v) W_oᵀ + b_o

A fully masked row has P = 0. The oracle shares no code with any implementation, because checks would not detect a
mistake in shared code. The tests compare the oracle with ``torch.nn.MultiheadAttention`` in float64.

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
from attnbench.operators.quantities import compute_quantities
from attnbench.operators.rounding import Noise, softmax, weighted_sum

__all__ = ["CORRECT_STEPS", "Noise", "Steps", "compute_logits_mask", "evaluate", "softmax"]


def compute_logits_mask(problem: MultiheadProblem, inputs: Inputs) -> Tensor | None:
    """Compute what attn_mask and key_padding_mask add to the logits, or None if there is no mask.

    Shape: returns a tensor broadcastable to (batch, heads, queries, columns); columns are the given and the extra keys.
    """
    total: Tensor | None = None
    for name in ("attn_mask", "key_padding_mask"):
        mask = inputs.tensors.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            precision = inputs.parameters["out_proj.weight"].dtype
            mask = torch.zeros(mask.shape, dtype=precision, device=mask.device).masked_fill(mask, -math.inf)
        if name == "key_padding_mask":
            mask = mask.reshape(problem.sequences, 1, 1, problem.keys)
        elif mask.dim() == 3:
            mask = mask.reshape(problem.sequences, problem.num_heads, problem.queries, problem.keys)
        total = mask if total is None else total + mask
    if total is not None and problem.columns > problem.keys:
        total = torch.nn.functional.pad(total, (0, problem.columns - problem.keys))
    return total


def _split(problem: MultiheadProblem, features: Tensor) -> Tensor:
    """Split (batch, length, embed_dim) into (batch, heads, length, head_dim)."""
    return torch.unflatten(features, -1, (problem.num_heads, problem.head_dim)).transpose(1, 2)


def _merge(heads: Tensor) -> Tensor:
    """Merge (batch, heads, queries, head_dim) into (batch, queries, embed_dim)."""
    return heads.transpose(1, 2).flatten(2)


def _drop(weights: Tensor, keep: Tensor, rate: float) -> Tensor:
    return weights * keep / (1 - rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of the formula that fault models replace; the defaults compute the correct formula."""

    # Changes the problem and the inputs before the formula is evaluated.
    receive: Callable[[MultiheadProblem, Inputs], tuple[MultiheadProblem, Inputs]] = lambda *given: given
    split: Callable[[MultiheadProblem, Tensor], Tensor] = _split
    mask: Callable[[MultiheadProblem, Inputs], Tensor | None] = compute_logits_mask
    # Applies to the logits what ``mask`` returns.
    apply_mask: Callable[[Tensor, Tensor], Tensor] = torch.add
    normalise: Callable[[Tensor, Noise | None], Tensor] = softmax
    # Changes the weights before dropout. The problem and the inputs are those of the call, not those of ``receive``.
    reweigh: Callable[[MultiheadProblem, Inputs, Tensor], Tensor] = lambda _problem, _inputs, weights: weights
    # Applies a dropout mask to the weights.
    drop: Callable[[Tensor, Tensor, float], Tensor] = _drop
    merge: Callable[[Tensor], Tensor] = _merge
    # Changes the output; the other argument is the query. Shape: both (batch, queries, embed_dim).
    finish: Callable[[Tensor, Tensor], Tensor] = lambda output, _query: output


CORRECT_STEPS = Steps()


def evaluate(
    case: Case, inputs: Inputs, *, noise: Noise | None = None, keep: Tensor | None = None, steps: Steps = CORRECT_STEPS
) -> dict[str, Tensor]:
    """Compute the quantities: ``output``, ``weights`` if needed, and ``grad.<name>`` if the case takes gradients.

    ``keep`` is a dropout mask, true where a weight was kept. Gradients are with respect to ``inputs``, even if
    ``steps`` changes the inputs of the formula.

    Shape: keep is broadcastable to (batch, heads, queries, columns); columns are the given and the extra keys.
    """
    problem: MultiheadProblem = case.problem

    def compute_outputs(given: Inputs) -> dict[str, Tensor]:
        output, weights = _attend(problem, given, noise, keep, steps)
        return {"output": output} | ({"weights": weights} if problem.need_weights else {})

    return compute_quantities(case, inputs, compute_outputs, noise=noise)


def _attend(
    problem: MultiheadProblem, inputs: Inputs, noise: Noise | None, keep: Tensor | None, steps: Steps = CORRECT_STEPS
) -> tuple[Tensor, Tensor]:
    def rounded(tensor: Tensor, terms: int = 0) -> Tensor:
        """Return the result of a step; if ``noise`` is given, with rounding noise.

        The noise includes the accumulation error of a sum of ``terms`` products; 0 means that there is none.
        """
        return noise(noise.perturb_sum(tensor, terms)) if noise else tensor

    called = problem, inputs
    problem, inputs = steps.receive(*called)
    # In a product with an identity or permutation matrix, only one term of each sum is not 0. Such a product has no
    # accumulation error.
    exact_projections = problem.regime in IDENTITY_REGIMES
    tokens = [_to_batch_first(problem, inputs.tensors[name]) for name in ("query", "key", "value")]
    q, k, v = (
        steps.split(problem, rounded(tensor @ weight.mT + bias, 0 if exact_projections else tensor.shape[-1]))
        for tensor, (weight, bias) in zip(tokens, _get_projections(problem, inputs), strict=True)
    )  # (batch, heads, length, head_dim)
    k, v = _append_columns(problem, inputs, k, v, steps)

    logits = rounded(rounded(q / math.sqrt(problem.head_dim)) @ k.mT, problem.head_dim)
    mask = steps.mask(problem, inputs)
    if mask is not None:
        logits = rounded(steps.apply_mask(logits, mask))
    weights = steps.reweigh(*called, steps.normalise(logits, noise))
    if keep is not None:
        weights = rounded(steps.drop(weights, keep, problem.dropout))

    heads = weighted_sum(weights, v, logits, noise)
    output = steps.merge(rounded(heads)) @ inputs.parameters["out_proj.weight"].mT
    if problem.bias:
        output = output + inputs.parameters["out_proj.bias"]
    output = rounded(output, 0 if exact_projections else problem.embed_dim)  # (batch, queries, embed_dim)
    output = steps.finish(output, tokens[0])
    if problem.average_attn_weights:
        weights = rounded(weights.mean(dim=1))
    if problem.batch is None:
        return output[0], weights[0]
    return (output if problem.batch_first else output.transpose(0, 1)), weights


def _to_batch_first(problem: MultiheadProblem, tensor: Tensor) -> Tensor:
    """Return tokens as (batch, length, width)."""
    if problem.batch is None:
        return tensor[None]
    return tensor if problem.batch_first else tensor.transpose(0, 1)


def _get_projections(problem: MultiheadProblem, inputs: Inputs) -> list[tuple[Tensor, Tensor | float]]:
    """Return the weights and biases of the query, key and value projections."""
    parameters = inputs.parameters
    if "in_proj_weight" in parameters:
        weights = parameters["in_proj_weight"].chunk(3)
    else:
        weights = tuple(parameters[f"{name}_proj_weight"] for name in "qkv")
    biases: tuple[Tensor | float, ...] = parameters["in_proj_bias"].chunk(3) if problem.bias else (0.0, 0.0, 0.0)
    return list(zip(weights, biases, strict=True))


def _append_columns(
    problem: MultiheadProblem, inputs: Inputs, k: Tensor, v: Tensor, steps: Steps
) -> tuple[Tensor, Tensor]:
    batch = k.shape[0]
    if problem.add_bias_kv:
        learned = (inputs.parameters[name].expand(batch, 1, -1) for name in ("bias_k", "bias_v"))
        k, v = (torch.cat([t, steps.split(problem, column)], dim=2) for t, column in zip((k, v), learned, strict=True))
    if problem.add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(*t.shape[:2], 1, t.shape[-1])], dim=2) for t in (k, v))
    return k, v
