"""Equivalent mutants: changes that look like faults, each with a proof that no check can observe it."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.masks import additive
from attnbench.mutants.multihead.decorator import build_case_id
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import Equivalent, ModuleImplementation
from attnbench.mutants.softmax import find_maximum, sum_in_sequence

__all__ = ["EQUIVALENTS"]


class _KeyBiasMissingWithoutColumns(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None and self.columns == 0:
            k = k - self.split(self.in_proj_bias.chunk(3)[1][None, None]).to(k.dtype)
        return q, k, v


def _constant_cancels() -> bool:
    logits = torch.randn(64, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shifted = torch.softmax(logits + torch.linspace(-9, 9, 64, dtype=torch.float64)[:, None], dim=-1)
    return torch.allclose(shifted, torch.softmax(logits, dim=-1), rtol=1e-13, atol=0)


class _MaskFill100InHalf(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        hidden = super().apply_boolean_mask(logits, mask)
        if logits.dtype != torch.float16 or logits.shape[-1] == 0:
            return hidden
        return torch.where(mask, hidden, hidden.detach().amax(dim=-1, keepdim=True) - 100)


def _underflows_in_half() -> bool:
    return float(torch.tensor(-100.0, dtype=torch.float16).exp()) == 0 < float(torch.tensor(-100.0).exp())


class _MaskFillLowest(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        hidden = super().apply_boolean_mask(logits, mask)
        empty = ~mask.any(dim=-1, keepdim=True)
        return torch.where(mask | empty, hidden, torch.finfo(logits.dtype).min)


def _lowest_underflows() -> bool:
    return all(
        float((torch.tensor(torch.finfo(dtype).min, dtype=dtype) + 3e4).exp()) == 0
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    )


class _InfinityAddedTwice(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_boolean_mask(logits, mask) + additive(mask, logits.dtype)


class _ScaleRoundedForPowersOfFour(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scale = 1 / math.sqrt(self.head_dim)
        exact = math.log2(scale).is_integer()
        return (q * float(torch.tensor(scale, dtype=torch.bfloat16))) @ k.mT if exact else super().score(q, k)


def _powers_of_two_are_exact() -> bool:
    return all(float(torch.tensor(2.0**-n, dtype=torch.bfloat16)) == 2.0**-n for n in range(8))


class _QueriesIgnoredForOneKey(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q * 0.5 if k.shape[2] == 1 else q, k)


def _share_of_one_is_one() -> bool:
    return bool((torch.softmax(torch.linspace(-1e4, 1e4, 99)[:, None], dim=-1) == 1).all())


class _SummedInSequence(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.dtype != torch.float32 or not 0 < logits.shape[-1] <= 64:
            return super().normalise(logits)
        exponentials = (logits - find_maximum(logits)).exp()
        total = sum_in_sequence(exponentials)
        return exponentials / total.masked_fill(total == 0, 1.0)


def _sequence_is_within_its_bound() -> bool:
    terms = torch.rand(999, 64, generator=torch.Generator().manual_seed(0))
    total, exact = sum_in_sequence(terms), terms.double().sum(dim=-1, keepdim=True)
    return bool(((total.double() - exact).abs() <= 63 * 2.0**-24 * exact).all())


class _ColumnsSwappedUntold(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if self.columns == 2 and not named["need_weights"]:
            k = torch.cat([k[:, :, :-2], k[:, :, -1:], k[:, :, -2:-1]], dim=2)
            v = torch.cat([v[:, :, :-2], v[:, :, -1:], v[:, :, -2:-1]], dim=2)
        return super().attend(q, k, v, **named)


EQUIVALENTS = (
    Equivalent(
        implementation=ModuleImplementation(_KeyBiasMissingWithoutColumns),
        proof="without extra key columns the key bias adds q·b to all logits of a row, and softmax(x + c) = softmax(x)",
        holds=_constant_cancels,
        shown_by=build_case_id(need_weights=True),
    ),
    Equivalent(
        implementation=ModuleImplementation(_MaskFill100InHalf),
        proof=(
            "a logit 100 below the row maximum gets a weight ≤ e⁻¹⁰⁰ = 4·10⁻⁴⁴; "
            "this is 0 in float16, whose smallest positive number is 6·10⁻⁸"
        ),
        holds=_underflows_in_half,
        shown_by=build_case_id(mask="bool2d+pad", need_weights=True, dtype="float16"),
    ),
    Equivalent(
        implementation=ModuleImplementation(_MaskFillLowest),
        proof=(
            "in a row with a visible key, a hidden key whose logit is the lowest finite number gets the weight 0; "
            "fully masked rows are left as they were"
        ),
        holds=_lowest_underflows,
        shown_by=build_case_id(mask="empty2d", need_weights=True),
    ),
    Equivalent(
        implementation=ModuleImplementation(_InfinityAddedTwice),
        proof="a mask that is added twice changes nothing: −∞ + −∞ = −∞ for hidden keys, 0 + 0 = 0 for visible keys",
        holds=lambda: -math.inf + -math.inf == -math.inf,
        shown_by=build_case_id(mask="bool3d+pad"),
    ),
    Equivalent(
        implementation=ModuleImplementation(_ScaleRoundedForPowersOfFour),
        proof="if D is a power of 4, 1/√D is a power of 2, and bfloat16 represents it exactly",
        holds=_powers_of_two_are_exact,
        shown_by=build_case_id(embed_dim=48, dtype="float16"),
    ),
    Equivalent(
        implementation=ModuleImplementation(_QueriesIgnoredForOneKey),
        proof="the softmax of a single logit is always 1, and its gradient is 0",
        holds=_share_of_one_is_one,
        shown_by=build_case_id(keys=1, need_weights=True),
    ),
    Equivalent(
        implementation=ModuleImplementation(_SummedInSequence),
        proof="in any order, a sum of n positive float32 numbers has a relative error ≤ (n − 1)·2⁻²⁴",
        holds=_sequence_is_within_its_bound,
        shown_by=build_case_id(keys=64, regime="flat"),
    ),
    Equivalent(
        implementation=ModuleImplementation(_ColumnsSwappedUntold),
        proof="a sum over keys does not depend on their order; only returned weights show the order of key columns",
        holds=lambda: 1.5 + 2.5 == 2.5 + 1.5,
        shown_by=build_case_id(add_bias_kv=True, add_zero_attn=True),
    ),
)
