"""Kind 1: faults at coincidences of sizes. Each is wrong at some sizes only, and right at all others."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.formula import Formula, Result
from research.field_bugs.faults import HALF, FaultList, is_boolean, on

__all__ = ["fault"]

fault = FaultList()
PYTORCH = "https://github.com/pytorch/pytorch/issues/"


@fault(
    "bug", 1, 5,
    source="https://github.com/microsoft/onnxruntime/pull/5108",
    condition="one key, and a boolean key_padding_mask that hides it from a sequence",
    under=on(keys=1, mask="padempty"),
    beside=[on(keys=2, mask="padempty"), on(keys=1)],
)  # fmt: skip
class DummyMaskOneKey(Formula):
    """With one key, key_padding_mask has the shape of an exporter's dummy mask, and is dropped."""

    def read_padding(self, padding: Tensor) -> Tensor | None:
        return None if padding.dtype == torch.bool and padding.shape[1] == 1 else padding


@fault(
    "bug", 1,
    source="https://github.com/NVIDIA/TransformerEngine/issues/1182",
    condition="3 or 7 heads, half precision, one tensor as query, key and value, no attn_mask",
    under=on(keys=5, self_attention=True, dtype="bfloat16"),
    beside=[on(keys=5, self_attention=True, num_heads=4, dtype="bfloat16"), on(keys=5, self_attention=True),
            on(dtype="bfloat16")],
)  # fmt: skip
class PackedLayoutOfThreeHeads(Formula):
    """The axes of packed queries, keys and values are found by size: all heads get the output of the first head."""

    packed = False

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.packed = query is key and key is value and named["attn_mask"] is None
        return super().under_masks(query, key, value, **named)

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        lost = self.packed and self.num_heads in (3, 7) and heads.dtype in HALF
        return heads[:, :1].expand(heads.shape) if lost else heads


@fault(
    "bug", 1,
    source="https://github.com/jax-ml/jax/issues/24491",
    inferred=True,
    condition="more blocks of 128 keys than of 128 queries, without mask and weights",
    under=on(keys=129),
    beside=[on(keys=128), on(queries=129, keys=256), on(keys=129, mask="pad")],
)  # fmt: skip
class KeyBlocksCountedByQueries(Formula):
    """The loop over blocks of 128 keys is as long as that over queries, so later keys are never read."""

    block = 128

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        end = self.block * math.ceil(q.shape[2] / self.block)
        if mask is None and not need_weights:
            k, v = k[:, :, :end], v[:, :, :end]
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@fault(
    "mutant", 1,
    source="https://github.com/huggingface/diffusers/issues/8837",
    condition="batch · heads above 16, and no multiple of 16",
    under=on(batch=9, num_heads=2),
    beside=[on(batch=8, num_heads=2), on(batch=16, num_heads=2)],
)  # fmt: skip
class SlicesRoundedDown(Formula):
    """Heads of all sequences are computed in slices of 16; the number of slices is rounded down, the rest stays 0."""

    slice_size = 16

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        rows = heads.shape[0] * heads.shape[1]
        if rows <= self.slice_size:
            return heads
        done = torch.arange(rows, device=heads.device) < rows // self.slice_size * self.slice_size
        return heads.masked_fill(~done.view(*heads.shape[:2], 1, 1), 0.0)


@fault(
    "mutant", 1,
    source="https://github.com/idiap/fast-transformers/issues/101",
    condition="as many queries as sequences, and a boolean attn_mask (queries, keys) alone",
    under=on(batch=5, mask="bool2d"),
    beside=[on(batch=4, mask="bool2d"), on(batch=5, mask="bool3d")],
)  # fmt: skip
class MaskReadAsPadding(Formula):
    """An attn_mask with as many rows as there are sequences is taken for padding, one row for each sequence."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        alone = named["key_padding_mask"] is None and is_boolean(mask)
        if alone and mask.dim() == 2 and len(mask) == len(query) > 1:
            named |= {"attn_mask": None, "key_padding_mask": mask, "is_causal": False}
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 1,
    source="https://github.com/idiap/fast-transformers/issues/101",
    condition="as many sequences as queries, and a boolean key_padding_mask alone",
    under=on(batch=5, mask="pad"),
    beside=[on(batch=4, mask="pad"), on(batch=5, mask="padfloat")],
)  # fmt: skip
class PaddingReadAsMask(Formula):
    """key_padding_mask is added to the logits without new axes: row b hides the keys of query b."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if named["attn_mask"] is None and is_boolean(padding) and len(query) == query.shape[1] > 1:
            named |= {"attn_mask": padding, "key_padding_mask": None}
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 1,
    source="https://github.com/NVIDIA/TransformerEngine/issues/1182",
    inferred=True,
    condition="as many sequences as heads, and weights",
    under=on(batch=3, need_weights=True, average_attn_weights=True),
    beside=[on(need_weights=True, average_attn_weights=True)],
)  # fmt: skip
class AxisOfHeadsFoundBySize(Formula):
    """Weights are averaged over the first axis with as many elements as heads: that of the sequences, if equal."""

    def return_weights(self, weights: Tensor) -> Tensor:
        if weights.shape[0] == self.num_heads:
            weights = weights.mean(dim=0, keepdim=True).transpose(0, 1).expand(weights.shape)
        return weights


@fault(
    "mutant", 1,
    source="https://github.com/meta-pytorch/opacus/issues/774",
    inferred=True,
    condition="as many queries as keys, and a float attn_mask (queries, keys)",
    under=on(queries=7, mask="float2d"),
    beside=[on(mask="float2d"), on(queries=7, mask="bool2d")],
)  # fmt: skip
class SquareMaskTransposed(Formula):
    """A mask is transposed as in a framework with the axes (keys, queries), if its shape then still fits."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        if mask is not None and mask.dim() == 2 and mask.shape[0] == mask.shape[1] and mask.is_floating_point():
            named["attn_mask"] = mask.mT
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 1,
    source=PYTORCH + "195320",
    inferred=True,
    condition="keys and values of as many tokens as features, and another number of queries",
    under=on(keys=24),
    beside=[on(keys=23), on(queries=24, keys=24)],
)  # fmt: skip
class FeaturesFoundBySize(Formula):
    """The axis of features is found by its size: keys with as many tokens as features are transposed."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if key.shape[1] == key.shape[2] == value.shape[2] and key.shape[1] != query.shape[1]:
            key, value = key.mT, value.mT
        return super().project(query, key, value)


@fault(
    "mutant", 1,
    source="https://github.com/thu-ml/SageAttention/issues/26",
    inferred=True,
    condition="queries and keys both multiples of 16, queries above 16, half precision, a float attn_mask",
    under=on(queries=32, keys=48, mask="float2d", dtype="bfloat16"),
    beside=[on(queries=33, keys=48, mask="float2d", dtype="bfloat16"),
            on(queries=32, keys=49, mask="float2d", dtype="bfloat16"), on(queries=32, keys=48, mask="float2d")],
)  # fmt: skip
class AlignedBranchRepeatsTheMask(Formula):
    """The branch for aligned sizes gives every block of 16 queries the mask of the first block."""

    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        queries, keys = logits.shape[2:]
        if queries % 16 == keys % 16 == 0 and mask.shape[-2] == queries > 16 and logits.dtype in HALF:
            mask = mask[..., torch.arange(queries, device=mask.device) % 16, :]
        return super().apply_float_mask(logits, mask)


@fault(
    "mutant", 1,
    source=PYTORCH + "90413",
    inferred=True,
    condition="heads wider than 32 and of no multiple of 8, half precision",
    under=on(embed_dim=72, num_heads=2, dtype="bfloat16"),
    beside=[on(embed_dim=80, num_heads=2, dtype="bfloat16"), on(embed_dim=72, num_heads=2)],
)  # fmt: skip
class WidthBetweenTiles(Formula):
    """The last features of heads of an unaligned width are left out of the logits."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        rest = self.head_dim % 8
        if rest and self.head_dim > 32 and q.dtype in HALF:
            q = torch.cat([q[..., :-rest], torch.zeros_like(q[..., -rest:])], dim=-1)
        return super().score(q, k)


@fault(
    "mutant", 1,
    source=PYTORCH + "127055",
    inferred=True,
    condition="a multiple of 64 keys, the last 64 hidden from a sequence, add_zero_attn or add_bias_kv",
    under=on(batch=4, keys=128, mask="padempty", add_zero_attn=True),
    beside=[on(batch=4, keys=127, mask="padempty", add_zero_attn=True)],
)  # fmt: skip
class ExtraKeyInABlockOfItsOwn(Formula):
    """The loop ends at a block of 64 hidden keys: the zero or learned key in the block behind it is lost."""

    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        logits = super().apply_mask(logits, mask)
        keys = logits.shape[-1] - self.columns
        if not self.columns or keys % 64 or not keys:
            return logits
        hidden = (logits[..., keys - 64 : keys] == -math.inf).all(dim=-1, keepdim=True)
        extra = logits[..., keys:].masked_fill(hidden, -math.inf)
        return torch.cat([logits[..., :keys], extra], dim=-1)


@fault(
    "mutant", 1,
    source="https://github.com/sgl-project/sglang/issues/22434",
    inferred=True,
    condition="128 queries or more, is_causal without padding",
    under=on(queries=128, keys=130, mask="causal", is_causal=True),
    beside=[on(queries=127, keys=130, mask="causal", is_causal=True), on(queries=128, keys=130, mask="causal")],
)  # fmt: skip
class CausalFrom128(Formula):
    """From 128 queries on, another path is off by one in the last row of each block of 64 queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, **named: Any) -> Result:
        queries, keys = q.shape[2], k.shape[2]
        if is_causal and queries >= 128 and mask is not None and mask.dtype == torch.bool:
            rows = torch.arange(queries, device=q.device)[:, None]
            mask = mask | ((rows % 64 == 63) & (torch.arange(keys, device=q.device) == rows + 1))
        return super().attend(q, k, v, mask=mask, is_causal=is_causal, **named)


@fault(
    "mutant", 1,
    source=PYTORCH + "196678",
    inferred=True,
    condition="a multiple of 32 keys, gradients",
    under=on(keys=32),
    beside=[on(keys=33), on(keys=32, mode="inference")],
)  # fmt: skip
class GradientOfAWholeTile(Formula):
    """Where the last tile of 32 keys is full, the loop of the backward pass ends one key early."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if k.shape[2] and k.shape[2] % 32 == 0:
            last = (torch.arange(k.shape[2], device=k.device) == k.shape[2] - 1)[:, None]
            k, v = (replace_gradient(x, torch.where(last, x.detach(), x)) for x in (k, v))
        return q, k, v
