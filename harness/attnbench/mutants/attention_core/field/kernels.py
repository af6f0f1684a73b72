"""Kinds 1 and 8: faults of kernels on split heads: two widths, grouped heads, two lengths."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.conditions import HALF
from attnbench.mutants.mutant import MutantList
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")


@mutant(
    "input_gradients",
    "the kernel of dQ takes the width of the keys for that of the values, and leaves out further features "
    "(XunhaoLai/native-sparse-attention-triton#27)",
    mask="window+bias2d",
    regime="flat",
    sequences=3,
    num_heads=5,
    kv_heads=1,
    queries=8,
    keys=8,
    head_dim=5,
    head_dim_v=12,
    window=3,
    softcap=3.0,
    scale=0.2,
    dtype="bfloat16",
    mode="train",
)
class _QueryGradientByNarrowValues(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output, width = super().forward(query, key, value, **named), query.shape[-1]
        if value.shape[-1] <= width or not torch.is_grad_enabled():
            return output
        by_others = super().forward(query.detach(), key, value, **named)
        constant: dict[str, Any] = {name: x.detach() if torch.is_tensor(x) else x for name, x in named.items()}
        by_query = super().forward(query, key.detach(), value.detach(), **constant)
        narrow = torch.cat([by_query[..., :width], by_query[..., width:].detach()], dim=-1)
        return replace_gradient(output, by_others + narrow)


@mutant(
    "input_gradients",
    "the kernel of dK and dV divides the number of a query head by the wrong of two counts, the key heads "
    "(after XunhaoLai/native-sparse-attention-triton#27)",
    num_heads=6,
    kv_heads=2,
)
class _GroupGradientDividedByHeads(CoreFormula):
    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        right, own = super().repeat_key_heads(tensor, heads), tensor.shape[1]
        if own == heads:
            return right
        places = torch.arange(heads, device=tensor.device) // own
        wrong = tensor[:, places.clamp(max=own - 1)]
        return replace_gradient(right, torch.where((places >= own)[:, None, None], wrong.detach(), wrong))


@mutant(
    "input_gradients",
    "the backward pass aligns the causal mask at the top left: some keys that a query saw get no gradient "
    "(xlite-dev/ffpa-attn#300)",
    mask="causal_br",
    mode="train",
)
class _CausalBackwardAtOtherCorner(CoreFormula):
    seen: Tensor | None = None

    def make_keep_mask(
        self, logits: Tensor, distance: Tensor, *, causal: str | None, window: int | None, key_lengths: Tensor | None
    ) -> Tensor:
        alone = causal == "bottom_right" and window is None and key_lengths is None
        self.seen = torch.ones_like(logits[0, 0], dtype=torch.bool).tril() if alone else None
        return super().make_keep_mask(logits, distance, causal=causal, window=window, key_lengths=key_lengths)

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits if self.seen is None else torch.where(self.seen, logits, logits.detach()))

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().sum_values(weights, value)
        if self.seen is None:
            return output
        return replace_gradient(output, weights @ value.detach() + (weights.detach() * self.seen) @ value)


@mutant(
    "input_gradients",
    "the last columns of dV are written with misaligned strides: rolled by one (Dao-AILab/flash-attention#2552)",
    regime="peaked",
    num_heads=1,
    head_dim=128,
    head_dim_v=104,
    dtype="bfloat16",
    mode="train",
)
class _ValueGradientOfUnalignedWidth(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        rest = value.shape[-1] // 16 * 16 // 2 % 32
        if query.shape[-1] >= 128 and rest and value.dtype in HALF:
            value = replace_gradient(value, torch.cat([value[..., :-rest], value[..., -rest:].roll(1, -1)], dim=-1))
        return super().forward(query, key, value, **named)


@mutant(
    "forward_parity",
    "a decoding step moves the heads of a group to the axis of queries; all get the bias of the group's first "
    "head (HKUSTDial/flash-sparse-attention#190)",
    mask="bias4d+ragged",
    sequences=1,
    num_heads=6,
    kv_heads=2,
    queries=1,
    keys=9,
    head_dim=16,
    scale=0.2,
    dtype="float64",
)
class _MaskOfGroupInDecoding(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        bias, group = named.get("bias"), query.shape[1] // key.shape[1]
        if query.shape[2] == 1 and group > 1 and bias is not None and bias.dim() == 4:
            named["bias"] = bias[:, ::group].repeat_interleave(group, dim=1)
        return super().forward(query, key, value, **named)
