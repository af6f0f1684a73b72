"""Correct variants of multi-head attention. They round differently from the reference and must pass every check."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from attnbench.cases import Case
from attnbench.interface import Implementation, Policies, Refusal
from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.multihead import deviations
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.multihead.joins import JOINED
from attnbench.mutants.mutant import ModuleImplementation

__all__ = ["VARIANTS"]

REASON = "this variant returns no weights and has no dropout"


def _widen(tensor: Tensor) -> Tensor:
    """Convert a tensor to float32; a float64 tensor stays float64."""
    return tensor.double() if tensor.dtype == torch.float64 else tensor.float()


def _zero_if_infinite(largest: Tensor) -> Tensor:
    """Return the number to subtract from a row before exp: the row's maximum, or 0 in a fully masked row."""
    return largest.detach().masked_fill(largest == -math.inf, 0.0)


class _ScaleAfter(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        # In float16 the product could overflow before it is scaled, so it is kept in float32, as in kernels.
        wide = torch.float32 if q.dtype == torch.float16 else q.dtype
        return ((q.to(wide) @ k.to(wide).mT) / math.sqrt(self.head_dim)).to(q.dtype)


class _ScaleOnKeys(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ (k / math.sqrt(self.head_dim)).mT


class _ScaleOnBoth(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        root = math.sqrt(math.sqrt(self.head_dim))
        return (q / root) @ (k / root).mT


class _Upcast(Formula):
    """Attention is computed in the next wider dtype; float64 stays float64."""

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
        return super().normalise(_widen(logits)).to(logits.dtype)


class _SoftmaxAlwaysInSingle(Formula):
    """The softmax is in float32 for every dtype, float64 too, as in torchscale and fairseq; a policy declares this."""

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits.float()).to(logits.dtype)


class _SoftmaxByExponentOfTwo(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        scaled = _widen(logits) * math.log2(math.e)
        if scaled.shape[-1] == 0:
            return logits
        exponentials = torch.exp2(scaled - _zero_if_infinite(scaled.amax(dim=-1, keepdim=True)))
        total = exponentials.sum(dim=-1, keepdim=True)
        return (exponentials / total.masked_fill(total == 0, 1.0)).to(logits.dtype)


class _SoftmaxByReciprocal(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        exponentials = (_widen(logits) - _zero_if_infinite(logits.amax(dim=-1, keepdim=True))).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return (exponentials * total.masked_fill(total == 0, 1.0).reciprocal()).to(logits.dtype)


class _ByEinsum(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", q / math.sqrt(self.head_dim), k)

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
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
        return _concatenate(each, axis=1)


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
        return _concatenate(each, axis=2)


def _concatenate(parts: list[Result], axis: int) -> Result:
    weights = [weights for _, weights in parts if weights is not None]
    return torch.cat([output for output, _ in parts], dim=axis), torch.cat(weights, dim=axis) if weights else None


class _KeysReversed(Formula):
    """Every sum over keys starts at the last key."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        mask = mask if mask is None else mask.flip(-1)
        output, weights = super().attend(
            q, k.flip(2), v.flip(2), mask=mask, is_causal=is_causal, need_weights=need_weights
        )
        return output, None if weights is None else weights.flip(-1)


class _SumOverHeads(Formula):
    """The output is a sum over heads; each head is multiplied by its own columns of the output projection."""

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
        ranges = list(pairwise(range(0, self.embed_dim + 1, self.head_dim)))
        q, k, v = (
            torch.stack([linear(x, w[a:b], None if bias is None else bias[a:b]) for a, b in ranges], dim=1)
            for x, w, bias in zip((query, key, value), weights, biases, strict=True)
        )
        return q, k, v


class _CountsCalls(Formula):
    """A module with state that has no gradient: integer and boolean parameters, and an integer buffer."""

    def __init__(self, reference: nn.MultiheadAttention) -> None:
        super().__init__(reference)
        self.calls = nn.Parameter(torch.zeros((), dtype=torch.long), requires_grad=False)
        self.was_called = nn.Parameter(torch.zeros((), dtype=torch.bool), requires_grad=False)
        self.register_buffer("order", torch.arange(self.num_heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        with torch.no_grad():
            self.calls.add_(1)
            self.was_called.fill_(True)  # noqa: FBT003  # the value that is filled in
        return super().attend(q, k, v, **named)


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
        exponentials = (logits - _zero_if_infinite(logits.amax(dim=-1, keepdim=True))).exp()
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
        largest = torch.full_like(_widen(q[..., :1]), -math.inf).detach()
        total, output = torch.zeros_like(largest), torch.zeros_like(_widen(q))
        for start in range(0, k.shape[2], self.block):
            keys = slice(start, start + self.block)
            logits = _widen(self.apply_mask(self.score(q, k[:, :, keys]), None if mask is None else mask[..., keys]))
            before, largest = largest, torch.maximum(largest, logits.detach().amax(dim=-1, keepdim=True))
            finite = _zero_if_infinite(largest)
            shares, kept = (logits - finite).exp(), (before - finite).exp()
            total = kept * total + shares.sum(dim=-1, keepdim=True)
            output = kept * output + shares @ _widen(v[:, :, keys])
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


def _explain_refusal(case: Case) -> str | None:
    """Return why subclasses of ``_CoreAlone`` refuse the case, or None if they support it."""
    draws = case.problem.dropout > 0 and case.training
    return REASON if case.problem.need_weights or draws else None


class _DeclaredSharesBeforeDropout(deviations.TellsSharesBeforeDropout):
    pass


class _DeclaredDetachedWeights(deviations.Detached):
    pass


class _DeclaredMeanByFill(deviations.MeanByFill):
    pass


class _DeclaredMeanByBias(deviations.MeanByBias):
    pass


class _DeclaredGradientsNan(deviations.NanGradients):
    pass


class _DeclaredRowsNan(deviations.NanRows):
    pass


class _DeclaredEmptyBatchesRefused(Formula):
    """A batch without sequences is refused, as by ``view(batch, -1, …)``."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if not len(q):
            raise RuntimeError("cannot reshape a tensor of 0 elements")
        return super().score(q, k)


# Deviations from the contract that are declared, and that are as declared.
_DECLARED = {
    _DeclaredSharesBeforeDropout: Policies(returned_weights="before_dropout"),
    _DeclaredDetachedWeights: Policies(detached_weights=True),
    _DeclaredMeanByFill: Policies(hidden_rows="mean"),
    _DeclaredMeanByBias: Policies(hidden_rows="mean", hidden_row_gradients="softmax"),
    _DeclaredGradientsNan: Policies(hidden_row_gradients="nan"),
    _DeclaredRowsNan: Policies(hidden_rows="nan", hidden_row_gradients="nan"),
    _DeclaredEmptyBatchesRefused: Policies(empty_batches="refused"),
}

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
            _CountsCalls,
            *JOINED,
        ),
    ),
    ModuleImplementation(_SoftmaxAlwaysInSingle, policies=Policies(computes_in="float32", twice_differentiable=True)),
    *(
        ModuleImplementation(core, unsupported=_explain_refusal)
        for core in (_NormalisedLate, _MaskInProduct, _OnlineBy1, _OnlineBy16, _OnlineBy64, _SdpaFused, _SdpaMath)
    ),
    *(ModuleImplementation(module, policies=policies) for module, policies in _DECLARED.items()),
)
