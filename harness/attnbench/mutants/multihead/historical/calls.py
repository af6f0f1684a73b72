"""Bugs of dropout, scale, projections, and of what a call does to its arguments."""

import math

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "dropout_is_told_by_weights",
    "dropout acts on the sum over values, not on the weights (nikhilbarhate99/min-decision-transformer#2)",
    dropout=0.25,
    need_weights=True,
    mode="train",
)
class _DropoutOfSum(Formula):
    def apply_dropout(self, shares: Tensor) -> Tensor:
        return shares

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.dropout(super().sum_values(weights, v), self.dropout, train=self.training)


@mutant(
    "forward_parity", "the scale is applied to the queries and again in the kernel (huggingface/transformers#38290)"
)
class _ScaleTwice(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) / math.sqrt(self.head_dim)


@mutant(
    "exact_large_logits",
    "in float16, the product of queries and keys is scaled after it has overflowed (ultralytics/ultralytics#24990)",
    embed_dim=48,
    bias=False,
    regime="overflow",
    dtype="float16",
    mode="train",
)
class _ScaledAfterProduct(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if q.dtype != torch.float16:
            return super().score(q, k)
        return (q @ k.mT) / math.sqrt(self.head_dim)


@mutant(
    "forward_parity",
    "input weights are applied without their transpose, unseen by shape checks if square (rasbt/LLMs-from-scratch#857)",
)
class _InputWeightsTransposed(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is None:
            return super().project(query, key, value)
        weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        tokens = (query, key, value)
        q, k, v = (self.split(linear(x, w.T, b)) for x, w, b in zip(tokens, weights, biases, strict=True))
        return q, k, v


@mutant(
    "inputs_untouched",
    "the mean of the keys is subtracted in place, in the caller's tensor (Comfy-Org/ComfyUI#16035)",
    mode="inference",
)
class _KeysCentredInPlace(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and key.shape[1]:
            # A mean that all keys have in common shifts all logits of a row alike, so the output stays right.
            key.sub_(key.mean(dim=1, keepdim=True))
        return q, k, v


@mutant(
    "bad_shapes_are_refused",
    "the number of keys is that of value: if value is longer, memory past the end of key is read (pytorch#193728)",
)
class _KeyCountOfValues(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        key, value = given["key"], given["value"]
        if key.dim() != value.dim() or key.dim() not in (2, 3):
            return given
        axis = 1 if self.batch_first and key.dim() == 3 else 0
        missing = value.shape[axis] - key.shape[axis]
        # The memory behind the keys has unknown contents; here it contains 0.
        behind = (0, 0, 0, missing) if axis == key.dim() - 2 else (0, 0, 0, 0, 0, missing)
        return given | {"key": pad(key, behind)} if missing else given
