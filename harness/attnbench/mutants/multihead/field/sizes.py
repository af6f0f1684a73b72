"""Kind 1: faults at coincidences of sizes. Each is wrong at some sizes only, and right at all others."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.conditions import HALF, is_boolean
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.softmax import divide_by_sum, make_finite

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "autocast_parity",
    "with one key, key_padding_mask has the shape of an exporter's dummy mask, and is dropped "
    "(microsoft/onnxruntime#5108)",
    mask="float3d+padempty",
    regime="onehot",
    batch=1,
    queries=1,
    keys=1,
    embed_dim=15,
    num_heads=5,
    self_attention=True,
    dropout=0.25,
    dtype="float16",
    mode="autocast_inference",
)
class _DummyMaskOneKey(Formula):
    def read_padding(self, padding: Tensor) -> Tensor | None:
        return None if padding.dtype == torch.bool and padding.shape[1] == 1 else padding


@mutant(
    "forward_parity",
    "the axes of packed queries, keys and values are found by size: all heads get the output of the first head"
    " (NVIDIA/TransformerEngine#1182)",
    mask="pad",
    regime="peaked",
    batch=3,
    queries=8,
    keys=8,
    add_zero_attn=True,
    batch_first=False,
    self_attention=True,
    need_weights=True,
    dtype="bfloat16",
    mode="train",
)
class _PackedLayoutOfThreeHeads(Formula):
    packed = False

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.packed = query is key and key is value and named["attn_mask"] is None
        return super().under_masks(query, key, value, **named)

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        lost = self.packed and self.num_heads in (3, 7) and heads.dtype in HALF
        return heads[:, :1].expand(heads.shape) if lost else heads


@mutant(
    "forward_parity",
    "the loop over blocks of 128 keys is as long as that over queries, so later keys are never read (after "
    "jax-ml/jax#24491)",
    regime="peaked",
    batch=1,
    queries=128,
    keys=128,
    embed_dim=15,
    num_heads=5,
    add_bias_kv=True,
    self_attention=True,
    mode="train",
)
class _KeyBlocksCountedByQueries(Formula):
    block = 128

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        end = self.block * math.ceil(q.shape[2] / self.block)
        if mask is None and not need_weights:
            k, v = k[:, :, :end], v[:, :, :end]
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@mutant(
    "forward_parity",
    "heads of all sequences are computed in slices of 16; the number of slices is rounded down, the rest stays"
    " 0 (huggingface/diffusers#8837)",
    mask="pad",
    regime="minilm0",
    batch=3,
    queries=14,
    keys=14,
    embed_dim=384,
    num_heads=12,
    self_attention=True,
    mode="inference",
)
class _SlicesRoundedDown(Formula):
    slice_size = 16

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        rows = heads.shape[0] * heads.shape[1]
        if rows <= self.slice_size:
            return heads
        done = torch.arange(rows, device=heads.device) < rows // self.slice_size * self.slice_size
        return heads.masked_fill(~done.view(*heads.shape[:2], 1, 1), 0.0)


@mutant(
    "forward_parity",
    "an attn_mask with as many rows as there are sequences is taken for padding, one row for each sequence "
    "(idiap/fast-transformers#101)",
    mask="bool2d",
    regime="peaked",
    queries=2,
    keys=3,
    add_zero_attn=True,
    need_weights=True,
    average_attn_weights=True,
    dtype="float16",
    mode="inference",
)
class _MaskReadAsPadding(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        alone = named["key_padding_mask"] is None and is_boolean(mask)
        if alone and mask.dim() == 2 and len(mask) == len(query) > 1:
            named |= {"attn_mask": None, "key_padding_mask": mask, "is_causal": False}
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "key_padding_mask is added to the logits without new axes: row b hides the keys of query b (idiap/fast-"
    "transformers#101)",
    mask="pad",
    regime="peaked",
    batch=7,
    queries=7,
    keys=4,
    embed_dim=20,
    num_heads=4,
    need_weights=True,
    dtype="float64",
    mode="train",
)
class _PaddingReadAsMask(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if named["attn_mask"] is None and is_boolean(padding) and len(query) == query.shape[1] > 1:
            named |= {"attn_mask": padding, "key_padding_mask": None}
        return super().under_masks(query, key, value, **named)


@mutant(
    "weights_parity",
    "weights are averaged over the first axis with as many elements as heads: that of the sequences, if equal "
    "(after NVIDIA/TransformerEngine#1182)",
    mask="union2d+padlowest",
    regime="huge",
    queries=66,
    keys=72,
    embed_dim=32,
    num_heads=2,
    kdim=10,
    vdim=10,
    key_is_value=True,
    need_weights=True,
    dropout=0.25,
    mode="tuning",
)
class _AxisOfHeadsFoundBySize(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        if weights.shape[0] == self.num_heads:
            weights = weights.mean(dim=0, keepdim=True).transpose(0, 1).expand(weights.shape)
        return weights


@mutant(
    "forward_parity",
    "a mask is transposed as in a framework with the axes (keys, queries), if its shape then still fits (after"
    " meta-pytorch/opacus#774)",
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
class _SquareMaskTransposed(Formula):
    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        if mask is not None and mask.dim() == 2 and mask.shape[0] == mask.shape[1] and mask.is_floating_point():
            named["attn_mask"] = mask.mT
        return super().under_masks(query, key, value, **named)


@mutant(
    "forward_parity",
    "the axis of features is found by its size: keys with as many tokens as features are transposed (after "
    "pytorch#195320)",
    mask="float3d",
    regime="peaked",
    batch=5,
    queries=2,
    keys=72,
    embed_dim=72,
    num_heads=2,
    add_zero_attn=True,
    batch_first=False,
    dtype="float64",
    mode="inference",
)
class _FeaturesFoundBySize(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if key.shape[1] == key.shape[2] == value.shape[2] and key.shape[1] != query.shape[1]:
            key, value = key.mT, value.mT
        return super().project(query, key, value)


@mutant(
    "forward_parity",
    "the branch for aligned sizes gives every block of 16 queries the mask of the first block (after thu-"
    "ml/SageAttention#26)",
    mask="bool2d+padfloat",
    regime="peaked",
    batch=1,
    queries=32,
    keys=48,
    embed_dim=15,
    num_heads=5,
    need_weights=True,
    average_attn_weights=True,
    dtype="float16",
    mode="inference",
)
class _AlignedBranchRepeatsTheMask(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        queries, keys = logits.shape[2:]
        if queries % 16 == keys % 16 == 0 and mask.shape[-2] == queries > 16 and logits.dtype in HALF:
            mask = mask[..., torch.arange(queries, device=mask.device) % 16, :]
        return super().apply_float_mask(logits, mask)


@mutant(
    "forward_parity",
    "the last features of heads of an unaligned width are left out of the logits (after pytorch#90413)",
    regime="peaked",
    batch=5,
    keys=2,
    embed_dim=72,
    num_heads=2,
    batch_first=False,
    dtype="bfloat16",
    mode="train",
)
class _WidthBetweenTiles(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        rest = self.head_dim % 8
        if rest and self.head_dim > 32 and q.dtype in HALF:
            q = torch.cat([q[..., :-rest], torch.zeros_like(q[..., -rest:])], dim=-1)
        return super().score(q, k)


@mutant(
    "weights_parity",
    "the loop ends at a block of 64 hidden keys: the zero or learned key in the block behind it is lost (after"
    " pytorch#127055)",
    mask="causal",
    regime="peaked",
    batch=1,
    queries=128,
    keys=128,
    embed_dim=20,
    num_heads=4,
    add_zero_attn=True,
    need_weights=True,
    is_causal=True,
    dtype="bfloat16",
    mode="inference",
)
class _ExtraKeyInItsOwnBlock(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        logits = super().apply_mask(logits, mask)
        keys = logits.shape[-1] - self.columns
        if not self.columns or keys % 64 or not keys:
            return logits
        hidden = (logits[..., keys - 64 : keys] == -math.inf).all(dim=-1, keepdim=True)
        extra = logits[..., keys:].masked_fill(hidden, -math.inf)
        return torch.cat([logits[..., :keys], extra], dim=-1)


@mutant(
    "forward_parity",
    "from 128 queries on, another path is off by one in the last row of each block of 64 queries (after sgl-"
    "project/sglang#22434)",
    mask="causal",
    batch=1,
    queries=300,
    keys=300,
    num_heads=2,
    self_attention=True,
    is_causal=True,
    mode="train",
)
class _CausalFrom128(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, **named: Any) -> Result:
        queries, keys = q.shape[2], k.shape[2]
        if is_causal and queries >= 128 and mask is not None and mask.dtype == torch.bool:
            rows = torch.arange(queries, device=q.device)[:, None]
            mask = mask | ((rows % 64 == 63) & (torch.arange(keys, device=q.device) == rows + 1))
        return super().attend(q, k, v, mask=mask, is_causal=is_causal, **named)


@mutant(
    "input_gradients",
    "where the last tile of 32 keys is full, the loop of the backward pass ends one key early (after pytorch#196678)",
    regime="peaked",
    batch=1,
    queries=128,
    keys=128,
    embed_dim=15,
    num_heads=5,
    add_bias_kv=True,
    self_attention=True,
    mode="train",
)
class _GradientOfWholeTile(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if k.shape[2] and k.shape[2] % 32 == 0:
            last = (torch.arange(k.shape[2], device=k.device) == k.shape[2] - 1)[:, None]
            k, v = (replace_gradient(x, torch.where(last, x.detach(), x)) for x in (k, v))
        return q, k, v


@mutant(
    "rising_logits",
    "the maximum of the first 16 keys is subtracted from all logits, so later ones can overflow",
    batch=2,
    queries=5,
    keys=130,
    embed_dim=21,
    num_heads=3,
    bias=False,
    regime="identity",
    mode="inference",
)
class _MaximumOfTheFirstKeys(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        if not logits.shape[-1]:
            return super().normalise(logits)
        return divide_by_sum((logits - make_finite(logits[..., :16].detach().amax(dim=-1, keepdim=True))).exp())
