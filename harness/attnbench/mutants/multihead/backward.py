"""Mistakes of backward alone: the outputs are right."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.autograd import AsContiguous, Once, with_gradient_of
from attnbench.mutants.multihead.decorator import PROBED, MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant("input_gradients", "a wrong factor in the queries' gradient")
class _QueryGradientOffByThreePercent(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(with_gradient_of(q, 1.03 * q), k)


@mutant("effective_gradient_scale", "a wrong factor, below what one element shows", **PROBED, dtype="bfloat16")
class _KeyGradientOffByOnePercent(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, with_gradient_of(k, 1.01 * k))


@mutant("input_gradients", "the keys' gradient without 1/√D")
class _KeyGradientUnscaled(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, with_gradient_of(k, math.sqrt(self.head_dim) * k))


@mutant("input_gradients", "backward of softmax without its row sum, the delta of flash attention")
class _DeltaMissing(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        return with_gradient_of(shares, shares.detach() * logits.masked_fill(logits == -math.inf, 0.0))


@mutant("input_gradients", "logits' gradient stored in bfloat16")
class _LogitGradientInBfloat16(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        logits = super().score(q, k)
        return with_gradient_of(logits, logits.bfloat16().to(logits.dtype))


@mutant(
    "input_gradients",
    "values of the last tile get no gradient after the first head (flagos-ai/FlagGems#898)",
    queries=8,
    keys=70,
)
class _ValueGradientOfTailMissing(Formula):
    tile = 64

    def total(self, weights: Tensor, v: Tensor) -> Tensor:
        whole = v.shape[2] // self.tile * self.tile
        if whole == 0 or whole == v.shape[2]:
            return super().total(weights, v)
        tail = torch.cat([v[:, :1, whole:], v[:, 1:, whole:].detach()], dim=1)
        return super().total(weights, torch.cat([v[:, :, :whole], tail], dim=2))


@mutant(
    "hidden_keys_get_no_gradient",
    "backward that forgets the mask (triton-lang/triton#4541)",
    mask="causal",
)
class _MaskForgottenInBackward(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, mask=mask, **named)
        unmasked, _ = super().attend(q, k, v, mask=None, **named)
        return with_gradient_of(output, unmasked), weights


@mutant("input_gradients", "NaN repaired in forward alone (pytorch#41508)", mask="empty2d")
class _EmptyRowsPoisonGradients(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1).nan_to_num()


@mutant("mask_gradients", "a bias kernel whose backward forgets the bias (pytorch#145208)", mask="float2d")
class _MaskGradientCut(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return super().hide(logits, None if mask is None else mask.detach())


@mutant(
    "mask_gradients",
    "the gradient of a shared mask from the first sequence alone (jax-ml/jax#30593)",
    mask="float2d",
    mode="train",
)
class _MaskGradientOfOneSequence(Formula):
    def hide(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or mask.dtype == torch.bool or mask.dim() != 2:
            return super().hide(logits, mask)
        return torch.cat([super().hide(logits[:1], mask), super().hide(logits[1:], mask.detach())])


@mutant("mask_gradients", "one of two masks detached", mask="float2d+padfloat")
class _PaddingGradientCut(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["key_padding_mask"]
        return given | {"key_padding_mask": None if mask is None else mask.detach()}


@mutant("input_gradients", "weights returned detached", need_weights=True)
class _WeightsDetached(Formula):
    def told(self, weights: Tensor) -> Tensor:
        return weights.detach()


@mutant("parameter_gradients", "a fused projection that forgets the gradient of one bias")
class _ValueBiasGradientCut(Formula):
    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.in_proj_bias is not None:
            bias = self.split(self.in_proj_bias.chunk(3)[2][None, None]).to(v.dtype)
            v = v - bias + bias.detach()
        return q, k, v


@mutant("parameter_gradients", "a mean over the batch where backward needs the sum", mode="tuning")
class _OutputBiasGradientAveraged(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        output, bias = super().merge(heads), self.out_proj.bias
        return output if bias is None or len(heads) == 0 else output + (1 / len(heads) - 1) * (bias - bias.detach())


@mutant(
    "one_gradient_alone",
    "the mask's gradient only where queries have one too (pytorch#188302)",
    mask="float2d",
    mode="frozen",
)
class _MaskGradientNeedsQuery(Formula):
    def receive(self, given: Arguments) -> Arguments:
        mask = given["attn_mask"]
        return given | {"attn_mask": mask.detach()} if mask is not None and not given["query"].requires_grad else given


@mutant(
    "one_gradient_alone",
    "all or nothing: queries get no gradient unless keys ask for one",
    mode="frozen",
)
class _QueryGradientNeedsKey(Formula):
    def receive(self, given: Arguments) -> Arguments:
        return given if given["key"].requires_grad else given | {"query": given["query"].detach()}


@mutant("backward_repeats", "buffers freed in backward in spite of retain_graph")
class _SecondBackwardZero(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Once.apply(q), k)  # type: ignore[no-untyped-call]


@mutant("cotangent_layout_is_free", "a kernel that takes every cotangent for contiguous (pytorch#133671)")
class _CotangentStridesIgnored(Formula):
    def hand_over(self, output: Tensor, weights: Tensor | None) -> Result:
        return AsContiguous.apply(output), weights  # type: ignore[no-untyped-call]


@mutant(
    "second_derivatives", "backward from the first stored value, as if it did not depend on the inputs",
    dtype="float64", policies=Policies(twice_differentiable=True),
)  # fmt: skip
class _ValuesFixedInBackward(Formula):
    def total(self, weights: Tensor, v: Tensor) -> Tensor:
        first, rest = v[:, :, :1], v[:, :, 1:]
        fixed = super().total(weights, torch.cat([first.detach(), rest], dim=2))
        return with_gradient_of(super().total(weights, v), fixed + super().total(weights[..., :1].detach(), first))


@mutant(
    "second_derivatives", "backward from stored weights, as if they did not depend on the inputs",
    dtype="float64", policies=Policies(twice_differentiable=True),
)  # fmt: skip
class _WeightsFixedInBackward(Formula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        fixed, finite = shares.detach(), logits.masked_fill(logits == -math.inf, 0.0)
        return with_gradient_of(shares, fixed * (finite - (fixed * finite).sum(dim=-1, keepdim=True)))
