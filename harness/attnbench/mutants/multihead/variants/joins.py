"""Correct variants that compute attention in blocks of keys and join the blocks by their logsumexp.

Ring attention, flash decoding and split keys work like this: each block has a softmax of its own, with its own maximum
and logsumexp Lᵢ, and the outputs oᵢ are joined to Σ exp(Lᵢ − L) oᵢ, where L is the logsumexp of all Lᵢ.
"""

import math

import torch
from torch import Tensor

from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.mutant import ModuleImplementation
from attnbench.mutants.softmax import make_finite, widen

__all__ = ["JOINED"]


def _logsumexp(tensor: Tensor) -> Tensor:
    """Return the logsumexp over the last axis, which is kept; its gradient is 0 where all elements are −∞.

    Shape: (…, keys) to (…, 1).
    """
    largest = make_finite(tensor.detach().amax(dim=-1, keepdim=True))
    total = (tensor - largest).exp().sum(dim=-1, keepdim=True)
    return (largest + total.masked_fill(total == 0, 1.0).log()).masked_fill(total == 0, -math.inf)


class _Blocks(Formula):
    """Base of the variants: splits the keys, computes each block alone, and joins the blocks."""

    # Whether the output of a block is rounded to the dtype of the case until the join.
    rounds_blocks = False

    def split_keys(self, keys: int) -> list[int]:
        """Return the number of keys of each block."""
        raise NotImplementedError

    def join(self, outputs: list[Tensor], sums: list[Tensor]) -> Tensor:
        """Return the joined output from the output and the logsumexp of each block.

        Shape: outputs (batch, heads, queries, head_dim), sums (batch, heads, queries, 1).
        """
        whole = _logsumexp(torch.cat(sums, dim=-1))
        factors = [(one - make_finite(whole)).exp() for one in sums]
        joined = [factor * output for factor, output in zip(factors, outputs, strict=True)]
        return torch.stack(joined).sum(dim=0)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> Result:
        del is_causal
        logits = widen(self.apply_mask(self.score(q, k), mask))
        if logits.shape[-1] == 0:
            return torch.zeros_like(q), logits.to(q.dtype) if need_weights else None
        outputs, sums, parts = [], [], []
        sizes = self.split_keys(logits.shape[-1])
        for rows, values in zip(torch.split(logits, sizes, dim=-1), torch.split(v, sizes, dim=-2), strict=True):
            sums.append(_logsumexp(rows))
            parts.append(self.apply_dropout(self.normalise(rows)))
            output = parts[-1] @ widen(values)
            outputs.append(widen(output.to(q.dtype) if self.rounds_blocks else output))
        output = self.join(outputs, sums).to(q.dtype)
        if not need_weights:
            return output, None
        whole = make_finite(_logsumexp(torch.cat(sums, dim=-1)))
        weights = torch.cat([(one - whole).exp() * part for one, part in zip(sums, parts, strict=True)], dim=-1)
        return output, self.return_weights(weights).to(q.dtype)


class _KeysInHalves(_Blocks):
    """Split keys: two blocks."""

    def split_keys(self, keys: int) -> list[int]:
        return [keys - keys // 2, keys // 2] if keys > 1 else [keys]


class _KeysInFourParts(_Blocks):
    """Flash decoding: up to four blocks, joined at once. All blocks but the last are of equal size."""

    def split_keys(self, keys: int) -> list[int]:
        size = -(-keys // 4)
        return [min(size, keys - start) for start in range(0, keys, size)]


class _KeysInARing(_Blocks):
    """Ring attention: blocks of three keys, each joined to the result of the blocks before it."""

    def split_keys(self, keys: int) -> list[int]:
        return [min(3, keys - start) for start in range(0, keys, 3)]

    def join(self, outputs: list[Tensor], sums: list[Tensor]) -> Tensor:
        output, whole = outputs[0], sums[0]
        for block, own in zip(outputs[1:], sums[1:], strict=True):
            joined = _logsumexp(torch.cat([whole, own], dim=-1))
            output = (whole - make_finite(joined)).exp() * output + (own - make_finite(joined)).exp() * block
            whole = joined
        return output


class _HalvesRounded(_KeysInHalves):
    """Split keys: the outputs of the two blocks are rounded to the dtype of the case before the join."""

    rounds_blocks = True


class _RingOfRoundedBlocks(_KeysInARing):
    """Ring attention: the output of each block is rounded to the dtype of the case before its join."""

    rounds_blocks = True


JOINED = tuple(
    map(ModuleImplementation, (_KeysInHalves, _KeysInFourParts, _KeysInARing, _HalvesRounded, _RingOfRoundedBlocks))
)
