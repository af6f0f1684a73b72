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
from typing import Any

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.interface import Inputs
from attnbench.operators.multihead.problem import MultiheadProblem

__all__ = ["Noise", "evaluate", "logits_mask"]


class Noise:
    """Rounding as a model: relative noise, uniform in ±``roundoff``, on a value and on the gradient that comes back."""

    def __init__(self, roundoff: float, seed: int) -> None:
        self.roundoff = roundoff
        self.generator = torch.Generator().manual_seed(seed)

    def on(self, tensor: Tensor) -> Tensor:
        """Tensor with each element off by its own relative error."""
        errors = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        return tensor * (1 + self.roundoff * (2 * errors - 1))

    def __call__(self, tensor: Tensor) -> Tensor:
        """Noisy identity, forward and backward."""
        return _NoisyIdentity.apply(tensor, self)  # type: ignore[no-any-return, no-untyped-call]


class _NoisyIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        return noise.on(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.noise.on(gradients[0]), None


class _NoisySoftmax(torch.autograd.Function):
    """Softmax whose backward is rounded as fused kernels round it: dS = P (dP − δ), with noise on dP and on δ.

    Source: Dao 2023, https://arxiv.org/abs/2307.08691, algorithm 2.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, noise: Noise) -> Tensor:
        ctx.noise = noise
        probabilities = noise.on(_softmax(logits))
        ctx.save_for_backward(probabilities)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (probabilities,) = ctx.saved_tensors
        noise = ctx.noise
        delta = (probabilities * gradients[0]).sum(dim=-1, keepdim=True)
        return noise.on(probabilities * (noise.on(gradients[0]) - noise.on(delta))), None


def evaluate(
    case: Case, inputs: Inputs, *, noise: Noise | None = None, keep: Tensor | None = None
) -> dict[str, Tensor]:
    """Quantities by name: output, weights if asked for, and gradients (``grad.<name>``) unless in inference.

    ``keep`` is a dropout mask, true where a weight was kept.

    Shape: keep (batch, heads, queries, columns).
    """
    problem: MultiheadProblem = case.problem
    gradients = case.mode != "inference"
    leaves, inputs = _leaves(inputs) if gradients else ({}, inputs)
    output, weights = _attention(problem, inputs, noise, keep)
    quantities = {"output": output} | ({"weights": weights} if problem.need_weights else {})
    if gradients:
        loss = sum(
            ((value * inputs.cotangents[name]).sum() for name, value in quantities.items()), output.new_zeros(())
        )
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        quantities |= {
            f"grad.{name}": noise.on(gradient) if noise else gradient
            for name, gradient in zip(leaves, found, strict=True)
        }
    return {name: value.detach() for name, value in quantities.items()}


def _leaves(inputs: Inputs) -> tuple[dict[str, Tensor], Inputs]:
    """Inputs whose floating tensors require gradients, and those tensors by name, each once."""
    tracked = inputs.mapped(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()))
    leaves: dict[str, Tensor] = {}
    for name, tensor in (tracked.tensors | tracked.parameters).items():
        if tensor.requires_grad and not any(tensor is known for known in leaves.values()):
            leaves[name] = tensor
    return leaves, tracked


def _attention(
    problem: MultiheadProblem, inputs: Inputs, noise: Noise | None, keep: Tensor | None
) -> tuple[Tensor, Tensor]:
    rounded = noise or (lambda tensor: tensor)
    tokens = [_batch_first(problem, inputs.tensors[name]) for name in ("query", "key", "value")]
    q, k, v = (
        _heads(problem, rounded(tensor @ weight.mT + bias))
        for tensor, (weight, bias) in zip(tokens, _projections(problem, inputs), strict=True)
    )  # (batch, heads, length, head_dim)
    k, v = _with_columns(problem, inputs, k, v)

    logits = rounded(rounded(q / math.sqrt(problem.head_dim)) @ k.mT)
    mask = logits_mask(problem, inputs)
    if mask is not None:
        logits = rounded(logits + mask)
    weights = _NoisySoftmax.apply(logits, noise) if noise else _softmax(logits)  # type: ignore[no-untyped-call]
    if keep is not None:
        weights = rounded(weights * keep / (1 - problem.dropout))

    merged = rounded(weights @ v).transpose(1, 2).flatten(2)  # (batch, queries, embed_dim)
    output = merged @ inputs.parameters["out_proj.weight"].mT
    if problem.bias:
        output = output + inputs.parameters["out_proj.bias"]
    output = rounded(output)
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


def _heads(problem: MultiheadProblem, features: Tensor) -> Tensor:
    return torch.unflatten(features, -1, (problem.num_heads, problem.head_dim)).transpose(1, 2)


def _projections(problem: MultiheadProblem, inputs: Inputs) -> list[tuple[Tensor, Tensor | float]]:
    """Weight and bias of queries, keys and values."""
    parameters = inputs.parameters
    if "in_proj_weight" in parameters:
        weights = parameters["in_proj_weight"].chunk(3)
    else:
        weights = tuple(parameters[f"{name}_proj_weight"] for name in "qkv")
    biases: tuple[Tensor | float, ...] = parameters["in_proj_bias"].chunk(3) if problem.bias else (0.0, 0.0, 0.0)
    return list(zip(weights, biases, strict=True))


def _with_columns(problem: MultiheadProblem, inputs: Inputs, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    batch = k.shape[0]
    if problem.add_bias_kv:
        columns = [_heads(problem, inputs.parameters[name].expand(batch, 1, -1)) for name in ("bias_k", "bias_v")]
        k, v = torch.cat([k, columns[0]], dim=2), torch.cat([v, columns[1]], dim=2)
    if problem.add_zero_attn:
        k, v = (torch.cat([t, torch.zeros_like(t[:, :, :1])], dim=2) for t in (k, v))
    return k, v


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
            mask = mask.reshape(problem.batch or 1, 1, 1, problem.keys)
        elif mask.dim() == 3:
            mask = mask.reshape(problem.batch or 1, problem.num_heads, problem.queries, problem.keys)
        total = mask if total is None else total + mask
    if total is not None and problem.columns > problem.keys:
        total = torch.nn.functional.pad(total, (0, problem.columns - problem.keys))
    return total


def _softmax(logits: Tensor) -> Tensor:
    """exp(x − max) / Σ, and 0 in a row whose logits are all minus infinity."""
    if logits.shape[-1] == 0:
        return logits
    largest = logits.detach().amax(dim=-1, keepdim=True)
    exponentials = (logits - largest.masked_fill(largest == -math.inf, 0.0)).exp()
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1.0)
