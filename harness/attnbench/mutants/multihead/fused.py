"""Mutants that are wrong only on a fused inference path, as ``nn.MultiheadAttention`` has one."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()
# Fields of a case that takes the reference's fused path: self-attention in eval mode without gradients, and an even
# number of heads.
FUSED: dict[str, Any] = {"batch": 3, "num_heads": 2, "self_attention": True, "mode": "inference"}


class _Fused(Formula):
    """Base of mutants that change the arguments of calls which the reference would send to its fused path."""

    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        one_tensor = query is key and key is value and self.num_heads % 2 == 0 and self.columns == 0
        if one_tensor and not (self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()):
            named |= self.change(named)
        return super().under_masks(query, key, value, **named)


def _is_float(mask: Tensor | None) -> bool:
    return mask is not None and mask.dtype != torch.bool


@mutant(
    "forward_parity",
    "the fused path reads a float attn_mask as boolean: every number but 0 hides (pytorch#107084)",
    **FUSED | {"queries": 8, "keys": 8, "mask": "float3d"},
)
class _FusedFloatMaskAsBoolean(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        mask = named["attn_mask"]
        return {"attn_mask": mask != 0} if _is_float(mask) else {}


@mutant(
    "forward_parity",
    "the fused path reads a float key_padding_mask as boolean",
    **FUSED | {"queries": 8, "keys": 8, "mask": "empty2d+padfloat"},
)
class _FusedFloatPaddingAsBoolean(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        mask = named["key_padding_mask"]
        return {"key_padding_mask": mask != 0} if _is_float(mask) else {}


@mutant(
    "padding_cannot_leak",
    "the fused path takes a single mask: key_padding_mask is lost beside attn_mask (pytorch#97605)",
    **FUSED | {"queries": 8, "keys": 8, "mask": "bool2d+pad"},
)
class _FusedPaddingLost(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        return {"key_padding_mask": None} if named["attn_mask"] is not None else {}


@mutant(
    "attn_mask_cannot_leak",
    "the fused path takes a single mask: attn_mask is lost beside key_padding_mask",
    **FUSED | {"queries": 8, "keys": 8, "mask": "bool2d+pad"},
)
class _FusedAttnMaskLost(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        return {"attn_mask": None, "is_causal": False} if named["key_padding_mask"] is not None else {}


@mutant(
    "forward_parity",
    "the fused path applies the mask of the first head of a sequence to all its heads",
    **FUSED | {"queries": 8, "keys": 8, "mask": "float3d"},
)
class _FusedMaskOfFirstHead(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        mask = named["attn_mask"]
        if mask is None or mask.dim() != 3:
            return {}
        heads = self.num_heads
        return {"attn_mask": mask[::heads].repeat_interleave(heads, dim=0)}


@mutant(
    "forward_parity",
    "the fused path takes a hint for the mask: where is_causal is set, key_padding_mask is lost",
    **FUSED | {"queries": 5, "keys": 5, "mask": "causal+pad", "is_causal": True, "dtype": "float64"},
)
class _FusedHintLosesPadding(_Fused):
    def change(self, named: dict[str, Any]) -> dict[str, Any]:
        return {"key_padding_mask": None} if named["is_causal"] else {}


@mutant(
    "forward_parity",
    "a single query with is_causal sees all keys: the hint is read as aligned at the last key (huggingface#37807)",
    queries=1,
    keys=9,
    mask="causal",
    is_causal=True,
    mode="inference",
)
class _SingleQueryAtLastKey(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        if named["is_causal"] and query.shape[1] == 1:
            named |= {"attn_mask": None, "is_causal": False}
        return super().under_masks(query, key, value, **named)
