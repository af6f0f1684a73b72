"""Mistakes of causal masks, and of the hint that promises one."""

import torch
from torch import Tensor

from attnbench.masks import additive, causal
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("future_cannot_leak", "each token sees the next one", mask="causal")
class _CausalOffByOne(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool or mask.dim() != 2:
            return super().hide(logits, mask)
        rule = causal(mask.shape[0], mask.shape[1], mask.device, polarity="keep")
        same = (mask == rule).all()
        return super().hide(logits, torch.where(same, torch.ones_like(rule).tril(1), mask))


@mutant(
    "future_cannot_leak",
    "the mask of every fourth query for four, in half precision (pytorch#195910)",
    mask="causal",
    dtype="float16",
)
class _CausalByFours(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        wide = logits.dtype in (torch.float32, torch.float64)
        if mask is None or wide or mask.dtype != torch.bool or mask.dim() != 2:
            return super().hide(logits, mask)
        rows = torch.arange(mask.shape[0], device=mask.device) // 4 * 4 + 3
        return super().hide(logits, mask[rows.clamp(max=mask.shape[0] - 1)])


class _Hinted(Formula):
    """Looks at the hint where the right one looks at the mask alone."""

    def hinted(self, given: Arguments) -> Arguments:
        raise NotImplementedError

    def receive(self, given: Arguments) -> Arguments:
        return self.hinted(given) if given["is_causal"] and given["attn_mask"] is not None else given

    def lengths(self, given: Arguments) -> tuple[int, int]:
        axis = 1 if self.batch_first and given["query"].dim() == 3 else 0
        return given["query"].shape[axis], given["key"].shape[axis]


@mutant(
    "causal_hint_changes_nothing",
    "aligned at the bottom right (pytorch#108108, ml-explore/mlx#2835)",
    mask="causal",
    is_causal=True,
)
class _HintBottomRight(_Hinted):
    def hinted(self, given: Arguments) -> Arguments:
        queries, keys = self.lengths(given)
        visible = torch.ones(queries, keys, dtype=torch.bool, device=given["query"].device).tril(keys - queries)
        return given | {"attn_mask": ~visible}


@mutant("padding_cannot_leak", "the causal path knows no padding", mask="causal+pad", is_causal=True)
class _HintDropsPadding(_Hinted):
    def hinted(self, given: Arguments) -> Arguments:
        return given | {"key_padding_mask": None}


@mutant(
    "causal_hint_changes_nothing",
    "a causal mask over the extra columns too, as the reference's without weights",
    mask="causal",
    is_causal=True,
    add_bias_kv=True,
)
class _HintHidesColumns(Formula):
    hint = False

    def receive(self, given: Arguments) -> Arguments:
        self.hint = given["is_causal"]
        return given

    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        queries, keys = logits.shape[-2:]
        if not (self.hint and self.columns):
            return super().hide(logits, mask)
        return super().hide(logits, mask) + additive(
            causal(queries, keys, logits.device, polarity="keep"), logits.dtype
        )


@mutant(
    "future_cannot_leak",
    "the hint and its mask dropped where weights are asked for (pytorch#99282)",
    mask="causal",
    is_causal=True,
    need_weights=True,
)
class _HintDroppedForWeights(_Hinted):
    def hinted(self, given: Arguments) -> Arguments:
        return given | {"attn_mask": None, "is_causal": False} if given["need_weights"] else given


@mutant("odd_input_treated_alike", "without weights the hint is obeyed, with them the mask", mask="bool2d")
class _HintObeyedWithoutWeights(_Hinted):
    def hinted(self, given: Arguments) -> Arguments:
        if given["need_weights"]:
            return given
        return given | {"attn_mask": causal(*self.lengths(given), given["query"].device)}
