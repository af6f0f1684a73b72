"""Mutants of state between calls: buffers, caches, in-place changes and nondeterminism."""

import time
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


class _Reused(Formula):
    """Base of mutants that return a value in a buffer, which later calls without gradients overwrite."""

    _buffer: Tensor | None = None

    def reuse_buffer(self, value: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return value
        if self._buffer is None or self._buffer.shape != value.shape:
            self._buffer = torch.empty_like(value)
        return self._buffer.copy_(value)


@mutant("outputs_are_its_own", "one output buffer is reused for every call", mode="inference")
class _OutputBufferReused(_Reused):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return self.reuse_buffer(output), weights


@mutant(
    "outputs_are_its_own",
    "one buffer is reused for the weights that every call returns",
    mode="inference",
    need_weights=True,
)
class _WeightsBufferReused(_Reused):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return output, None if weights is None else self.reuse_buffer(weights)


@mutant("outputs_are_its_own", "the output overwrites the query, to save memory", mode="inference", regime="flat")
class _OutputOverQuery(Formula):
    def attention(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        output, weights = super().attention(query, key, value, **named)
        kept = torch.is_grad_enabled() or torch.is_inference_mode_enabled() or torch.compiler.is_compiling()
        return output if kept else query.copy_(output), weights


@mutant("inputs_untouched", "the query is scaled in place")
class _InputScaledInPlace(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        with torch.no_grad():
            given["query"].mul_(1.0 + 2.0**-6)
        return given


@mutant(
    "inputs_untouched", "to avoid NaN, the first key is made visible by writing to the caller's mask", mask="padempty"
)
class _FirstKeyShownInPlace(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        if mask is not None and mask.dtype == torch.bool:
            mask[..., :1] = False
        return given


@mutant("inputs_untouched", "a parameter is renormalised in place in every training step", mode="train")
class _ParameterChangedInPlace(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        if self.training:
            self.out_proj.weight.data.mul_(1 - 2.0**-9)
        return super().merge(heads)


@mutant("no_stale_state", "keys and values are cached, and the cache is never cleared")
class _KeysCached(Formula):
    _cached: tuple[Tensor, Tensor] | None = None

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self._cached is None:
            self._cached = (k, v)
        return q, *self._cached


@mutant(
    "no_stale_state",
    "projected keys are cached by memory address, but a later call may have other keys at the same address",
    mode="inference",
)
class _KeysCachedByAddress(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return q, k, v
        place = (key.data_ptr(), value.data_ptr(), key.shape, key.stride(), value.stride(), q.dtype)
        cache = self.__dict__.setdefault("_cache", {})
        return q, *cache.setdefault(place, (k, v))


@mutant("no_stale_state", "calls use a packed copy of a parameter; an optimiser step does not change the copy")
class _WeightsCached(Formula):
    _packed: Tensor | None = None

    def merge(self, heads: Tensor) -> Tensor:
        if self._packed is None:
            self._packed = self.out_proj.weight.detach().clone()
        stale = self._packed - self.out_proj.weight.detach()
        return super().merge(heads) + heads.transpose(1, 2).flatten(2) @ stale.mT


@mutant(
    "no_stale_state",
    "the first mask of each shape is cached and used for all later masks of that shape",
    mask="bool2d",
    mode="inference",
)
class _MaskCachedByShape(Formula):
    def apply_mask(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.requires_grad or torch.compiler.is_compiling():
            return super().apply_mask(logits, mask)
        cache = self.__dict__.setdefault("_masks", {})
        return super().apply_mask(logits, cache.setdefault((mask.shape, mask.dtype), mask.clone()))


@mutant(
    "other_shapes_between_calls",
    "the causal mask of the longest call is cached and cropped at the wrong end (facebookresearch/xformers#66)",
    mask="causal",
    is_causal=True,
)
class _CausalMaskCached(Formula):
    _longest: Tensor | None = None

    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        if not given["is_causal"] or mask is None or mask.dim() != 2 or mask.dtype != torch.bool:
            return given
        queries, keys = mask.shape
        if self._longest is None or self._longest.shape[0] < queries or self._longest.shape[1] < keys:
            self._longest = mask.clone()
        rows, columns = self._longest.shape
        return given | {"attn_mask": self._longest[rows - queries :, columns - keys :]}


@mutant(
    "other_shapes_between_calls",
    "a work buffer keeps the size of the first call: if a later call has more keys, the further keys are lost",
)
class _KeyCountRemembered(Formula):
    _keys: int | None = None

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().sum_values(weights, v)
        self._keys = v.shape[2] if self._keys is None else self._keys
        return super().sum_values(weights[..., : self._keys], v[:, :, : self._keys])


def _draw_bits(tensor: Tensor) -> Tensor:
    """Draw zeros and ones from a generator that ``torch.manual_seed`` does not seed."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns())
    return torch.randint(2, tensor.shape, generator=generator).to(tensor)


@mutant(
    "repeats_itself",
    "atomic additions run in random order; no policy declares this (Dao-AILab/flash-attention#414)",
)
class _LastBitRandom(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if torch.compiler.is_compiling():
            return output, weights
        return output * (1 + torch.finfo(output.dtype).eps * _draw_bits(output)), weights


@mutant("repeats_many_times", "a race condition changes the output of one call in sixteen", mode="train")
class _RareRace(Formula):
    _calls = 0

    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        if torch.compiler.is_compiling():
            return output, weights
        self._calls += 1
        return output * (1 + torch.finfo(output.dtype).eps * (self._calls % 16 == 0)), weights
