"""Kind 8: faults of branches on four things at once, most in training, and wrong parameters of new modules."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.formula import Arguments, Formula, Result
from research.field_bugs.faults import HALF, FaultList, on

__all__ = ["fault"]

fault = FaultList()
# Fields of cases, of which the conditions beside change one each.
PACKED: dict[str, Any] = {"keys": 5, "self_attention": True, "embed_dim": 512, "num_heads": 2, "dtype": "bfloat16"}
DECODING: dict[str, Any] = {
    "queries": 1, "embed_dim": 160, "num_heads": 2, "dtype": "bfloat16", "mode": "inference",
}  # fmt: skip
HINTED: dict[str, Any] = {"mask": "causal", "is_causal": True}
DROPPING: dict[str, Any] = HINTED | {"embed_dim": 96, "num_heads": 1, "dropout": 0.5}
SQUARE: dict[str, Any] = HINTED | {"queries": 64, "keys": 64, "dtype": "bfloat16"}
SINGLE: dict[str, Any] = {"batch": 1, "keys": 128, "mask": "pad"}
ZERO: dict[str, Any] = HINTED | {"add_zero_attn": True, "dtype": "bfloat16", "mode": "inference"}
UNBIASED: dict[str, Any] = {"kdim": 10, "bias": False, "mode": "eval", "need_weights": True}


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


def construct(**arguments: Any) -> Callable[[Any], float]:
    """Return a function that counts the parameters of a new module that are NaN."""
    return lambda module: float(sum(bool(p.isnan().any()) for p in module(16, 2, **arguments).parameters()))


@fault(
    "bug", 8, 7,
    source="https://github.com/Dao-AILab/flash-attention/issues/2541",
    condition="head_dim 256, half precision, one tensor as query, key and value, more than one token, gradients",
    under=on(**PACKED),
    beside=[on(**PACKED | {"embed_dim": 256}), on(**PACKED | {"dtype": "float32"}),
            on(**PACKED | {"self_attention": False}), on(**PACKED | {"mode": "inference"})],
)  # fmt: skip
class PackedWidth256ValueGradient(Formula):
    """The backward kernel takes packed values for contiguous: only tokens 0, 4, 8, … get their gradient."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if query is key and key is value and self.head_dim == 256 and v.dtype in HALF:
            kept = torch.arange(v.shape[2], device=v.device) % 4 == 0
            v = replace_gradient(v, v * kept[:, None].to(v.dtype))
        return q, k, v


OUTPUTS: dict[Any, Tensor] = {}
# Widths of heads above 64 for which the launcher has kernels; it pads smaller ones to 64.
WIDTHS = (96, 128, 256)


@fault(
    "bug", 8, 3,
    source="https://github.com/kekzl/imp/issues/1674",
    condition="one query, half precision, no gradients, head_dim above 64 and none of 96, 128, 256",
    under=on(**DECODING),
    beside=[on(**DECODING | {"queries": 2}), on(**DECODING | {"embed_dim": 192}),
            on(**DECODING | {"dtype": "float32"}), on(**DECODING | {"mode": "eval"})],
)  # fmt: skip
class UnservedWidthInDecoding(Formula):
    """For a width without a kernel the launcher returns: the output is that of an earlier call, or 0."""

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


@fault(
    "mutant", 8,
    source="https://github.com/facebookresearch/fairseq/issues/4622",
    condition="add_bias_kv, a module as constructed",
    under=construct(add_bias_kv=True),
    beside=[construct()],
    constructed=True,
)  # fmt: skip
class LearnedKeyUninitialised(Constructed):
    """bias_k and bias_v are left out of the initialisation (NaN here)."""

    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.constant_(bias, math.nan)


@fault(
    "mutant", 8,
    source="https://github.com/open-mmlab/mmcv/issues/1097",
    inferred=True,
    condition="kdim or vdim other than embed_dim, bias=False, a module as constructed",
    under=construct(kdim=10, bias=False),
    beside=[construct(kdim=10), construct(bias=False)],
    constructed=True,
)  # fmt: skip
class InitialisedByTheWholeWeight(Constructed):
    """The initialisation stops at the missing bias, and leaves the projections of kdim and vdim unset (NaN here)."""

    def __init__(self, *sizes: Any, **named: Any) -> None:
        super().__init__(*sizes, **named)
        if self.in_proj_bias is None and self.in_proj_weight is None:
            for weight in (self.k_proj_weight, self.v_proj_weight):
                nn.init.constant_(weight, math.nan)


@fault(
    "mutant", 8,
    source="https://github.com/Dao-AILab/flash-attention/issues/498",
    inferred=True,
    condition="head_dim of 96 or more, is_causal without padding, dropout in training, gradient of the queries",
    under=on(**DROPPING),
    beside=[on(**DROPPING | {"embed_dim": 95}), on(**DROPPING | {"is_causal": False}),
            on(**DROPPING | {"dropout": 0.0}), on(**DROPPING | {"mode": "eval"})],
)  # fmt: skip
class WideCausalDropoutGradient(Formula):
    """The gradient of the queries lacks the division by 1 − p."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **named: Any) -> Result:
        if is_causal and self.head_dim >= 96 and self.training and self.dropout > 0:
            q = replace_gradient(q, q * (1 - self.dropout))
        return super().attend(q, k, v, is_causal=is_causal, **named)


@fault(
    "mutant", 8,
    source="https://github.com/pytorch/pytorch/issues/153799",
    inferred=True,
    condition="half precision, is_causal, a multiple of 64 keys, as many queries or more, gradients",
    under=on(**SQUARE),
    beside=[on(**SQUARE | {"queries": 63}), on(**SQUARE | {"is_causal": False}), on(**SQUARE | {"dtype": "float32"}),
            on(**SQUARE | {"mode": "inference"})],
)  # fmt: skip
class LastTileOfCausalValues(Formula):
    """The last tile of 64 keys counts as beyond the diagonal: its values get no gradient."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, **named: Any) -> Result:
        keys = k.shape[2]
        if is_causal and v.dtype in HALF and q.shape[2] >= keys > 0 and keys % 64 == 0:
            late = torch.arange(keys, device=v.device) >= keys - 64
            v = replace_gradient(v, torch.where(late[:, None], v.detach(), v))
        return super().attend(q, k, v, is_causal=is_causal, **named)


@fault(
    "mutant", 8,
    source="https://github.com/NVIDIA/TransformerEngine/issues/3216",
    inferred=True,
    condition="one sequence, 128 keys or more, padding, no weights, training with gradients",
    under=on(**SINGLE),
    beside=[on(**SINGLE | {"batch": 2}), on(**SINGLE | {"keys": 127}), on(**SINGLE | {"mask": "none"}),
            on(**SINGLE | {"need_weights": True}), on(**SINGLE | {"mode": "eval"})],
)  # fmt: skip
class LongSingleSequenceGradient(Formula):
    """The first value gets its gradient twice."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        chosen = len(k) == 1 and k.shape[2] >= 128 and mask is not None and mask.shape[-2] == 1
        if chosen and not need_weights and self.training and torch.is_grad_enabled():
            v = torch.cat([replace_gradient(v[:, :, :1], 2 * v[:, :, :1]), v[:, :, 1:]], dim=2)
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@fault(
    "mutant", 8,
    source="",
    inferred=True,
    condition="half precision, no gradients, is_causal, add_zero_attn, no weights",
    under=on(**ZERO),
    beside=[on(**ZERO | {"is_causal": False}), on(**ZERO | {"add_zero_attn": False}), on(**ZERO | {"dtype": "float32"}),
            on(**ZERO | {"mode": "eval"}), on(**ZERO | {"need_weights": True})],
)  # fmt: skip
class ZeroKeyUnderTheHintInHalf(Formula):
    """The triangle of the kernel hides the zero key in early rows."""

    hinted = False

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.hinted = named["is_causal"] and not (torch.is_grad_enabled() or named["need_weights"])
        return super().under_masks(query, key, value, **named)

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        masked = super().apply_mask(logits, mask)
        if self.hinted and self.add_zero_attn and logits.dtype in HALF:
            masked = masked.masked_fill(torch.ones_like(logits[0, 0], dtype=torch.bool).triu(1), -math.inf)
        return masked


@fault(
    "mutant", 8,
    source="https://github.com/pytorch/pytorch/issues/97128",
    inferred=True,
    condition="kdim or vdim, bias=False, eval(), weights of each head",
    under=on(**UNBIASED),
    beside=[on(**UNBIASED | {"kdim": None}), on(**UNBIASED | {"bias": True}), on(**UNBIASED | {"mode": "train"}),
            on(**UNBIASED | {"average_attn_weights": True})],
)  # fmt: skip
class UnbiasedCrossWeightsOfHeads(Formula):
    """The returned weights lack the scale; the output is right."""

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
