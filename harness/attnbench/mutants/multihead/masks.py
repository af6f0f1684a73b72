"""Mistakes of masks: polarity, order, composition and what hidden keys are filled with."""

import math

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("forward_parity", "true for hidden and true for visible confused (pytorch#170400)", mask="bool2d")
class _MaskInverted(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, ~mask if mask is not None and mask.dtype == torch.bool else mask)


@mutant("forward_parity", "one of two masks turned round (InseeFrLab/torchTextClassifiers#92)", mask="pad")
class _PaddingInverted(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        return given | {"key_padding_mask": ~mask} if mask is not None and mask.dtype == torch.bool else given


@mutant("forward_parity", "a mask of 0 and 1 added instead of applied (pytorch#21518)", mask="bool3d")
class _MaskAddedAsNumbers(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        of_heads = mask is not None and mask.dim() == 4 and mask.shape[1] > 1
        return super().hide(logits, mask.to(logits.dtype) if of_heads and mask is not None else mask)


@mutant("forward_parity", "a float mask read as yes or no (huggingface/transformers#38094)", mask="float2d")
class _MaskAsBoolean(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, mask if mask is None or mask.dtype == torch.bool else mask != -math.inf)


@mutant("mask_gradients", "a float padding mask made boolean (mlverse/torch#1208)", mask="padfloat")
class _PaddingAsBoolean(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        return (
            given | {"key_padding_mask": mask == -math.inf} if mask is not None and mask.is_floating_point() else given
        )


@mutant("forward_parity", "the mask scaled with the logits it is added to", mask="float2d")
class _MaskScaled(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        scaled = mask is not None and mask.dtype != torch.bool
        return super().hide(logits, mask / math.sqrt(self.head_dim) if scaled and mask is not None else mask)


@mutant(
    "attn_mask_cannot_leak",
    "masked_fill whose result is discarded, in the branch for one mask (opendilab/DI-engine#333)",
    mask="bool2d",
)
class _MaskIgnored(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        shared = mask is not None and mask.dim() == 2 and mask.dtype == torch.bool
        return super().hide(logits, None if shared else mask)


@mutant(
    "padding_cannot_leak",
    "a branch for attn_mask that forgets the other (AnswerDotAI/ModernBERT#40)",
    mask="bool2d+pad",
)
class _PaddingIgnoredBesideMask(Formula):
    def receive(self, given: Arguments) -> Arguments:
        return given | {"key_padding_mask": None} if given["attn_mask"] is not None else given


@mutant(
    "attn_mask_cannot_leak", "dropped when an explicit mask is given too (keras-team/keras#23040)", mask="bool2d+pad"
)
class _MaskIgnoredBesidePadding(Formula):
    def receive(self, given: Arguments) -> Arguments:
        return given | {"attn_mask": None} if given["key_padding_mask"] is not None else given


@mutant("padding_cannot_leak", "'and' for 'or': hidden only where both hide", mask="bool2d+pad")
class _MasksIntersected(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask, padding = given["attn_mask"], given["key_padding_mask"]
        boolean = mask is not None and padding is not None and mask.dtype == padding.dtype == torch.bool
        if not boolean or mask.dim() == 3 or padding.dim() == 1:
            return given
        both = (mask & padding[:, None]).repeat_interleave(self.num_heads, 0)
        return given | {"attn_mask": both, "key_padding_mask": None}


@mutant("padding_cannot_leak", "one length for the whole batch (Blaizzy/mlx-vlm#1946)", mask="pad")
class _PaddingOfFirstSequence(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        return given | {"key_padding_mask": mask[:1].expand_as(mask)} if mask is not None and mask.dim() == 2 else given


@mutant("padding_cannot_leak", "repeat for repeat_interleave over heads (jwohlwend/boltz#523)", mask="pad")
class _PaddingTiledOverHeads(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        if mask is None or mask.dim() == 1 or mask.dtype != torch.bool or given["attn_mask"] is not None:
            return given
        queries = given["query"].shape[1 if self.batch_first else 0]
        tiled = mask.repeat(self.num_heads, 1)[:, None].expand(-1, queries, -1)
        return given | {"attn_mask": tiled, "key_padding_mask": None}


@mutant(
    "forward_parity",
    "heads flattened first, mask repeated batch first (lsdefine/attention-is-all-you-need-keras#36)",
    mask="bool3d",
)
class _MaskHeadMajor(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        if mask is None or mask.dim() == 2 or mask.shape[0] % self.num_heads:
            return given
        return given | {"attn_mask": mask.unflatten(0, (self.num_heads, -1)).transpose(0, 1).flatten(0, 1)}


@mutant("forward_parity", "one mask for all heads of a sequence", mask="float3d")
class _MaskOfFirstHead(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, None if mask is None else mask[:, :1] if mask.dim() == 4 else mask)


@mutant("padding_cannot_leak", "hidden keys get a small number, not nothing", mask="pad")
class _MaskFill20(Formula):
    fill = -20.0

    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool:
            return super().hide(logits, mask)
        return logits + torch.where(mask, 0.0, self.fill).to(logits.dtype)


@mutant(
    "exact_zero_leak", "a fill that float32 still sees: e⁻¹⁰⁰ is 4·10⁻⁴⁴", bias=False, regime="zeroleak", mask="pad"
)
class _MaskFill100(_MaskFill20):
    fill = -100.0


@mutant("forward_parity", "the smallest number as fill spreads an empty row evenly", mask="empty2d")
class _EmptyRowsUniform(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool:
            return super().hide(logits, mask)
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


@mutant("forward_parity", "NaN where everything is hidden, not declared (pytorch#103749)", mask="empty3d")
class _EmptyRowsNan(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)


@mutant("forward_parity", "each mask looked at alone: rows that only both empty are spread evenly", mask="union2d+pad")
class _EmptyByUnionUniform(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask, padding = given["attn_mask"], given["key_padding_mask"]
        boolean = mask is not None and padding is not None and mask.dtype == padding.dtype == torch.bool
        if not boolean or mask.dim() == 3 or padding.dim() == 1:
            return given
        apart = ~mask.all(dim=-1, keepdim=True) & ~padding.all(dim=-1)[:, None, None]
        union = mask | padding[:, None]
        union = union & ~(apart & union.all(dim=-1, keepdim=True))
        return given | {"attn_mask": union.repeat_interleave(self.num_heads, 0), "key_padding_mask": None}


@mutant("forward_parity", "a large negative number taken for minus infinity", mask="lowest2d")
class _LowestTakenAsHidden(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        finite = mask is not None and mask.dtype != torch.bool
        return super().hide(logits, mask.masked_fill(mask <= -1e3, -math.inf) if finite and mask is not None else mask)


@mutant("boolean_equals_float_mask", "minus infinity clamped to a finite number, in float masks alone", mask="empty2d")
class _FloatMaskClamped(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        number = mask is not None and mask.dtype != torch.bool
        return super().hide(logits, mask.clamp(min=-3e4) if number and mask is not None else mask)


@mutant("forward_parity", "(1 − mask) · −∞ is NaN where nothing is hidden (onnx/onnx, Attention cases)", mask="bool2d")
class _FillTimesZero(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool:
            return super().hide(logits, mask)
        return logits + (1 - mask.to(logits.dtype)) * -math.inf


@mutant(
    "row_constant_changes_nothing", "logits clamped against overflow, after the mask", mask="float2d", regime="peaked"
)
class _LogitsClamped(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, mask).clamp(max=8.0)


@mutant("attn_mask_cannot_leak", "a soft cap after the mask makes −∞ finite (onnx/onnx, softcap cases)", mask="bool3d")
class _CapAfterMask(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, mask) if mask is None else 15 * (super().hide(logits, mask) / 15).tanh()


@mutant("nan_behind_a_mask", "NaN swept out of the output: a wrong number in its place", mask="pad")
class _NanSweptAway(Formula):
    def total(self, weights: Tensor, v: Tensor) -> Tensor:
        return super().total(weights, v).nan_to_num()


@mutant("padding_invariance", "a temperature from a length that counts padding")
class _PaddingInTemperature(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool or mask.numel() == 0 or mask.shape[-2] != 1:
            return super().hide(logits, mask)
        return super().hide(logits * (2 - mask.to(logits.dtype).mean()), mask)
