"""Bugs of masks: axes, fill values, fully masked rows, and calls that ignore a mask."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "forward_parity",
    "a mask (B, 1, L, S) meets logits of five axes: B is read as heads where both are equal (ml-explore/mlx-lm#1903)",
    queries=8, keys=8, embed_dim=16, num_heads=2, kdim=10, vdim=14, add_zero_attn=True, dropout=0.25,
    mask="union2d+pad", regime="flat",
)  # fmt: skip
class _MaskBatchReadAsHeads(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        fits = mask is not None and mask.dim() == 4 and tuple(mask.shape[:2]) == (self.num_heads, 1)
        return super().apply_mask(logits, mask.transpose(0, 1) if fits and mask is not None else mask)


@mutant(
    "future_cannot_leak",
    "the causal mask is built for one sequence; the other sequences see all keys (huggingface/candle#3582)",
    mask="causal",
    is_causal=True,
    mode="train",
)
class _CausalInFirstSequence(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        if named["is_causal"] and mask is not None and mask.dtype == torch.bool and mask.dim() == 2:
            first = torch.arange(len(query) * self.num_heads, device=mask.device) < self.num_heads
            named["attn_mask"] = mask & first[:, None, None]
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "each mask adds −10000: a query that sees no key attends to keys that one mask hides (microsoft/onnxruntime#14363)",
    mask="union2d+pad",
)
class _HiddenTwice(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        for name in ("attn_mask", "key_padding_mask"):
            if named[name] is not None and named[name].dtype == torch.bool:
                named[name] = named[name].to(query.dtype) * -1e4
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "the fill −1e10 overflows to −∞ in float16: NaN in fully masked rows (google/flax#982)",
    batch=1,
    queries=72,
    keys=72,
    embed_dim=28,
    num_heads=4,
    query_is_key=True,
    need_weights=True,
    mask="empty2d+padempty",
    regime="huge",
    dtype="float16",
    mode="inference_mode",
)
class _HalfFillOverflows(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1) if logits.dtype == torch.float16 else super().normalise(logits)


@mutant(
    "forward_parity",
    "NaN if a mask hides all keys from one head, only where weights are requested (pytorch#160064)",
    batch=None,
    embed_dim=16,
    num_heads=2,
    batch_first=False,
    need_weights=True,
    mask="empty3d",
    mode="sampling",
)
class _EmptyRowsNanWithWeights(Formula):
    wanted = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, need_weights: bool, **named: Any) -> Result:
        self.wanted = need_weights
        return super().attend(q, k, v, need_weights=need_weights, **named)

    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1) if self.wanted else super().normalise(logits)


@mutant(
    "forward_parity",
    "the mask is applied to the weights, after softmax (huggingface/pytorch-image-models#2236)",
    mask="bool2d",
)
class _MaskAfterSoftmax(Formula):
    def compute_shares(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype != torch.bool:
            return super().compute_shares(q, k, mask)
        return super().compute_shares(q, k, None).masked_fill(~mask, -math.inf)


@mutant(
    "forward_parity",
    "logits are multiplied by the mask: hidden logits are 0 (georg-wolflein/good-features#1)",
    mask="pad",
)
class _MaskMultiplied(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits * mask.to(logits.dtype)


@mutant(
    "forward_parity",
    "with a single query, the float mask is scaled by 1/√D with the logits (tenstorrent/tt-metal#56406)",
    queries=1,
    keys=9,
    embed_dim=16,
    num_heads=2,
    kdim=10,
    bias=False,
    add_bias_kv=True,
    add_zero_attn=True,
    dropout=0.25,
    mask="float2d",
    regime="flat",
    dtype="bfloat16",
    mode="inference_mode",
)
class _MaskScaledInDecoding(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask / math.sqrt(self.head_dim) if logits.shape[2] == 1 else mask)


@mutant(
    "compiled_parity",
    "the compiler rewrites attention and drops the additive mask (torch-spyre/torch-spyre#4526)",
    mode="aot",
    mask="float2d+padfloat",
)
class _FloatMaskLostWhenCompiled(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        return logits if compiled else super().apply_float_mask(logits, mask)
