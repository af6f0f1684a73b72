"""Mutants with a wrong mask or a wrong softmax over the visible keys."""

import torch
from torch import Tensor

from attnmechanisms.mutants.decorator import BLOCK, SINGLE, WITH_EMPTY, MechanismMutants
from attnmechanisms.mutants.formula import MechanismFormula

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant("shares_sum_to_one", "the mask is inverted: true keeps a key instead of hiding it", mask="pad")
class _KeepForHide(MechanismFormula):
    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        hide = super().combine_masks(padding, attn_mask)
        return None if hide is None else ~hide


@mutant("padded_tokens_cannot_leak", "the padding mask is accepted, but not used", mask="pad")
class _WithoutTheMask(MechanismFormula):
    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        del padding
        return super().combine_masks(None, attn_mask)


@mutant(
    "shares_sum_to_one", "the branch for attn_mask, copied from the branch for padding, uses the padding mask",
    of=(SINGLE, BLOCK), mask="causal+pad",
)  # fmt: skip
class _PaddingMaskTwice(MechanismFormula):
    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        return super().combine_masks(padding, None if attn_mask is None or padding is None else padding[:, None, :])


@mutant(
    "shares_sum_to_one", "hidden scores are set to -1e9: a fully masked row gets uniform weights",
    of=WITH_EMPTY, mask="padempty",
)  # fmt: skip
class _FilledWithANumber(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)


@mutant(
    "shares_sum_to_one", ".any() instead of .all(): a partly masked row is treated as fully masked",
    mask="pad",
)  # fmt: skip
class _AnyForAll(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = super().normalise(scores, hide)
        return weights if hide is None else weights.masked_fill(hide.any(dim=-1, keepdim=True), 0.0)


@mutant(
    "padded_tokens_cannot_leak", "weights of padding are set to 0 after the softmax, whose denominator includes them",
    mask="pad",
)  # fmt: skip
class _HiddenAfterTheSoftmax(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        return weights if hide is None else weights * ~hide


@mutant("shares_sum_to_one", "any attn_mask is taken for a causal mask", of=(SINGLE, BLOCK), mask="bool2d")
class _AnyMaskIsCausal(MechanismFormula):
    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        return super().combine_masks(padding, None if attn_mask is None else torch.ones_like(attn_mask).triu(1))


@mutant(
    "shares_sum_to_one", "key_padding_mask is converted to lengths, as if all padding were at the end", mask="padholes"
)
class _PaddingTakenForLengths(MechanismFormula):
    def combine_masks(self, padding: Tensor | None, attn_mask: Tensor | None) -> Tensor | None:
        if padding is not None:
            lengths = (~padding).sum(dim=-1, keepdim=True)
            padding = torch.arange(padding.shape[-1], device=padding.device) >= lengths
        return super().combine_masks(padding, attn_mask)


@mutant("shares_sum_to_one", "a fully padded sequence is handled only if it is the last sequence of the batch",
         of=WITH_EMPTY, mask="padempty")  # fmt: skip
class _EmptyOnlyLast(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)
        return torch.cat([weights[:-1], super().normalise(scores, hide)[-1:]])


@mutant("shares_sum_to_one", "the fast path in half precision applies the mask after the softmax",
         mask="pad", dtype="float16", mode="inference")  # fmt: skip
class _HiddenLateInHalf(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() or scores.dtype != torch.float16 or hide is None:
            return super().normalise(scores, hide)
        return torch.softmax(scores, dim=-1) * ~hide
