"""Correct variants of attention on split heads. They round differently from the reference and must pass every check."""

import math

import torch
from torch import Tensor

from attnbench.interface import Implementation, Policies
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.mutants.softmax import divide_by_sum, find_maximum, widen

__all__ = ["VARIANTS"]


class _CoreScaleAfter(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return (query @ key.mT) * scale


class _CoreScaleOnKeys(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return query @ (key * scale).mT


class _CoreSoftmaxInSingle(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(widen(logits)).to(logits.dtype)


class _CoreExponentOfTwo(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        scaled = widen(logits) * math.log2(math.e)
        if scaled.shape[-1] == 0:
            return logits
        return divide_by_sum(torch.exp2(scaled - find_maximum(scaled))).to(logits.dtype)


class _CoreGroupedProduct(CoreFormula):
    """All queries that share a key head are rows of one matrix product, so that keys and values are never copied."""

    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        del heads
        return tensor

    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        groups = torch.unflatten(query, 1, (key.shape[1], query.shape[1] // key.shape[1]))
        return (groups.flatten(2, 3) * scale @ key.mT).reshape(*query.shape[:3], key.shape[2])

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        groups = torch.unflatten(weights, 1, (value.shape[1], weights.shape[1] // value.shape[1]))
        return (groups.flatten(2, 3) @ value).reshape(*weights.shape[:3], value.shape[3])


# All variants declare second derivatives, because each of their steps is a differentiable function of torch.
VARIANTS: tuple[Implementation, ...] = tuple(
    ModuleImplementation(module, operator="attention_core", policies=Policies(twice_differentiable=True))
    for module in (_CoreScaleAfter, _CoreScaleOnKeys, _CoreSoftmaxInSingle, _CoreExponentOfTwo, _CoreGroupedProduct)
)
