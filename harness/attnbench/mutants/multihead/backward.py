"""Mutants whose backward pass is wrong and whose outputs are right."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.autograd import AsContiguous, Once, replace_gradient
from attnbench.mutants.multihead.decorator import PROBED, MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("input_gradients", "the gradient with respect to the queries is 3 % too large")
class _QueryGradientOffByThreePercent(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(replace_gradient(q, 1.03 * q), k)


@mutant(
    "effective_gradient_scale",
    "the gradient for the keys is 1 % too large: no single element exceeds its allowed error",
    **PROBED,
    dtype="bfloat16",
)
class _KeyGradientOffByOnePercent(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, replace_gradient(k, 1.01 * k))


@mutant("input_gradients", "the gradient with respect to the keys lacks the scale 1/√D")
class _KeyGradientUnscaled(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, replace_gradient(k, math.sqrt(self.head_dim) * k))


@mutant("input_gradients", "the backward pass of softmax lacks its row sum, the delta of flash attention")
class _DeltaMissing(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        return replace_gradient(shares, shares.detach() * logits.masked_fill(logits == -math.inf, 0.0))


@mutant("input_gradients", "the gradient with respect to the logits is stored in bfloat16")
class _LogitGradientInBfloat16(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        return replace_gradient(logits, logits.bfloat16().to(logits.dtype))


@mutant(
    "input_gradients",
    "in the last tile, only the values of the first head get a gradient (flagos-ai/FlagGems#898)",
    queries=8,
    keys=70,
)
class _ValueGradientOfTailMissing(Formula):
    tile = 64

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        whole = v.shape[2] // self.tile * self.tile
        if whole == 0 or whole == v.shape[2]:
            return super().sum_values(weights, v)
        tail = torch.cat([v[:, :1, whole:], v[:, 1:, whole:].detach()], dim=1)
        return super().sum_values(weights, torch.cat([v[:, :, :whole], tail], dim=2))


@mutant(
    "hidden_keys_get_no_gradient",
    "the backward pass ignores the mask (triton-lang/triton#4541)",
    mask="causal",
)
class _MaskForgottenInBackward(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, **named)
        unmasked, _ = super().attend(q, k, v, mask=None, **named)
        return replace_gradient(output, unmasked), weights


@mutant(
    "input_gradients", "NaN of fully masked rows is replaced in the forward pass only (pytorch#41508)", mask="empty2d"
)
class _EmptyRowsPoisonGradients(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1).nan_to_num()


@mutant(
    "mask_gradients", "a kernel with an additive bias returns no gradient for the bias (pytorch#145208)", mask="float2d"
)
class _MaskGradientCut(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return super().apply_float_mask(logits, mask.detach())


@mutant(
    "mask_gradients",
    "the gradient of a mask shared by the batch is taken from the first sequence only (jax-ml/jax#30593)",
    mask="float2d",
    mode="train",
)
class _MaskGradientOfOneSequence(Formula):
    def apply_float_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        if mask.dim() != 2:
            return super().apply_float_mask(logits, mask)
        first, others = super().apply_float_mask(logits[:1], mask), super().apply_float_mask(logits[1:], mask.detach())
        return torch.cat([first, others])


@mutant("mask_gradients", "key_padding_mask gets no gradient, but attn_mask gets a gradient", mask="float2d+padfloat")
class _PaddingGradientCut(Formula):
    def read_padding(self, padding: Tensor) -> Tensor:
        return padding.detach()


@mutant("input_gradients", "the returned weights are detached", need_weights=True)
class _WeightsDetached(Formula):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights.detach()


@mutant("parameter_gradients", "a fused projection computes no gradient for the value bias")
class _ValueBiasGradientCut(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            bias = self.split(self.in_proj_bias.chunk(3)[2][None, None]).to(v.dtype)
            v = v - bias + bias.detach()
        return q, k, v


@mutant(
    "parameter_gradients", "the gradient of the output bias is a mean over the batch instead of a sum", mode="tuning"
)
class _OutputBiasGradientAveraged(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        output, bias = super().merge(heads), self.out_proj.bias
        return output if bias is None or len(heads) == 0 else output + (1 / len(heads) - 1) * (bias - bias.detach())


@mutant(
    "one_gradient_alone",
    "the mask gets a gradient only where the query requires a gradient too (pytorch#188302)",
    mask="float2d",
    mode="frozen",
)
class _MaskGradientNeedsQuery(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        return given | {"attn_mask": mask.detach()} if mask is not None and not given["query"].requires_grad else given


@mutant(
    "one_gradient_alone",
    "the query gets a gradient only where the key requires a gradient too",
    mode="frozen",
)
class _QueryGradientNeedsKey(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        return given if given["key"].requires_grad else given | {"query": given["query"].detach()}


@mutant("backward_repeats", "buffers are freed in backward in spite of retain_graph")
class _SecondBackwardZero(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Once.apply(q), k)  # type: ignore[no-untyped-call]


@mutant("cotangent_layout_is_free", "the backward kernel assumes that every cotangent is contiguous (pytorch#133671)")
class _CotangentStridesIgnored(Formula):
    def return_result(self, output: Tensor, weights: Tensor | None) -> Result:
        return AsContiguous.apply(output), weights  # type: ignore[no-untyped-call]


@mutant(
    "second_derivatives", "backward treats the first key's value vector as a constant, not as a function of the inputs",
    dtype="float64", policies=Policies(twice_differentiable=True),
)  # fmt: skip
class _ValuesFixedInBackward(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        first, rest = v[:, :, :1], v[:, :, 1:]
        fixed = super().sum_values(weights, torch.cat([first.detach(), rest], dim=2))
        return replace_gradient(
            super().sum_values(weights, v), fixed + super().sum_values(weights[..., :1].detach(), first)
        )


@mutant(
    "second_derivatives", "backward treats the stored attention weights as constants, not as functions of the inputs",
    dtype="float64", policies=Policies(twice_differentiable=True),
)  # fmt: skip
class _WeightsFixedInBackward(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        fixed, finite = shares.detach(), logits.masked_fill(logits == -math.inf, 0.0)
        return replace_gradient(shares, fixed * (finite - (fixed * finite).sum(dim=-1, keepdim=True)))
