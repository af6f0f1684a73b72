"""Correct variants with other formulas for the core of attention, without dropout and without returned weights."""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Refusal
from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.mutants.softmax import find_maximum, make_finite, widen
from attnbench.refusals import LacksKeywords

__all__ = ["CORES"]

REASON = LacksKeywords(keywords=("need_weights", "dropout_p"))


class _CoreAlone(Formula):
    """Base of variants that support neither dropout nor returned weights."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        del is_causal
        if need_weights or (self.dropout and self.training):
            raise Refusal(REASON)
        return self.attend_without_weights(q, k, v, mask).to(q.dtype), None

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        raise NotImplementedError


class _NormalisedLate(_CoreAlone):
    """The division by the softmax denominator comes after the product with the values."""

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        logits = self.apply_mask(self.score(q, k), mask)
        if logits.shape[-1] == 0:
            return torch.zeros_like(q)
        exponentials = (logits - find_maximum(logits)).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return self.sum_values(exponentials, v) / total.masked_fill(total == 0, 1.0)


class _MaskInProduct(_CoreAlone):
    """The product of queries and keys is added to the mask by ``torch.baddbmm``."""

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.sum_values(self.normalise(self.score(q, k)), v)
        shape = (*q.shape[:3], k.shape[2])
        added = (additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)).expand(shape)
        scaled = (q / math.sqrt(self.head_dim)).flatten(0, 1)
        logits = torch.baddbmm(added.flatten(0, 1), scaled, k.mT.flatten(0, 1)).view(shape)
        return self.sum_values(softmax_over_visible(logits), v)


class _OnlineBy1(_CoreAlone):
    """Online softmax as in flash attention, over blocks of ``block`` keys.

    Each block updates the row maximum, the softmax denominator and the output.
    """

    block = 1

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        largest = torch.full_like(widen(q[..., :1]), -math.inf).detach()
        total, output = torch.zeros_like(largest), torch.zeros_like(widen(q))
        for start in range(0, k.shape[2], self.block):
            keys = slice(start, start + self.block)
            logits = widen(self.apply_mask(self.score(q, k[:, :, keys]), None if mask is None else mask[..., keys]))
            before, largest = largest, torch.maximum(largest, logits.detach().amax(dim=-1, keepdim=True))
            finite = make_finite(largest)
            shares, kept = (logits - finite).exp(), (before - finite).exp()
            total = kept * total + shares.sum(dim=-1, keepdim=True)
            output = kept * output + shares @ widen(v[:, :, keys])
        return output / total.masked_fill(total == 0, 1.0)


class _OnlineBy16(_OnlineBy1):
    block = 16


class _OnlineBy64(_OnlineBy1):
    block = 64


class _SdpaFused(_CoreAlone):
    """``scaled_dot_product_attention`` with the backend that torch selects."""

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        )


class _SdpaMath(_SdpaFused):
    """``scaled_dot_product_attention`` with torch's math backend."""

    def attend_without_weights(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().attend_without_weights(q, k, v, mask)


def _explain_refusal(case: Case) -> LacksKeywords | None:
    """Return why subclasses of ``_CoreAlone`` refuse the case, or None if they support it."""
    draws = case.problem.dropout > 0 and case.training
    return REASON if case.problem.need_weights or draws else None


CORES = tuple(
    ModuleImplementation(core, unsupported=_explain_refusal)
    for core in (_NormalisedLate, _MaskInProduct, _OnlineBy1, _OnlineBy16, _OnlineBy64, _SdpaFused, _SdpaMath)
)
