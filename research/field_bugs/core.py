"""Kinds 1 and 8: faults of kernels on split heads: two widths, grouped heads, two lengths."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import replace_gradient
from research.field_bugs.faults import HALF, FaultList, on_core

__all__ = ["fault"]

fault = FaultList("attention_core")


@fault(
    "bug", 1, 8,
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    condition="values wider than keys, gradient of the queries",
    under=on_core(head_dim_v=12),
    beside=[on_core(), on_core(head_dim_v=4), on_core(head_dim_v=12, mode="inference")],
)  # fmt: skip
class QueryGradientByNarrowValues(CoreFormula):
    """The kernel of dQ takes the width of the keys for that of the values, and leaves out further features."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output, width = super().forward(query, key, value, **named), query.shape[-1]
        if value.shape[-1] <= width or not torch.is_grad_enabled():
            return output
        by_others = super().forward(query.detach(), key, value, **named)
        constant: dict[str, Any] = {name: x.detach() if torch.is_tensor(x) else x for name, x in named.items()}
        by_query = super().forward(query, key.detach(), value.detach(), **constant)
        narrow = torch.cat([by_query[..., :width], by_query[..., width:].detach()], dim=-1)
        return replace_gradient(output, by_others + narrow)


@fault(
    "bug", 1, 8,
    source="https://github.com/XunhaoLai/native-sparse-attention-triton/issues/27",
    inferred=True,
    condition="query heads / key heads other than key heads, gradients of keys or values",
    under=on_core(num_heads=6, kv_heads=2),
    beside=[on_core(num_heads=4, kv_heads=2), on_core(num_heads=6, kv_heads=2, mode="inference"), on_core()],
)  # fmt: skip
class GroupGradientDividedByHeads(CoreFormula):
    """The kernel of dK and dV divides the number of a query head by the wrong of two counts, the key heads."""

    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        right, own = super().repeat_key_heads(tensor, heads), tensor.shape[1]
        if own == heads:
            return right
        places = torch.arange(heads, device=tensor.device) // own
        wrong = tensor[:, places.clamp(max=own - 1)]
        return replace_gradient(right, torch.where((places >= own)[:, None, None], wrong.detach(), wrong))


@fault(
    "bug", 8,
    source="https://github.com/xlite-dev/ffpa-attn/pull/300",
    condition="a causal mask alone, aligned at the bottom right, fewer queries than keys, gradients",
    under=on_core(mask="causal_br"),
    beside=[on_core(mask="causal_br", queries=7), on_core(mask="causal_br", mode="inference"),
            on_core(mask="causal_tl")],
)  # fmt: skip
class CausalBackwardAtOtherCorner(CoreFormula):
    """The backward pass aligns the causal mask at the top left: some keys that a query saw get no gradient."""

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


@fault(
    "bug", 8, 1,
    source="https://github.com/Dao-AILab/flash-attention/issues/2552",
    condition="keys of width 128 or more, half the width of the values no multiple of 32, half precision, gradients",
    under=on_core(head_dim=128, head_dim_v=96, dtype="bfloat16"),
    beside=[on_core(head_dim=128, head_dim_v=64, dtype="bfloat16"), on_core(head_dim=128, head_dim_v=96),
            on_core(head_dim=128, head_dim_v=96, dtype="bfloat16", mode="inference")],
)  # fmt: skip
class ValueGradientOfUnalignedWidth(CoreFormula):
    """The last columns of dV are written with misaligned strides: rolled by one."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        rest = value.shape[-1] // 16 * 16 // 2 % 32
        if query.shape[-1] >= 128 and rest and value.dtype in HALF:
            value = replace_gradient(value, torch.cat([value[..., :-rest], value[..., -rest:].roll(1, -1)], dim=-1))
        return super().forward(query, key, value, **named)


@fault(
    "bug", 8, 1,
    source="https://github.com/HKUSTDial/flash-sparse-attention/pull/190",
    condition="one query, more query heads than key heads, a bias of each head",
    under=on_core(num_heads=4, kv_heads=2, queries=1, mask="bias4d"),
    beside=[on_core(num_heads=4, kv_heads=2, mask="bias4d"), on_core(num_heads=4, queries=1, mask="bias4d"),
            on_core(num_heads=4, kv_heads=2, queries=1, mask="bias2d")],
)  # fmt: skip
class MaskOfAGroupInDecoding(CoreFormula):
    """A decoding step moves the heads of a group to the axis of queries; all get the bias of the group's first head."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        bias, group = named.get("bias"), query.shape[1] // key.shape[1]
        if query.shape[2] == 1 and group > 1 and bias is not None and bias.dim() == 4:
            named["bias"] = bias[:, ::group].repeat_interleave(group, dim=1)
        return super().forward(query, key, value, **named)
