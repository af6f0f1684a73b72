"""Correct variants that round differently; no check may fail any of them."""

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Refusal
from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation

__all__ = ["VARIANTS"]


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at the least."""
    return tensor.double() if tensor.dtype == torch.float64 else tensor.float()


def _visible(largest: Tensor) -> Tensor:
    """What to take off a row before exp: its largest logit, or 0 where all are hidden."""
    return largest.detach().masked_fill(largest == -math.inf, 0.0)


class _ScaleAfter(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT) / math.sqrt(self.head_dim)


class _ScaleOnKeys(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ (k / math.sqrt(self.head_dim)).mT


class _ScaleOnBoth(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        root = math.sqrt(math.sqrt(self.head_dim))
        return (q / root) @ (k / root).mT


class _Upcast(Formula):
    """Everything in the next wider precision."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        wide = torch.float64 if q.dtype in (torch.float32, torch.float64) else torch.float32
        output, weights = super().attend(
            q.to(wide), k.to(wide), v.to(wide), mask=mask, is_causal=is_causal, need_weights=need_weights
        )
        return output.to(q.dtype), None if weights is None else weights.to(q.dtype)


class _SoftmaxInSingle(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(_wide(logits)).to(logits.dtype)


class _SoftmaxByExponentOfTwo(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        scaled = _wide(logits) * math.log2(math.e)
        if scaled.shape[-1] == 0:
            return logits
        exponentials = torch.exp2(scaled - _visible(scaled.amax(dim=-1, keepdim=True)))
        total = exponentials.sum(dim=-1, keepdim=True)
        return (exponentials / total.masked_fill(total == 0, 1.0)).to(logits.dtype)


class _SoftmaxByReciprocal(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        exponentials = (_wide(logits) - _visible(logits.amax(dim=-1, keepdim=True))).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return (exponentials * total.masked_fill(total == 0, 1.0).reciprocal()).to(logits.dtype)


class _ByEinsum(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", q / math.sqrt(self.head_dim), k)

    def total(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class _HeadByHead(Formula):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        each = [
            super(_HeadByHead, self).attend(
                q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1],
                mask=mask if mask is None or mask.dim() < 4 or mask.shape[1] == 1 else mask[:, h : h + 1],
                is_causal=is_causal, need_weights=need_weights,
            )
            for h in range(self.num_heads)
        ]  # fmt: skip
        return _joined(each, axis=1)


class _QueriesByFours(Formula):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        each = [
            super(_QueriesByFours, self).attend(
                rows, k, v,
                mask=mask if mask is None or mask.shape[-2] == 1 else mask[..., 4 * i : 4 * i + 4, :],
                is_causal=is_causal, need_weights=need_weights,
            )
            for i, rows in enumerate(torch.split(q, 4, dim=2))
        ]  # fmt: skip
        return _joined(each, axis=2)


def _joined(parts: list[Result], axis: int) -> Result:
    weights = [weights for _, weights in parts if weights is not None]
    return torch.cat([output for output, _ in parts], dim=axis), torch.cat(weights, dim=axis) if weights else None


class _KeysReversed(Formula):
    """Every sum over keys from the other end."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        mask = mask if mask is None else mask.flip(-1)
        output, weights = super().attend(
            q, k.flip(2), v.flip(2), mask=mask, is_causal=is_causal, need_weights=need_weights
        )
        return output, None if weights is None else weights.flip(-1)


class _SumOverHeads(Formula):
    """Each head through its own columns of the last projection."""

    def merge(self, heads: Tensor) -> Tensor:
        slices = torch.split(self.out_proj.weight, self.head_dim, dim=1)
        output = sum((linear(heads[:, h], w) for h, w in enumerate(slices)), torch.zeros((), dtype=heads.dtype))
        return output if self.out_proj.bias is None else output + self.out_proj.bias.to(heads.dtype)


class _HeadsProjectedApart(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            torch.stack([linear(x, w[a:b], None if bias is None else bias[a:b]) for a, b in self._heads()], dim=1)
            for x, w, bias in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v

    def _heads(self) -> list[tuple[int, int]]:
        return list(pairwise(range(0, self.embed_dim + 1, self.head_dim)))


class _CoreAlone(Formula):
    """A core that returns no weights and knows no dropout."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        del is_causal
        if need_weights or (self.dropout and self.training):
            raise Refusal("neither weights nor dropout")
        return self.core(q, k, v, mask).to(q.dtype), None

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        raise NotImplementedError


class _NormalisedLate(_CoreAlone):
    """Division by the sum after the product with the values."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        logits = self.hide(self.score(q, k), mask)
        if logits.shape[-1] == 0:
            return torch.zeros_like(q)
        exponentials = (logits - _visible(logits.amax(dim=-1, keepdim=True))).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return self.total(exponentials, v) / total.masked_fill(total == 0, 1.0)


class _MaskInProduct(_CoreAlone):
    """The mask as what the product of queries and keys is added to."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.total(self.normalise(self.score(q, k)), v)
        shape = (*q.shape[:3], k.shape[2])
        added = (additive(mask, q.dtype) if mask.dtype == torch.bool else mask.to(q.dtype)).expand(shape)
        scaled = (q / math.sqrt(self.head_dim)).flatten(0, 1)
        logits = torch.baddbmm(added.flatten(0, 1), scaled, k.mT.flatten(0, 1)).view(shape)
        return self.total(softmax_over_visible(logits), v)


class _OnlineBy1(_CoreAlone):
    """Keys block by block with a running maximum, sum and output, as flash attention does it."""

    block = 1

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        largest = torch.full_like(_wide(q[..., :1]), -math.inf).detach()
        total, output = torch.zeros_like(largest), torch.zeros_like(_wide(q))
        for start in range(0, k.shape[2], self.block):
            keys = slice(start, start + self.block)
            logits = _wide(self.hide(self.score(q, k[:, :, keys]), None if mask is None else mask[..., keys]))
            before, largest = largest, torch.maximum(largest, logits.detach().amax(dim=-1, keepdim=True))
            shares, kept = (logits - _visible(largest)).exp(), (before - _visible(largest)).exp()
            total = kept * total + shares.sum(dim=-1, keepdim=True)
            output = kept * output + shares @ _wide(v[:, :, keys])
        return output / total.masked_fill(total == 0, 1.0)


class _OnlineBy16(_OnlineBy1):
    block = 16


class _OnlineBy64(_OnlineBy1):
    block = 64


class _SdpaFused(_CoreAlone):
    """torch's own kernel, whichever it takes."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask if mask is None or mask.dtype == torch.bool else mask.to(q.dtype)
        )


class _SdpaMath(_SdpaFused):
    """torch's own formula."""

    def core(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().core(q, k, v, mask)


def _core_alone(case: Case) -> str | None:
    """Why a variant that is a core alone refuses a case."""
    draws = case.problem.dropout > 0 and case.training
    return "neither weights nor dropout" if case.problem.need_weights or draws else None


VARIANTS: tuple[Implementation, ...] = (
    *map(
        ModuleImplementation,
        (
            _ScaleAfter,
            _ScaleOnKeys,
            _ScaleOnBoth,
            _Upcast,
            _SoftmaxInSingle,
            _SoftmaxByExponentOfTwo,
            _SoftmaxByReciprocal,
            _ByEinsum,
            _HeadByHead,
            _QueriesByFours,
            _KeysReversed,
            _SumOverHeads,
            _HeadsProjectedApart,
        ),
    ),
    *(
        ModuleImplementation(core, unsupported=_core_alone)
        for core in (_NormalisedLate, _MaskInProduct, _OnlineBy1, _OnlineBy16, _OnlineBy64, _SdpaFused, _SdpaMath)
    ),
)
