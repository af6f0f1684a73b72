"""Mistakes with masks: what is hidden, and how a row does without it."""

import torch
from torch import Tensor

from attnmechanisms.mutants.decorator import BLOCK, SINGLE, WITH_EMPTY, MechanismMutants
from attnmechanisms.mutants.formula import Steps

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant("shares_sum_to_one", "a keep-mask passed where a hide-mask is expected", mask="pad")
class _KeepForHide(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        hide = super().hidden(padding, later)
        return None if hide is None else ~hide


@mutant("padded_tokens_cannot_leak", "the mask is taken, and not used", mask="pad")
class _WithoutTheMask(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        del padding
        return super().hidden(None, later)


@mutant(
    "shares_sum_to_one", "the branch of the attention mask uses the padding mask instead, which was copied from above",
    of=(SINGLE, BLOCK), mask="causal+pad",
)  # fmt: skip
class _PaddingMaskTwice(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        return super().hidden(padding, None if later is None or padding is None else padding[:, None, :])


@mutant(
    "shares_sum_to_one", "-1e9 as fill: a row of which everything is hidden is spread over what it must not see",
    of=WITH_EMPTY, mask="padempty",
)  # fmt: skip
class _FilledWithANumber(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)


@mutant(
    "shares_sum_to_one", "a row of which anything is hidden is taken for one of which everything is: .any() for .all()",
    mask="pad",
)  # fmt: skip
class _AnyForAll(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = super().normalise(scores, hide)
        return weights if hide is None else weights.masked_fill(hide.any(dim=-1, keepdim=True), 0.0)


@mutant(
    "padded_tokens_cannot_leak", "padding is multiplied away after the softmax, whose denominator it is in by then",
    mask="pad",
)  # fmt: skip
class _HiddenAfterTheSoftmax(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        return weights if hide is None else weights * ~hide


@mutant("shares_sum_to_one", "any mask of queries and keys taken for a causal one", of=(SINGLE, BLOCK), mask="bool2d")
class _AnyMaskIsCausal(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        return super().hidden(padding, None if later is None else torch.ones_like(later).triu(1))


@mutant("shares_sum_to_one", "padding taken for lengths, from which it all follows", mask="padholes")
class _PaddingTakenForLengths(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        if padding is not None:
            lengths = (~padding).sum(dim=-1, keepdim=True)
            padding = torch.arange(padding.shape[-1], device=padding.device) >= lengths
        return super().hidden(padding, later)


@mutant("shares_sum_to_one", "a sequence without tokens looked for in the last place alone, where it was tried",
         of=WITH_EMPTY, mask="padempty")  # fmt: skip
class _EmptyOnlyLast(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)
        return torch.cat([weights[:-1], super().normalise(scores, hide)[-1:]])


@mutant("shares_sum_to_one", "the fast path in half precision hides after the softmax", mask="pad", dtype="float16",
         mode="inference")  # fmt: skip
class _HiddenLateInHalf(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() or scores.dtype != torch.float16 or hide is None:
            return super().normalise(scores, hide)
        return torch.softmax(scores, dim=-1) * ~hide
