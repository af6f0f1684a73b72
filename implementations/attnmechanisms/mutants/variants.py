"""Correct variants of the mechanisms that round differently; no check may fail any of them."""

import math

import torch
from torch import Tensor

from attnmechanisms.mutants.formula import RIGHT, Steps, changed

__all__ = ["VARIANTS"]

# Keys worked on at once.
KEYS_AT_ONCE = 2


class _StepByStep(Steps):
    """As it stands."""


class _SoftmaxInDouble(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores.double(), hide).to(scores.dtype)


class _InBlocks(Steps):
    """A block of keys after another, with a running maximum and sum."""

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        logits = (scores if hide is None else scores.masked_fill(hide, -math.inf)).double()
        largest = torch.full_like(logits[..., :1], -math.inf).detach()
        total = torch.zeros_like(largest)
        for block in torch.split(logits, KEYS_AT_ONCE, dim=-1):
            before, largest = largest, torch.maximum(largest, block.detach().amax(dim=-1, keepdim=True))
            total = total * (before - _finite(largest)).exp() + (block - _finite(largest)).exp().sum(-1, keepdim=True)
        shares = (logits - _finite(largest)).exp() / total.masked_fill(total == 0, 1.0)
        return shares.to(scores.dtype)


def _finite(largest: Tensor) -> Tensor:
    """The largest score, or 0 where there is none."""
    return largest.masked_fill(largest.isneginf(), 0.0)


VARIANTS = tuple(changed(operator, steps) for operator in RIGHT for steps in (_StepByStep, _SoftmaxInDouble, _InBlocks))
