"""Correct variants that support every case and round differently, and a variant with a counter as a parameter."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from attnbench.interface import Policies
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.mutants.softmax import divide_by_sum, find_maximum, widen

__all__ = ["ROUNDED"]


class _ScaleAfter(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        # In float16 the product could overflow before it is scaled, so it is kept in float32, as in kernels. Autocast
        # would round it to float16.
        wide = torch.float32 if q.dtype == torch.float16 else q.dtype
        with torch.autocast(q.device.type, enabled=False):
            product = q.to(wide) @ k.to(wide).mT
        return (product / math.sqrt(self.head_dim)).to(q.dtype)


class _ScaleOnKeys(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ (k / math.sqrt(self.head_dim)).mT


class _ScaleOnBoth(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        root = math.sqrt(math.sqrt(self.head_dim))
        return (q / root) @ (k / root).mT


class _Upcast(Formula):
    """Attention is computed in the next wider dtype; float64 stays float64."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        wide = torch.float64 if q.dtype in (torch.float32, torch.float64) else torch.float32
        output, weights = super().attend(q.to(wide), k.to(wide), v.to(wide), **named)
        return output.to(q.dtype), None if weights is None else weights.to(q.dtype)


class _SoftmaxInSingle(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(widen(logits)).to(logits.dtype)


class _SoftmaxByExponentOfTwo(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        scaled = widen(logits) * math.log2(math.e)
        if scaled.shape[-1] == 0:
            return logits
        return divide_by_sum(torch.exp2(scaled - find_maximum(scaled))).to(logits.dtype)


class _SoftmaxByReciprocal(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if logits.shape[-1] == 0:
            return logits
        exponentials = (widen(logits) - find_maximum(logits)).exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return (exponentials * total.masked_fill(total == 0, 1.0).reciprocal()).to(logits.dtype)


class _ByEinsum(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", q / math.sqrt(self.head_dim), k)

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


class _HeadByHead(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        each = [
            super(_HeadByHead, self).attend(
                q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1],
                mask=mask if mask is None or mask.dim() < 4 or mask.shape[1] == 1 else mask[:, h : h + 1], **named,
            )
            for h in range(self.num_heads)
        ]  # fmt: skip
        return _concatenate(each, axis=1)


class _QueriesByFours(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        each = [
            super(_QueriesByFours, self).attend(
                rows, k, v,
                mask=mask if mask is None or mask.shape[-2] == 1 else mask[..., 4 * i : 4 * i + 4, :], **named,
            )
            for i, rows in enumerate(torch.split(q, 4, dim=2))
        ]  # fmt: skip
        return _concatenate(each, axis=2)


def _concatenate(parts: list[Result], axis: int) -> Result:
    weights = [weights for _, weights in parts if weights is not None]
    return torch.cat([output for output, _ in parts], dim=axis), torch.cat(weights, dim=axis) if weights else None


class _KeysReversed(Formula):
    """Every sum over keys starts at the last key."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        mask = mask if mask is None else mask.flip(-1)
        output, weights = super().attend(q, k.flip(2), v.flip(2), mask=mask, **named)
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


ROUNDED = (
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
    # Torch forbids a transformed function to change a tensor in place that it did not get as an argument.
    ModuleImplementation(_CountsCalls, policies=Policies(transforms="refused")),
)
