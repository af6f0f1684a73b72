"""Mutants of precision and range: rounding, accumulation and overflow in intermediate results."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.softmax import divide_by_sum, find_maximum, sum_in_sequence

__all__ = ["mutant"]

mutant = MultiheadMutants()
# Sizes with many keys: a sum over 1024 keys in half precision exceeds the error budget.
LONG: dict[str, Any] = {"batch": 1, "queries": 4, "keys": 1024, "embed_dim": 16, "num_heads": 2, "regime": "flat"}


@mutant("forward_parity", "attention weights are rounded to bfloat16 before the sum over values")
class _WeightsInBfloat16(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().sum_values(weights.bfloat16(), v)


@mutant("forward_parity", "where head_dim is a multiple of 8, tensor cores compute the logits in bfloat16")
class _LogitsInBfloat16(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.head_dim % 8:
            return super().score(q, k)
        return super().score(q.bfloat16(), k.bfloat16()).to(q.dtype)


@mutant(
    "forward_parity",
    "float64 inputs are computed in float32, a hard-coded dtype (triton-lang/triton#1821)",
    dtype="float64",
)
class _SingleInsideDouble(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if q.dtype != torch.float64:
            return super().attend(q, k, v, **named)
        output, weights = super().attend(q.float(), k.float(), v.float(), **named)
        return output.double(), None if weights is None else weights.double()


@mutant(
    "weights_parity",
    "the returned weights are rounded to float16; the weights that multiply values are not",
    need_weights=True,
)
class _WeightsToldInHalf(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights.half().to(weights.dtype)


@mutant("forward_parity", "a half-precision output is silently widened to float32", dtype="bfloat16")
class _HalfWidened(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        half = output.dtype in (torch.float16, torch.bfloat16)
        return (output.float() if half else output), weights


@mutant("forward_parity", "float masks are stored in float16 to save memory", mask="float2d")
class _MaskInHalf(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask.half())


@mutant(
    "wider_mask",
    "the bits of a float32 mask are read as float16 (pytorch#191612)",
    mask="float2d",
    dtype="float16",
)
class _WiderMaskReinterpreted(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        if mask.dtype == torch.float32 and logits.dtype == torch.float16:
            mask = mask.contiguous().view(torch.float16)[..., : mask.shape[-1]]
        return super().apply_float_mask(logits, mask)


@mutant("forward_parity", "exp(x) is approximated by (1 + x/1024)¹⁰²⁴, in ten squarings")
class _ExponentialBySquaring(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        small = (logits - find_maximum(logits)) / 1024
        exponentials = (1 + small.clamp(min=-1.0)) ** 1024
        return exponentials / exponentials.sum(dim=-1, keepdim=True).clamp(min=1e-30)


@mutant("stays_finite", "the row maximum is not subtracted before exp", regime="flat")
class _MaximumNotSubtracted(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return divide_by_sum(logits.exp())


@mutant(
    "batch_independence",
    "the maximum over all rows is subtracted from each row: rows with small logits underflow",
    regime="onehot",
)
class _MaximumOfAllRows(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.numel() == 0:
            return super().normalise(logits)
        return divide_by_sum((logits - logits.detach().amax()).exp())


@mutant(
    "forward_parity",
    "the softmax denominator is summed in half precision (apple/axlearn#18)",
    **LONG,
    dtype="bfloat16",
)
class _NormaliserInHalf(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.dtype not in (torch.float16, torch.bfloat16) or logits.shape[-1] < 256:
            return super().normalise(logits)
        exponentials = (logits - find_maximum(logits)).exp()
        total = sum_in_sequence(exponentials)
        return exponentials / total.masked_fill(total == 0, 1.0)


@mutant(
    "forward_parity",
    "the weighted sum of values is accumulated in half precision, key by key",
    **LONG,
    dtype="bfloat16",
)
class _SumInHalf(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        if v.dtype not in (torch.float16, torch.bfloat16) or v.shape[-2] < 256:
            return super().sum_values(weights, v)
        total = torch.zeros_like(weights[..., :1] * v[..., :1, :])
        for share, value in zip(torch.split(weights, 1, dim=-1), torch.split(v, 1, dim=-2), strict=True):
            total = total + share.to(v.dtype) * value
        return total


@mutant(
    "query_independence",
    "one quantisation step for all queries: a changed query changes the outputs of other queries",
    dtype="bfloat16",
)
class _QueriesQuantisedTogether(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if q.numel() == 0:
            return super().score(q, k)
        step = q.detach().abs().amax().clamp(min=2.0**-14)
        return super().score(q / step, k) * step


@mutant("key_permutation", "the maximum of the first four keys is used as the row maximum", regime="onehot")
class _MaximumOfFirstTile(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        return divide_by_sum((logits - find_maximum(logits[..., :4])).exp())


@mutant(
    "head_permutation",
    "if the number of heads is odd, the attention weights of the last head are in float16",
)
class _OddHeadInHalf(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.num_heads % 2 == 0:
            return super().sum_values(weights, v)
        shares = torch.cat([weights[:, :-1], weights[:, -1:].half().to(weights.dtype)], dim=1)
        return super().sum_values(shares, v)


@mutant("duplicated_keys", "a cache that identifies keys by content counts equal keys once", need_weights=True)
class _EqualKeysMerged(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        equal = (k[..., :, None, :] == k[..., None, :, :]).all(dim=-1)
        earlier = torch.ones(equal.shape[-2:], dtype=torch.bool, device=k.device).tril(-1)
        return super().score(q, k).masked_fill((equal & earlier).any(dim=-1)[..., None, :], -math.inf)
