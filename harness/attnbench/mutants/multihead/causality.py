"""Mutants of causal masks and of ``is_causal``, a hint that says that attn_mask is causal."""

import torch
from torch import Tensor

from attnbench.masks import additive, causal
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("future_cannot_leak", "the causal mask is off by one: each query sees the next key too", mask="causal")
class _CausalOffByOne(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() != 2:
            return super().apply_boolean_mask(logits, mask)
        rule = causal(mask.shape[0], mask.shape[1], mask.device, polarity="keep")
        same = (mask == rule).all()
        return super().apply_boolean_mask(logits, torch.where(same, torch.ones_like(rule).tril(1), mask))


@mutant(
    "future_cannot_leak",
    "in half precision, each block of four queries uses the mask of its last query (pytorch#195910)",
    mask="causal",
    dtype="float16",
)
class _CausalByFours(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        if logits.dtype in (torch.float32, torch.float64) or mask.dim() != 2:
            return super().apply_boolean_mask(logits, mask)
        rows = torch.arange(mask.shape[0], device=mask.device) // 4 * 4 + 3
        return super().apply_boolean_mask(logits, mask[rows.clamp(max=mask.shape[0] - 1)])


class _Hinted(Formula):
    """Base of mutants that use is_causal=True although attn_mask is given.

    The correct formula uses only attn_mask, and ignores is_causal.
    """

    def follow_hint(self, given: Arguments) -> Arguments:
        raise NotImplementedError

    def read_arguments(self, given: Arguments) -> Arguments:
        return self.follow_hint(given) if given["is_causal"] and given["attn_mask"] is not None else given

    def read_lengths(self, given: Arguments) -> tuple[int, int]:
        axis = 1 if self.batch_first and given["query"].dim() == 3 else 0
        return given["query"].shape[axis], given["key"].shape[axis]


@mutant(
    "causal_hint_changes_nothing",
    "is_causal is applied as a mask aligned at the bottom right (pytorch#108108, ml-explore/mlx#2835)",
    mask="causal",
    is_causal=True,
)
class _HintBottomRight(_Hinted):
    def follow_hint(self, given: Arguments) -> Arguments:
        queries, keys = self.read_lengths(given)
        visible = torch.ones(queries, keys, dtype=torch.bool, device=given["query"].device).tril(keys - queries)
        return given | {"attn_mask": ~visible}


@mutant("padding_cannot_leak", "the path for is_causal ignores key_padding_mask", mask="causal+pad", is_causal=True)
class _HintDropsPadding(_Hinted):
    def follow_hint(self, given: Arguments) -> Arguments:
        return given | {"key_padding_mask": None}


@mutant(
    "causal_hint_changes_nothing",
    "is_causal hides the extra key columns too, as in the reference with need_weights=False",
    mask="causal",
    is_causal=True,
    add_bias_kv=True,
)
class _HintHidesColumns(Formula):
    hint = False

    def read_arguments(self, given: Arguments) -> Arguments:
        self.hint = given["is_causal"]
        return given

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        queries, keys = logits.shape[-2:]
        if not (self.hint and self.columns):
            return super().apply_mask(logits, mask)
        return super().apply_mask(logits, mask) + additive(
            causal(queries, keys, logits.device, polarity="keep"), logits.dtype
        )


@mutant(
    "future_cannot_leak",
    "is_causal and attn_mask are dropped when weights are requested (pytorch#99282)",
    mask="causal",
    is_causal=True,
    need_weights=True,
)
class _HintDroppedForWeights(_Hinted):
    def follow_hint(self, given: Arguments) -> Arguments:
        return given | {"attn_mask": None, "is_causal": False} if given["need_weights"] else given


@mutant(
    "odd_input_treated_alike",
    "without need_weights, is_causal replaces attn_mask; with need_weights, attn_mask is used",
    mask="bool2d",
)
class _HintObeyedWithoutWeights(_Hinted):
    def follow_hint(self, given: Arguments) -> Arguments:
        if given["need_weights"]:
            return given
        return given | {"attn_mask": causal(*self.read_lengths(given), given["query"].device)}
