"""Mutants of the formula: scale, softmax, projections and the order of heads."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnbench.mutants.multihead.decorator import PROBED, MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("forward_parity", "the fall-back path for calls without a mask lacks the scale 1/√D (mlc-ai/mlc-llm#3426)")
class _ScaleMissing(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        return super().attend(q * math.sqrt(self.head_dim) if mask is None else q, k, v, mask=mask, **named)


@mutant("forward_parity", "the scale is 1/√E (embed_dim) instead of 1/√(E/H) (head_dim) (juho-lee/set_transformer#18)")
class _ScaleOfTheModel(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q / math.sqrt(self.embed_dim)) @ k.mT


@mutant(
    "effective_scale",
    "a hand-rounded scale is 1 % too large: no single element exceeds its allowed error",
    **PROBED,
    dtype="bfloat16",
)
class _ScaleOffByOnePercent(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(1.01 * q, k)


@mutant("effective_scale", "the scale is rounded to bfloat16", **PROBED, dtype="float16")
class _ScaleRounded(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * float(torch.tensor(1 / math.sqrt(self.head_dim), dtype=torch.bfloat16))) @ k.mT


@mutant("forward_parity", "1/√D is folded into the query weight, but not into the query bias")
class _ScaleSkipsBias(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            bias = self.split(self.in_proj_bias.chunk(3)[0][None, None]).to(q.dtype)
            q = q + (math.sqrt(self.head_dim) - 1) * bias
        return q, k, v


@mutant("forward_parity", "softmax uses exp(−x) instead of exp(x) (AI-Hypercomputer/maxtext#1370)")
class _ExponentNegative(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return -super().score(q, k)


@mutant("forward_parity", "in half precision, eˣ is computed as 2ˣ, without the factor log₂ e on x", dtype="float16")
class _ExponentOfTwo(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        half = logits.dtype in (torch.float16, torch.bfloat16)
        return super().normalise(logits * math.log(2) if half else logits)


@mutant(
    "forward_parity",
    "softmax runs over queries instead of keys; training still reached the same loss "
    "(labmlai/annotated_deep_learning_paper_implementations#146)",
)
class _SoftmaxOverQueries(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-2).nan_to_num()


@mutant(
    "forward_parity",
    "softmax runs over heads: dim=1 was right in an older version with three-dimensional logits (FudanNLP/fastNLP#254)",
)
class _SoftmaxOverHeads(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=1).nan_to_num()


@mutant(
    "weights_are_shares", "an epsilon against division by zero is added to the softmax denominator", need_weights=True
)
class _DenominatorWithEpsilon(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits) / (1 + 2.0**-10)


@mutant(
    "exact_selection",
    "label smoothing was left in: each weight is moved slightly towards the mean of its row",
    dtype="bfloat16",
    bias=False,
    regime="selection",
    mask="bool3d",
)
class _WeightsSmoothed(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        return shares + 2.0**-9 * (shares.mean(dim=-1, keepdim=True) - shares)


@mutant("forward_parity", "heads are merged by a view without the transpose (jsbaan/transformer-from-scratch#6)")
class _HeadsMergedByView(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        batch, _, queries, _ = heads.shape
        return super().merge(heads.reshape(batch, queries, self.num_heads, self.head_dim).transpose(1, 2))


@mutant("forward_parity", "heads are split by a view without the transpose (reczoo/FuxiCTR#30)")
class _HeadsSplitByView(Formula):
    def split(self, features: Tensor) -> Tensor:
        return features.reshape(features.shape[0], self.num_heads, features.shape[1], self.head_dim)


@mutant("forward_parity", "heads are split by the einops pattern '(d h)' instead of '(h d)'")
class _HeadsInterleaved(Formula):
    def split(self, features: Tensor) -> Tensor:
        return torch.unflatten(features, -1, (self.head_dim, self.num_heads)).permute(0, 3, 1, 2)


@mutant(
    "forward_parity", "a (heads, batch) layout is read as (batch, heads) when heads are merged (chelsea0x3b/dfdx#158)"
)
class _HeadsOfAnotherSequence(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        shape = heads.shape
        return super().merge(heads.transpose(0, 1).reshape(shape))


@mutant(
    "forward_parity",
    "for batch_first=False, a view replaces the transpose and mixes tokens (Modalities/modalities#115)",
    batch_first=False,
)
class _SequenceFirstByView(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.batch_first or output.dim() == 2:
            return output, weights
        return output.transpose(0, 1).reshape(output.shape), weights


@mutant("forward_parity", "the square output weight is applied without its transpose")
class _OutputWeightTransposed(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight.T, self.out_proj.bias)


@mutant(
    "forward_parity",
    "key and value are swapped before their projections; no effect if key and value are one tensor",
)
class _ValueWeightForKeys(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().project(query, *((key, value) if key.shape != value.shape else (value, key)))


@mutant(
    "forward_parity",
    "the value bias is missing; no effect in a newly created module, where biases are 0",
)
class _ValueBiasMissing(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            v = v - self.split(self.in_proj_bias.chunk(3)[2][None, None])
        return q, k, v


@mutant("forward_parity", "the constructor's argument bias is not passed on to the output projection")
class _OutputBiasMissing(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        return linear(heads.transpose(1, 2).flatten(2), self.out_proj.weight)


@mutant("forward_parity", "the separate projections that kdim and vdim need lack the bias", kdim=10, vdim=14)
class _SeparateWithoutBias(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is not None:
            return super().project(query, key, value)
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        q, k, v = (self.split(linear(x, w)) for x, w in zip((query, key, value), weights, strict=True))
        return q, k, v


@mutant(
    "exact_uniform_mean",
    "values are scaled by 1.005, an error of the size of bfloat16's rounding",
    dtype="bfloat16",
    bias=False,
    regime="uniform",
    keys=8,
)
class _ValuesScaled(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().sum_values(weights, v * 1.005)
