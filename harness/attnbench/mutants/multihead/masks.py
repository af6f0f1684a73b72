"""Mutants of masks: polarity, order of axes, combination of two masks, and the fill value of hidden logits."""

import math

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "forward_parity",
    "a boolean mask is inverted: true is taken for visible instead of hidden (pytorch#170400)",
    mask="bool2d",
)
class _MaskInverted(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_boolean_mask(logits, ~mask)


@mutant(
    "forward_parity",
    "key_padding_mask is inverted, attn_mask is not (InseeFrLab/torchTextClassifiers#92)",
    mask="pad",
)
class _PaddingInverted(Formula):
    def read_padding(self, padding: Tensor) -> Tensor:
        return ~padding if padding.dtype == torch.bool else padding


@mutant(
    "forward_parity",
    "a boolean mask is added to the logits as 0 and 1 instead of hiding keys (pytorch#21518)",
    mask="bool3d",
)
class _MaskAddedAsNumbers(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        of_heads = mask.dim() == 4 and mask.shape[1] > 1
        return self.apply_float_mask(logits, mask) if of_heads else super().apply_boolean_mask(logits, mask)


@mutant(
    "forward_parity",
    "a float mask is converted to boolean: only −∞ has an effect (huggingface/transformers#38094)",
    mask="float2d",
)
class _MaskAsBoolean(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return self.apply_boolean_mask(logits, mask != -math.inf)


@mutant("mask_gradients", "a float key_padding_mask is converted to boolean (mlverse/torch#1208)", mask="padfloat")
class _PaddingAsBoolean(Formula):
    def read_padding(self, padding: Tensor) -> Tensor:
        return padding == -math.inf if padding.is_floating_point() else padding


@mutant("forward_parity", "the float mask is added before the scale, and so scaled too", mask="float2d")
class _MaskScaled(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask / math.sqrt(self.head_dim))


@mutant(
    "attn_mask_cannot_leak",
    "if all heads share a mask, the result of masked_fill is discarded (opendilab/DI-engine#333)",
    mask="bool2d",
)
class _MaskIgnored(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits if mask.dim() == 2 else super().apply_boolean_mask(logits, mask)


@mutant(
    "padding_cannot_leak",
    "the branch for attn_mask ignores key_padding_mask (AnswerDotAI/ModernBERT#40)",
    mask="bool2d+pad",
)
class _PaddingIgnoredBesideMask(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given | {"key_padding_mask": None} if given["attn_mask"] is not None else given


@mutant(
    "attn_mask_cannot_leak",
    "attn_mask is dropped when key_padding_mask is given too (keras-team/keras#23040)",
    mask="bool2d+pad",
)
class _MaskIgnoredBesidePadding(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given | {"attn_mask": None} if given["key_padding_mask"] is not None else given


@mutant(
    "padding_cannot_leak", "'and' instead of 'or': a key is hidden only where both masks hide it", mask="bool2d+pad"
)
class _MasksIntersected(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask, padding = given["attn_mask"], given["key_padding_mask"]
        boolean = mask is not None and padding is not None and mask.dtype == padding.dtype == torch.bool
        if not boolean or mask.dim() == 3 or padding.dim() == 1:
            return given
        both = (mask & padding[:, None]).repeat_interleave(self.num_heads, 0)
        return given | {"attn_mask": both, "key_padding_mask": None}


@mutant(
    "padding_cannot_leak",
    "the padding mask of the first sequence is used for the whole batch (Blaizzy/mlx-vlm#1946)",
    mask="pad",
)
class _PaddingOfFirstSequence(Formula):
    def read_padding(self, padding: Tensor) -> Tensor:
        return padding[:1].expand_as(padding)


@mutant(
    "padding_cannot_leak",
    "the padding mask is copied to all heads by repeat instead of repeat_interleave (line/lighthouse#77)",
    mask="pad",
)
class _PaddingTiledOverHeads(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        if mask is None or mask.dim() == 1 or mask.dtype != torch.bool or given["attn_mask"] is not None:
            return given
        queries = given["query"].shape[1 if self.batch_first else 0]
        tiled = mask.repeat(self.num_heads, 1)[:, None].expand(-1, queries, -1)
        return given | {"attn_mask": tiled, "key_padding_mask": None}


@mutant(
    "forward_parity",
    "the first axis of the mask is read as (heads, batch) (lsdefine/attention-is-all-you-need-keras#36)",
    mask="bool3d",
)
class _MaskHeadMajor(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        if mask is None or mask.dim() == 2 or mask.shape[0] % self.num_heads:
            return given
        return given | {"attn_mask": mask.unflatten(0, (self.num_heads, -1)).transpose(0, 1).flatten(0, 1)}


@mutant("forward_parity", "the mask of the first head is used for all heads of a sequence", mask="float3d")
class _MaskOfFirstHead(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, None if mask is None else mask[:, :1] if mask.dim() == 4 else mask)


@mutant(
    "padding_cannot_leak",
    "hidden logits are lowered by 20 instead of set to −∞: hidden keys keep a small weight",
    mask="pad",
)
class _MaskFill20(Formula):
    fill = -20.0

    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits + torch.where(mask, 0.0, self.fill).to(logits.dtype)


@mutant(
    "exact_zero_leak",
    "hidden logits are lowered by 100, not set to −∞: e⁻¹⁰⁰ = 4·10⁻⁴⁴ is not 0 in float32",
    bias=False,
    regime="zeroleak",
    mask="pad",
)
class _MaskFill100(_MaskFill20):
    fill = -100.0


@mutant(
    "forward_parity",
    "hidden logits are the lowest finite number: a fully masked row gets uniform weights",
    mask="empty2d",
)
class _EmptyRowsUniform(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


@mutant(
    "forward_parity",
    "fully masked rows are NaN, and no policy declares this (pytorch#103749)",
    mask="empty3d",
)
class _EmptyRowsNan(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)


@mutant(
    "forward_parity",
    "a row whose keys are all hidden, some by each mask, is not recognised as fully masked and gets weights",
    mask="union2d+pad",
)
class _EmptyByUnionUniform(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask, padding = given["attn_mask"], given["key_padding_mask"]
        boolean = mask is not None and padding is not None and mask.dtype == padding.dtype == torch.bool
        if not boolean or mask.dim() == 3 or padding.dim() == 1:
            return given
        apart = ~mask.all(dim=-1, keepdim=True) & ~padding.all(dim=-1)[:, None, None]
        union = mask | padding[:, None]
        union = union & ~(apart & union.all(dim=-1, keepdim=True))
        return given | {"attn_mask": union.repeat_interleave(self.num_heads, 0), "key_padding_mask": None}


@mutant("forward_parity", "a large negative number in a float mask is taken for −∞", mask="lowest2d")
class _LowestTakenAsHidden(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask.masked_fill(mask <= -1e3, -math.inf))


@mutant(
    "boolean_equals_float_mask",
    "in float masks, but not in boolean masks, −∞ is clamped to a finite number",
    mask="empty2d",
)
class _FloatMaskClamped(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask.clamp(min=-3e4))


@mutant("forward_parity", "(1 − mask) · −∞ is NaN where a key is visible (onnx/onnx, Attention cases)", mask="bool2d")
class _FillTimesZero(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits + (1 - mask.to(logits.dtype)) * -math.inf


@mutant(
    "row_constant_changes_nothing",
    "logits are clamped to at most 8 after the mask is added, against overflow",
    mask="float2d",
    regime="peaked",
)
class _LogitsClamped(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, mask).clamp(max=8.0)


@mutant(
    "attn_mask_cannot_leak",
    "a soft-cap applied after the mask makes −∞ finite (onnx/onnx, softcap cases)",
    mask="bool3d",
)
class _CapAfterMask(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().apply_mask(logits, mask) if mask is None else 15 * (super().apply_mask(logits, mask) / 15).tanh()


@mutant("nan_behind_a_mask", "nan_to_num replaces NaN in the output by a number", mask="pad")
class _NanSweptAway(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().sum_values(weights, v).nan_to_num()


@mutant("padding_invariance", "logits are multiplied by a temperature that depends on the amount of padding")
class _PaddingInTemperature(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        if mask.numel() == 0 or mask.shape[-2] != 1:
            return super().apply_boolean_mask(logits, mask)
        return super().apply_boolean_mask(logits * (2 - mask.to(logits.dtype).mean()), mask)
