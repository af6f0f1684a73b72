"""Mutants with the mistakes of learners: a step of the formula is left out, moved, or exchanged with another."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.mutant import MutantList
from attnbench.mutants.softmax import make_finite
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")


@mutant("forward_parity", "the kernel has no softmax: its output is the product of logits and values")
class _SoftmaxMissing(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        return logits


@mutant("forward_parity", "the kernel multiplies exp(x) by the values, without the division by the sum")
class _ExponentialsUndivided(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        return logits.exp()


@mutant("forward_parity", "the kernel multiplies exp(x − max) by the values, without the division by the sum")
class _StableExponentialsUndivided(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        return (logits - make_finite(logits.amax(dim=-1, keepdim=True))).exp() if logits.shape[-1] else logits


@mutant("forward_parity", "the scale is applied to the weights instead of the logits")
class _ScaledAfterSoftmax(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.scale = scale
        return query @ key.mT

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits) * self.scale


@mutant(
    "unseen_keys_cannot_leak",
    "hidden keys get the weight 0 after the softmax, which the other weights do not make up for",
    mask="causal_br",
    mode="inference",
)
class _WeightsHiddenAfterSoftmax(CoreFormula):
    def apply_mask(self, logits: Tensor, keep: Tensor) -> Tensor:
        self.keep = keep
        return logits

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits).masked_fill(~self.keep, 0.0)


@mutant("forward_parity", "the bias is added to the attention weights, after the softmax", mask="bias4d")
class _BiasAfterSoftmax(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        self.bias = bias
        return super().add_bias(logits, None, slopes, distance)

    def normalise(self, logits: Tensor) -> Tensor:
        weights = super().normalise(logits)
        return weights if self.bias is None else weights + self.bias


@mutant("forward_parity", "keys and values of equal shapes are passed in the wrong order")
class _KeysAndValuesSwapped(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        first, second = (key, value) if key.shape != value.shape else (value, key)
        return super().forward(query, first, second, **named)


@mutant(
    "forward_parity",
    "queries and keys of equal shapes are passed in the wrong order: softmax(k qᵀ) v",
    mask="causal_br+window",
    queries=7,
    window=7,
)
class _QueriesAndKeysSwapped(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        first, second = (query, key) if query.shape != key.shape else (key, query)
        return super().forward(first, second, value, **named)
