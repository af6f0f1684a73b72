"""Kind 8: faults of branches on four things at once, most in training, and wrong parameters of new modules."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.conditions import HALF
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class Constructed(Formula):
    """The correct formula with the constructor of the reference."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,  # noqa: FBT001, FBT002  # the reference's signature
        add_bias_kv: bool = False,  # noqa: FBT001, FBT002
        add_zero_attn: bool = False,  # noqa: FBT001, FBT002
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        super().__init__(
            nn.MultiheadAttention(
                embed_dim, num_heads, dropout=dropout, bias=bias, add_bias_kv=add_bias_kv,
                add_zero_attn=add_zero_attn, kdim=kdim, vdim=vdim, batch_first=batch_first,
            )
        )  # fmt: skip


@mutant(
    "input_gradients",
    "the backward kernel takes packed values for contiguous: only tokens 0, 4, 8, … get their gradient (Dao-"
    "AILab/flash-attention#2541)",
    batch=1,
    queries=33,
    keys=33,
    embed_dim=256,
    num_heads=1,
    self_attention=True,
    dtype="bfloat16",
    mode="train",
)
class _PackedWidth256ValueGradient(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if query is key and key is value and self.head_dim == 256 and v.dtype in HALF:
            kept = torch.arange(v.shape[2], device=v.device) % 4 == 0
            v = replace_gradient(v, v * kept[:, None].to(v.dtype))
        return q, k, v


OUTPUTS: dict[Any, Tensor] = {}


# Widths of heads above 64 for which the launcher has kernels; it pads smaller ones to 64.
WIDTHS = (96, 128, 256)


@mutant(
    "forward_parity",
    "for a width without a kernel the launcher returns: the output is that of an earlier call, or 0 (kekzl/imp#1674)",
    queries=1,
    embed_dim=80,
    num_heads=1,
    dtype="bfloat16",
    mode="inference",
)
class _UnservedWidthInDecoding(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        decodes = heads.shape[2] == 1 and heads.dtype in HALF
        if not decodes or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return heads
        place = (heads.numel(), heads.dtype, heads.device)
        if self.head_dim <= 64 or self.head_dim in WIDTHS:
            OUTPUTS[place] = heads.detach().clone()
            return heads
        return OUTPUTS[place].reshape(heads.shape).clone() if place in OUTPUTS else torch.zeros_like(heads)


@mutant(
    "constructed_parameters",
    "bias_k and bias_v are left out of the initialisation (NaN here) (facebookresearch/fairseq#4622)",
    constructed=True,
    mask="float3d+padfloat",
    add_bias_kv=True,
    add_zero_attn=True,
    need_weights=True,
)
class _LearnedKeyUninitialised(Constructed):
    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.constant_(bias, math.nan)


@mutant(
    "constructed_parameters",
    "the initialisation stops at the missing bias, and leaves the projections of kdim and vdim unset (NaN "
    "here) (after open-mmlab/mmcv#1097)",
    constructed=True,
    batch=1,
    queries=8,
    keys=8,
    embed_dim=15,
    num_heads=5,
    kdim=10,
    vdim=10,
    bias=False,
    add_bias_kv=True,
    add_zero_attn=True,
    key_is_value=True,
    need_weights=True,
    average_attn_weights=True,
    dropout=0.25,
    dtype="float16",
)
class _InitialisedByTheWholeWeight(Constructed):
    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        if self.in_proj_bias is None and self.in_proj_weight is None:
            for weight in (self.k_proj_weight, self.v_proj_weight):
                nn.init.constant_(weight, math.nan)


@mutant(
    "dropout_gradients",
    "the gradient of the queries lacks the division by 1 − p (after Dao-AILab/flash-attention#498)",
    mask="causal",
    queries=11,
    keys=13,
    embed_dim=128,
    num_heads=1,
    is_causal=True,
    dropout=0.5,
    dtype="float64",
    mode="train",
)
class _WideCausalDropoutGradient(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **named: Any) -> Result:
        if is_causal and self.head_dim >= 96 and self.training and self.dropout > 0:
            q = replace_gradient(q, q * (1 - self.dropout))
        return super().attend(q, k, v, is_causal=is_causal, **named)


@mutant(
    "input_gradients",
    "the last tile of 64 keys counts as beyond the diagonal: its values get no gradient (after pytorch#153799)",
    mask="causal",
    regime="peaked",
    batch=1,
    queries=64,
    keys=64,
    embed_dim=15,
    num_heads=5,
    need_weights=True,
    is_causal=True,
    dtype="float16",
    mode="train",
)
class _LastTileOfCausalValues(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **named: Any) -> Result:
        keys = k.shape[2]
        if is_causal and v.dtype in HALF and q.shape[2] >= keys > 0 and keys % 64 == 0:
            late = torch.arange(keys, device=v.device) >= keys - 64
            v = replace_gradient(v, torch.where(late[:, None], v.detach(), v))
        return super().attend(q, k, v, is_causal=is_causal, **named)


@mutant(
    "input_gradients",
    "the first value gets its gradient twice (after NVIDIA/TransformerEngine#3216)",
    mask="padfloat",
    regime="peaked",
    batch=1,
    keys=192,
    embed_dim=16,
    num_heads=2,
    mode="train",
)
class _LongSingleSequenceGradient(Formula):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        chosen = len(k) == 1 and k.shape[2] >= 128 and mask is not None and mask.shape[-2] == 1
        if chosen and not need_weights and self.training and torch.is_grad_enabled():
            v = torch.cat([replace_gradient(v[:, :, :1], 2 * v[:, :, :1]), v[:, :, 1:]], dim=2)
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@mutant(
    "forward_parity",
    "the triangle of the kernel hides the zero key in early rows",
    mask="causal",
    add_zero_attn=True,
    is_causal=True,
    dtype="bfloat16",
    mode="inference",
)
class _ZeroKeyUnderTheHintInHalf(Formula):
    hinted = False

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.hinted = named["is_causal"] and not (torch.is_grad_enabled() or named["need_weights"])
        return super().under_masks(query, key, value, **named)

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        if self.hinted and self.add_zero_attn and logits.dtype in HALF:
            masked = masked.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), -math.inf)
        return masked


@mutant(
    "average_is_the_mean_of_heads",
    "the returned weights lack the scale; the output is right (after pytorch#97128)",
    batch=1,
    queries=8,
    keys=8,
    embed_dim=15,
    num_heads=5,
    kdim=10,
    vdim=10,
    bias=False,
    add_bias_kv=True,
    add_zero_attn=True,
    key_is_value=True,
    need_weights=True,
    average_attn_weights=True,
    dropout=0.25,
    dtype="float16",
)
class _UnbiasedCrossWeightsOfHeads(Formula):
    averaged = True

    def read_arguments(self, given: Arguments) -> Arguments:
        self.averaged = given["average_attn_weights"]
        return given

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        unbiased = self.in_proj_weight is None and self.in_proj_bias is None
        if need_weights and unbiased and not (self.averaged or self.training):
            weights = self.normalise(self.apply_mask(q @ k.mT, mask)).to(v.dtype)
        return output, weights
