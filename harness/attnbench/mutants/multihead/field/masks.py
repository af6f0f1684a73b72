"""Kind 2: faults of two masks in one call, and of values of a mask that look as if nothing were hidden."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import Unwritten
from attnbench.mutants.conditions import is_additive, is_boolean
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "boolean_equals_float_mask",
    "the masks are merged by masked_fill, which expects boolean padding: float padding has no effect (pytorch#92554)",
    mask="float2d+pad",
    dtype="float16",
    mode="inference",
)
class _FloatPaddingBesideMask(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if named["attn_mask"] is not None and is_additive(padding):
            named["key_padding_mask"] = padding.masked_fill(padding == padding, 0.0)  # all elements
        return super().under_masks(query, key, value, **named)


@mutant(
    "autocast_parity",
    "a mask of each head is combined with padding along one axis too many: rows of padded tokens are hidden "
    "too (pytorch#63271)",
    mask="bool3d+pad",
    regime="peaked",
    batch=3,
    queries=33,
    keys=33,
    embed_dim=16,
    num_heads=2,
    bias=False,
    add_bias_kv=True,
    add_zero_attn=True,
    batch_first=False,
    self_attention=True,
    need_weights=True,
    dtype="bfloat16",
    mode="autocast_inference",
)
class _PaddedRowsHidden(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_boolean(mask) and is_boolean(padding) and mask.dim() == 3 and query.shape[1] == key.shape[1]:
            named["attn_mask"] = mask | padding.repeat_interleave(self.num_heads, 0)[:, :, None]
        return super().under_masks(query, key, value, **named)


@mutant(
    "parameter_gradients",
    "gradients of keys behind the longest sequence are never written, and keep what was in memory (0.5 here) "
    "(fla-org/flash-linear-attention#892)",
    mask="causal+pad",
    regime="huge",
    batch=1,
    queries=33,
    keys=33,
    embed_dim=8,
    num_heads=1,
    bias=False,
    batch_first=False,
    query_is_key=True,
    is_causal=True,
    dropout=0.25,
    mode="tuning",
)
class _GradientOfTheCommonTail(Formula):
    tail: Tensor | None = None

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.tail, padding = None, named["key_padding_mask"]
        if is_boolean(padding) and torch.is_grad_enabled():
            hidden = padding.all(dim=0)
            self.tail = hidden.flip(0).long().cumprod(0).bool().flip(0)
        return super().under_masks(query, key, value, **named)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.tail is None or not len(k):
            return q, k, v
        places = self.tail[:, None]
        return q, Unwritten.apply(k, places), Unwritten.apply(v, places)  # type: ignore[no-untyped-call]


@mutant(
    "vmap_equals_loop",
    "a float mask counts as hiding nothing if its sum is 0, and is dropped (after huggingface/candle#1933)",
    mask="float3d+padfloat",
    add_bias_kv=True,
    add_zero_attn=True,
    need_weights=True,
)
class _DroppedIfItSumsToZero(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        read = is_additive(mask) and not torch.compiler.is_compiling() and mask.numel()
        if read and float(mask.detach().sum()) == 0:
            named["attn_mask"] = mask * 0
        return super().under_masks(query, key, value, **named)


@mutant(
    "padding_cannot_leak",
    "padding is dropped if the first sequence has none (after huggingface/transformers#46773)",
    mask="pad",
    batch=3,
    keys=5,
    num_heads=2,
    self_attention=True,
    dtype="bfloat16",
    mode="autocast_inference",
)
class _PaddingOfTheFirstSequenceAsked(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        read = is_boolean(padding) and named["attn_mask"] is None and not torch.compiler.is_compiling() and len(padding)
        if read and not bool(padding[0].any()):
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@mutant(
    "padding_invariance",
    "padding is dropped if the first keys, as many as there are queries, are all visible "
    "(huggingface/transformers#39573)",
    need_weights=True,
)
class _PaddingBeyondTheQueries(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding, queries = named["key_padding_mask"], query.shape[1]
        read = is_boolean(padding) and named["attn_mask"] is None and not torch.compiler.is_compiling()
        if read and 0 < queries < key.shape[1] and not bool(padding[:, :queries].any()):
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@mutant(
    "vmap_equals_loop",
    "a float mask without positive values is taken for 0 and minus infinity: every value below 0 hides (after "
    "pytorch#107084)",
    mask="float3d+padfloat",
    add_bias_kv=True,
    add_zero_attn=True,
    need_weights=True,
)
class _NegativeBiasReadAsBoolean(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        read = is_additive(mask) and not (torch.compiler.is_compiling() or mask.requires_grad) and mask.numel()
        if read and float(mask.max()) <= 0:
            named["attn_mask"] = mask.masked_fill(mask < 0, -math.inf)
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "beside float padding, a boolean attn_mask is converted to float and added as 0 and 1 (pytorch#92733)",
    mask="causal+padfloat",
    regime="onehot",
    batch=3,
    embed_dim=32,
    num_heads=2,
    vdim=14,
    add_zero_attn=True,
    batch_first=False,
    need_weights=True,
    dtype="float64",
    mode="sampling",
)
class _TrueAddedToFloatPadding(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        if is_boolean(named["attn_mask"]) and is_additive(named["key_padding_mask"]):
            named |= {"attn_mask": named["attn_mask"].to(query.dtype), "is_causal": False}
        return super().under_masks(query, key, value, **named)


@mutant(
    "mask_gradients",
    "beside boolean padding, a float attn_mask is combined in float16, and so rounded (after pytorch#191612)",
    mask="lowest2d+padleft",
    regime="flat",
    batch=1,
    queries=72,
    keys=72,
    embed_dim=15,
    num_heads=5,
    vdim=14,
    bias=False,
    add_zero_attn=True,
    query_is_key=True,
    need_weights=True,
    mode="frozen",
)
class _FloatBesideBooleanRounded(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        if is_additive(mask) and is_boolean(named["key_padding_mask"]):
            named["attn_mask"] = mask.half().to(mask.dtype)
        return super().under_masks(query, key, value, **named)


@mutant(
    "mask_gradients",
    "the gradient of attn_mask is never written in columns that are hidden in every sequence (0.5 there) "
    "(after fla-org/flash-linear-attention#892)",
    mask="lowest2d+padleft",
    regime="flat",
    batch=1,
    queries=72,
    keys=72,
    embed_dim=15,
    num_heads=5,
    vdim=14,
    bias=False,
    add_zero_attn=True,
    query_is_key=True,
    need_weights=True,
    mode="frozen",
)
class _MaskGradientInTheHiddenTail(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_additive(mask) and mask.requires_grad and is_boolean(padding):
            named["attn_mask"] = Unwritten.apply(mask, padding.all(dim=0))  # type: ignore[no-untyped-call]
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_derivatives",
    "the gradient of attn_mask is added once for each mask, so it is doubled (after HKUSTDial/flash-sparse-"
    "attention#193)",
    mask="float3d+padfloat",
    add_bias_kv=True,
    add_zero_attn=True,
    need_weights=True,
)
class _MaskGradientTwiceBesidePadding(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_additive(mask) and is_additive(padding) and mask.requires_grad and padding.requires_grad:
            finite = mask.masked_fill(mask == -math.inf, 0.0)
            named["attn_mask"] = mask + (finite - finite.detach())
        return super().under_masks(query, key, value, **named)


@mutant(
    "batch_independence",
    "on the fast path, rows of the output beyond the longest sequence of the batch are 0 (pytorch#97111)",
    mask="pad",
    batch=3,
    keys=5,
    num_heads=2,
    self_attention=True,
    mode="inference",
)
class _RowsBeyondTheLongestZero(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        fast = query is key and key is value and not (self.training or torch.is_grad_enabled() or named["need_weights"])
        fast = fast and self.batch_first and named["attn_mask"] is None and is_boolean(padding) and not self.columns
        output, weights = super().under_masks(query, key, value, **named)
        if fast and not torch.compiler.is_compiling():
            output = output.masked_fill(padding.all(dim=0)[:, None], 0.0)
        return output, weights
