"""Mistakes around the core: projections, heads, layouts, state and what is returned."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.interface import Implementation
from attnbench.kernel import HeadSplitAttention
from attnbench.masks import additive, softmax_over_visible
from attnbench.mutants.mutant import Mutant

__all__ = ["MUTANTS"]


class _Right(HeadSplitAttention):
    """The right module; each mutant overrides one of its steps."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        del is_causal
        logits = (q / q.shape[-1] ** 0.5) @ k.mT
        if mask is not None:
            logits = logits + (additive(mask, q.dtype) if mask.dtype == torch.bool else mask)
        weights = torch.dropout(softmax_over_visible(logits), self.dropout, train=self.training)
        return weights @ v, weights if need_weights else None


class _HeadsMergedByView(_Right):
    def merge(self, heads: Tensor) -> Tensor:
        batch, _, queries, _ = heads.shape
        return nn.functional.linear(heads.reshape(batch, queries, -1), self.out_proj.weight, self.out_proj.bias)


class _ValueBiasMissing(_Right):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            v = v - self.split(self.in_proj_bias.chunk(3)[2][None, None])
        return q, k, v


class _BiasGradientCut(_Right):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            bias = self.split(self.in_proj_bias.chunk(3)[2][None, None])
            v = v - bias + bias.detach()
        return q, k, v


class _WeightsAlways(_Right):
    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        return super().forward(*arguments, **named | {"need_weights": True})


class _HeadMajorMask(_Right):
    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        mask = named.get("attn_mask")
        if mask is not None and mask.dim() == 3:
            named["attn_mask"] = mask.unflatten(0, (self.num_heads, -1)).transpose(0, 1).flatten(0, 1)
        return super().forward(*arguments, **named)


class _InputScaledInPlace(_Right):
    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            named["query"].mul_(1.0 + 2.0**-6)
        return super().forward(*arguments, **named)


class _OutputBufferReused(_Right):
    _buffer: Tensor | None = None

    def forward(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = super().forward(*arguments, **named)
        if self._buffer is None or self._buffer.shape != output.shape:
            self._buffer = output
        else:
            self._buffer.data.copy_(output.data)
        return self._buffer, weights


class _KeysCached(_Right):
    _cached: tuple[Tensor, Tensor] | None = None

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self._cached is None:
            self._cached = (k, v)
        return q, *self._cached


class _WeightsCached(_Right):
    _cached: Tensor | None = None

    def merge(self, heads: Tensor) -> Tensor:
        if self._cached is None:
            self._cached = self.out_proj.weight.detach().clone()
        stale = self._cached - self.out_proj.weight.detach()
        return super().merge(heads) + heads.transpose(1, 2).flatten(2) @ stale.mT


class _LastBitRandom(_Right):
    def merge(self, heads: Tensor) -> Tensor:
        merged = super().merge(heads)
        return merged * (1 + torch.finfo(merged.dtype).eps * torch.randint_like(merged, 2))


class _OutputInSingle(_Right):
    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads).float()


class _Module(Implementation):
    def __init__(self, name: str, module: Callable[[nn.MultiheadAttention], nn.Module]) -> None:
        self.name = name
        self._module = module

    def build(self, reference: nn.MultiheadAttention) -> nn.Module:
        return self._module(reference)


def _mutant(name: str, module: Callable[[nn.MultiheadAttention], nn.Module], caught_by: str, why: str) -> Mutant:
    return Mutant(implementation=_Module(name, module), caught_by=caught_by, why=why)


MUTANTS = (
    _mutant(
        "heads_merged_by_view", _HeadsMergedByView, "forward_parity",
        "heads joined without a transpose (jsbaan/transformer-from-scratch#6)",
    ),
    _mutant("value_bias_missing", _ValueBiasMissing, "forward_parity", "invisible with a fresh module's zero biases"),
    _mutant("bias_gradient_cut", _BiasGradientCut, "parameter_gradients", "a fused projection that forgets one bias"),
    _mutant("weights_always", _WeightsAlways, "weights_only_on_request", "need_weights not looked at"),
    _mutant("mask_head_major", _HeadMajorMask, "forward_parity", "the (batch·heads) axis read in the other order"),
    _mutant("input_scaled_in_place", _InputScaledInPlace, "inputs_untouched", "an in-place operation on an argument"),
    _mutant("output_buffer_reused", _OutputBufferReused, "outputs_are_its_own", "one buffer for every call"),
    _mutant("keys_cached", _KeysCached, "no_stale_state", "a cache that is never emptied"),
    _mutant("weights_cached", _WeightsCached, "no_stale_state", "a packed copy that an optimiser does not reach"),
    _mutant("last_bit_random", _LastBitRandom, "repeats_itself", "atomic additions in any order, not declared"),
    _mutant("output_in_single", _OutputInSingle, "forward_parity", "half precision silently widened"),
)  # fmt: skip
