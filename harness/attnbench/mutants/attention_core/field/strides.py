"""Kind 7: faults of strides, storage offsets and expanded tensors, and of values that are not random."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.conditions import is_watched
from attnbench.mutants.mutant import MutantList
from attnbench.mutants.softmax import divide_by_sum, make_finite
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")


@mutant(
    "strided_inputs",
    "keys are read with the strides of the values, and the reverse; heads and sequences are found rightly "
    "(flagos-ai/FlagAttention#46)",
)
class _StridesOfKeysAndValuesExchanged(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        if not is_watched() and key.shape == value.shape and key.numel() and key.stride()[2:] != value.stride()[2:]:
            key, value = self._read(key, value.stride()), self._read(value, key.stride())
        return super().forward(query, key, value, **named)

    def _read(self, tensor: Tensor, strides: Sequence[int]) -> Tensor:
        """Return what is read with the last two of the strides; the gradient is right."""
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        places = torch.tensor(tensor.storage_offset())
        for axis, stride in enumerate((*tensor.stride()[:2], *strides[2:])):
            places = places + (torch.arange(tensor.shape[axis]) * stride).view(-1, *(1,) * (3 - axis))
        memory = tensor.detach().as_strided((stored,), (1,), 0)
        return replace_gradient(memory[places.clamp(max=stored - 1).to(tensor.device)], tensor)


@mutant(
    "expanded_inputs",
    "the last of the expanded keys is read from the place of the first (pytorch#191937)",
    mask="causal_br+ragged",
    queries=1,
    keys=33,
    mode="inference",
)
class _ExpandedTileEdge(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        expanded = not torch.compiler.is_compiling() and any(
            key.stride(axis) == 0 < key.shape[axis] - 1 for axis in (0, 1)
        )
        if expanded and key.shape[2] % 32 == 1 and key.shape[2] > 1:
            key = torch.cat([key[:, :, :-1], key[:, :, :1]], dim=2)
        return super().forward(query, key, value, **named)


@mutant("strided_inputs", "keys are loaded in vectors of 4: the storage offset is rounded down (after pytorch#90413)")
class _UnalignedOffset(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        rest = 0 if is_watched() else key.storage_offset() % 4
        if rest and key.numel():
            read = key.detach().as_strided(key.shape, key.stride(), key.storage_offset() - rest)
            key = replace_gradient(read, key)
        return super().forward(query, key, value, **named)


@mutant(
    "strided_inputs",
    "of transposed values, a single key behind the last tile of 16 is not loaded (after pytorch#187504)",
    mask="causal_br+ragged",
    queries=1,
    keys=33,
    mode="inference",
)
class _TransposedValueTail(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        strided = not torch.compiler.is_compiling() and value.stride(-1) != 1 < value.shape[-1]
        if strided and value.shape[2] % 16 == 1 and value.shape[2] > 1:
            value = torch.cat([value[:, :, :-1], torch.zeros_like(value[:, :, -1:])], dim=2)
        return super().forward(query, key, value, **named)


@mutant(
    "forward_parity",
    "a row counts as fully masked if its largest logit is its smallest (after microsoft/onnxruntime#4129)",
    regime="uniform",
    num_heads=6,
    kv_heads=2,
    keys=8,
    dtype="bfloat16",
    mode="inference",
)
class _EqualLogitsAsEmpty(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        if logits.shape[-1] < 2:
            return shares
        least, most = logits.detach().aminmax(dim=-1, keepdim=True)
        return shares.masked_fill(least == most, 0.0)


@mutant(
    "forward_parity",
    "online softmax leaves out the rescaling where the maximum rises by more than 8, in place of less (after "
    "https://github.com/Dao-AILab/flash-attention)",
    mask="causal_br+window+ragged",
    regime="onehot",
    sequences=1,
    queries=66,
    keys=72,
    head_dim=5,
    head_dim_v=12,
    window=3,
    scale=0.2,
    dtype="float64",
    mode="train",
)
class _RescaleSkipped(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        blocks: list[Tensor] = []
        largest = torch.full_like(logits[..., :1], -math.inf) if logits.shape[-1] else logits
        for block in torch.split(logits, 64, dim=-1) if logits.shape[-1] else ():
            before, largest = largest, torch.maximum(largest, block.detach().amax(dim=-1, keepdim=True))
            kept = (before - make_finite(largest)).exp()
            kept = torch.where((largest - before > 8) & (before > -math.inf), torch.ones_like(kept), kept)
            blocks = [kept * one for one in blocks] + [(block - make_finite(largest)).exp()]
        return divide_by_sum(torch.cat(blocks, dim=-1)) if blocks else logits


@mutant(
    "strided_inputs",
    "a bias is read with the number of keys as the stride of its rows (microsoft/onnxruntime-genai#1639)",
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
class _BiasRowStride(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        bias = named.get("bias")
        if bias is not None and bias.dim() == 2 and not is_watched() and len(bias) > 1:
            columns = bias.shape[1]
            if bias.stride(1) == 1 and bias.stride(0) > columns:
                read = bias.detach().as_strided(bias.shape, (columns, 1), bias.storage_offset())
                named["bias"] = replace_gradient(read, torch.where(bias.isfinite(), bias, 0.0))
        return super().forward(query, key, value, **named)
