"""Kind 7: faults of strides, storage offsets and expanded tensors, and of values that are not random."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.softmax import divide_by_sum, make_finite
from research.field_bugs.faults import FaultList, is_watched, on_core

__all__ = ["fault"]

fault = FaultList("attention_core")
PYTORCH = "https://github.com/pytorch/pytorch/issues/"
Tensors = dict[str, Tensor]


def expand_keys(tensors: Tensors) -> None:
    """Give all sequences the keys of the first, by stride 0."""
    tensors["key"] = tensors["key"][:1].expand_as(tensors["key"])


def permute(name: str, *axes: int) -> Callable[[Tensors], None]:
    """Return a function that stores a tensor with its axes in another order."""

    def prepare(tensors: Tensors) -> None:
        back = torch.tensor(axes).argsort().tolist()
        tensors[name] = tensors[name].permute(axes).contiguous().permute(back)

    return prepare


def permute_both(tensors: Tensors) -> None:
    """Store keys and values with their heads inside their tokens."""
    for name in ("key", "value"):
        permute(name, 0, 2, 1, 3)(tensors)


def widen(name: str, *, before: int, after: int) -> Callable[[Tensors], None]:
    """Return a function that makes a tensor a slice of a wider one, along the last axis."""

    def prepare(tensors: Tensors) -> None:
        whole = torch.nn.functional.pad(tensors[name], (before, after), value=1.0)
        tensors[name] = whole[..., before : before + tensors[name].shape[-1]]

    return prepare


def increase(step: float) -> Callable[[Tensors], None]:
    """Return a function that makes all queries ones, and each key larger than the key before it by ``step``."""

    def prepare(tensors: Tensors) -> None:
        tensors["query"].fill_(1.0)
        tensors["key"].copy_(torch.arange(tensors["key"].shape[2])[:, None] * step)

    return prepare


def make_constant(tensors: Tensors) -> None:
    """Give all keys the same values."""
    tensors["key"].fill_(0.5)


@fault(
    "bug", 7,
    source="https://github.com/flagos-ai/FlagAttention/pull/46",
    condition="keys and values of one shape and of other strides along tokens or features",
    under=on_core(prepare=permute("key", 0, 2, 1, 3)),
    beside=[on_core(), on_core(prepare=permute_both)],
)  # fmt: skip
class StridesOfKeysAndValuesExchanged(CoreFormula):
    """Keys are read with the strides of the values, and the reverse; heads and sequences are found rightly."""

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


@fault(
    "bug", 4, 7,
    source=PYTORCH + "146377",
    condition="compiled, gradient of keys that are dense and not contiguous, float32",
    under=on_core(prepare=permute("key", 0, 2, 1, 3), mode="aot"),
    beside=[on_core(mode="aot"), on_core(prepare=permute("key", 0, 2, 1, 3))],
)  # fmt: skip
class CompiledGradientOfStridedKeys(CoreFormula):
    """The compiler is told that the gradient of keys has their strides; the kernel writes it row by row."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        if torch.compiler.is_compiling() and key.dtype == torch.float32 and not key.is_contiguous():
            key = replace_gradient(key, key.transpose(1, 2).reshape(key.shape))
        return super().forward(query, key, value, **named)


@fault(
    "mutant", 7, 1,
    source=PYTORCH + "191937",
    condition="keys with stride 0 along sequences or heads, keys % 32 = 1",
    under=on_core(keys=33, prepare=expand_keys),
    beside=[on_core(keys=34, prepare=expand_keys), on_core(keys=33)],
)  # fmt: skip
class ExpandedTileEdge(CoreFormula):
    """The last of the expanded keys is read from the place of the first."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        expanded = not torch.compiler.is_compiling() and any(
            key.stride(axis) == 0 < key.shape[axis] - 1 for axis in (0, 1)
        )
        if expanded and key.shape[2] % 32 == 1 and key.shape[2] > 1:
            key = torch.cat([key[:, :, :-1], key[:, :, :1]], dim=2)
        return super().forward(query, key, value, **named)


@fault(
    "mutant", 7,
    source=PYTORCH + "90413",
    inferred=True,
    condition="keys with a storage offset that is no multiple of 4",
    under=on_core(prepare=widen("key", before=2, after=6)),
    beside=[on_core(prepare=widen("key", before=4, after=6)), on_core()],
)  # fmt: skip
class UnalignedOffset(CoreFormula):
    """Keys are loaded in vectors of 4: the storage offset is rounded down."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        rest = 0 if is_watched() else key.storage_offset() % 4
        if rest and key.numel():
            read = key.detach().as_strided(key.shape, key.stride(), key.storage_offset() - rest)
            key = replace_gradient(read, key)
        return super().forward(query, key, value, **named)


@fault(
    "mutant", 7, 1,
    source=PYTORCH + "187504",
    inferred=True,
    condition="values stored (…, features, keys), keys % 16 = 1",
    under=on_core(keys=17, prepare=permute("value", 0, 1, 3, 2)),
    beside=[on_core(keys=18, prepare=permute("value", 0, 1, 3, 2)), on_core(keys=17)],
)  # fmt: skip
class TransposedValueTail(CoreFormula):
    """Of transposed values, a single key behind the last tile of 16 is not loaded."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        strided = not torch.compiler.is_compiling() and value.stride(-1) != 1 < value.shape[-1]
        if strided and value.shape[2] % 16 == 1 and value.shape[2] > 1:
            value = torch.cat([value[:, :, :-1], torch.zeros_like(value[:, :, -1:])], dim=2)
        return super().forward(query, key, value, **named)


@fault(
    "mutant", 7,
    source="https://github.com/microsoft/onnxruntime/issues/4129",
    inferred=True,
    condition="all logits of a row equal and finite, more than one key",
    under=on_core(prepare=make_constant),
    beside=[on_core(), on_core(keys=1)],
)  # fmt: skip
class EqualLogitsAsEmpty(CoreFormula):
    """A row counts as fully masked if its largest logit is its smallest."""

    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        if logits.shape[-1] < 2:
            return shares
        least, most = logits.detach().aminmax(dim=-1, keepdim=True)
        return shares.masked_fill(least == most, 0.0)


@fault(
    "mutant", 7,
    source="https://github.com/Dao-AILab/flash-attention",
    inferred=True,
    condition="more than 64 keys, a largest logit that rises by more than 8 from one block to the next",
    under=on_core(keys=130, prepare=increase(0.1)),
    beside=[on_core(keys=130), on_core(keys=130, prepare=increase(-0.1)), on_core(keys=64, prepare=increase(0.1))],
)  # fmt: skip
class RescaleSkipped(CoreFormula):
    """Online softmax leaves out the rescaling where the maximum rises by more than 8, in place of less."""

    def normalise(self, logits: Tensor) -> Tensor:
        blocks: list[Tensor] = []
        largest = torch.full_like(logits[..., :1], -math.inf) if logits.shape[-1] else logits
        for block in torch.split(logits, 64, dim=-1) if logits.shape[-1] else ():
            before, largest = largest, torch.maximum(largest, block.detach().amax(dim=-1, keepdim=True))
            kept = (before - make_finite(largest)).exp()
            kept = torch.where((largest - before > 8) & (before > -math.inf), torch.ones_like(kept), kept)
            blocks = [kept * one for one in blocks] + [(block - make_finite(largest)).exp()]
        return divide_by_sum(torch.cat(blocks, dim=-1)) if blocks else logits


@fault(
    "mutant", 7,
    source="https://github.com/microsoft/onnxruntime-genai/issues/1639",
    condition="a bias (queries, keys) that is a slice of a wider tensor, more than one query",
    under=on_core(mask="bias2d", prepare=widen("bias", before=0, after=7)),
    beside=[on_core(mask="bias2d"), on_core(mask="bias2d", queries=1, prepare=widen("bias", before=0, after=7))],
)  # fmt: skip
class BiasRowStride(CoreFormula):
    """A bias is read with the number of keys as the stride of its rows."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        bias = named.get("bias")
        if bias is not None and bias.dim() == 2 and not is_watched() and len(bias) > 1:
            columns = bias.shape[1]
            if bias.stride(1) == 1 and bias.stride(0) > columns:
                read = bias.detach().as_strided(bias.shape, (columns, 1), bias.storage_offset())
                named["bias"] = replace_gradient(read, torch.where(bias.isfinite(), bias, 0.0))
        return super().forward(query, key, value, **named)
