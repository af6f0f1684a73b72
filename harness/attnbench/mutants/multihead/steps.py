"""Mutants with the mistakes of learners: a step of the formula is left out, moved, exchanged with another, or added."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.softmax import make_finite

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("forward_parity", "the softmax is forgotten: the logits are the weights of the values")
class _SoftmaxMissing(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return logits


@mutant("forward_parity", "the weights are exp(x), and not divided by their sum")
class _ExponentialsUndivided(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return logits.exp()


@mutant("forward_parity", "the weights are exp(x − max), and not divided by their sum")
class _StableExponentialsUndivided(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return (logits - make_finite(logits.amax(dim=-1, keepdim=True))).exp() if logits.shape[-1] else logits


@mutant("forward_parity", "the scale 1/√D multiplies the attention weights instead of the logits")
class _ScaledAfterSoftmax(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits) / math.sqrt(self.head_dim)


class _Late(Formula):
    """Base of mutants that apply a mask to the attention weights, after the softmax."""

    def compute_shares(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        return self.apply_mask(self.normalise(self.score(q, k)), mask)


@mutant(
    "attn_mask_cannot_leak",
    "hidden weights are set to 0 after the softmax, and the others are not divided by their sum again",
    mask="bool2d",
)
class _WeightsHiddenAfterSoftmax(_Late):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits.masked_fill(~mask, 0.0)


@mutant(
    "forward_parity",
    "a float mask is added to the attention weights, after the softmax",
    mask="floatnegative2d",
    mode="inference",
)
class _FloatMaskAfterSoftmax(_Late):
    pass


@mutant("forward_parity", "after the projections, keys and values are exchanged: softmax(q vᵀ / √D) k")
class _KeysAndValuesSwapped(Formula):
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = super().extend(k, v)
        return v, k


class _Packed(Formula):
    """Base of mutants that read the parts of ``in_proj_weight`` in the wrong order ``order``."""

    order = (0, 1, 2)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is None:
            return super().project(query, key, value)
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            self.split(linear(tokens, weights[part], biases[part]))
            for tokens, part in zip((query, key, value), self.order, strict=True)
        )
        return q, k, v


@mutant("forward_parity", "the packed weight is read as keys, queries, values instead of queries, keys, values")
class _PackedKeysFirst(_Packed):
    order = (1, 0, 2)


@mutant("forward_parity", "the packed weight is read as queries, values, keys instead of queries, keys, values")
class _PackedValuesSecond(_Packed):
    order = (0, 2, 1)


@mutant("forward_parity", "the concatenated heads are returned without the output projection")
class _OutputProjectionMissing(Formula):
    def project_back(self, features: Tensor) -> Tensor:
        return features


class _Block(Formula):
    """Base of mutants that compute more of a transformer block than the attention, by the method ``finish``."""

    def finish(self, output: Tensor, query: Tensor) -> Tensor:
        raise NotImplementedError

    def attention(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        output, weights = super().attention(query, key, value, **named)
        return self.finish(output, query), weights


@mutant("forward_parity", "the residual connection of the block is inside the module: the query is added")
class _QueryAdded(_Block):
    def finish(self, output: Tensor, query: Tensor) -> Tensor:
        return output + query


@mutant("forward_parity", "the LayerNorm of the block is inside the module, without the residual connection")
class _OutputNormalised(_Block):
    def finish(self, output: Tensor, query: Tensor) -> Tensor:  # noqa: ARG002  # the argument of the base class
        return layer_norm(output, output.shape[-1:])


@mutant("forward_parity", "the residual connection and the LayerNorm of the block are inside the module")
class _QueryAddedAndNormalised(_Block):
    def finish(self, output: Tensor, query: Tensor) -> Tensor:
        return layer_norm(output + query, output.shape[-1:])


@mutant(
    "dropout_is_unbiased",
    "dropout acts on the logits, before the softmax: a dropped logit is 0, and keeps a weight",
    dropout=0.25,
    mode="train",
)
class _LogitsDropped(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.dropout(super().score(q, k), self.dropout, train=self.training)

    def apply_dropout(self, shares: Tensor) -> Tensor:
        return shares
