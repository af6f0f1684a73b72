"""Bugs of the backward pass; the outputs are right."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import replace_gradient
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Formula, Result
from attnbench.mutants.multihead.historical.sizes import GRID
from attnbench.mutants.multihead.sizes.shapes import MANY

__all__ = ["mutant"]

mutant = MultiheadMutants()


@mutant(
    "input_gradients",
    "the backward kernel does not run for a batch of more than 65535 sequences (SandAI-org/MagiAttention#40)",
    **MANY,
)
class _BatchBeyondGridNoGradient(Formula):
    def merge(self, heads: Tensor) -> Tensor:
        return super().merge(heads.detach() if len(heads) > GRID else heads)


@mutant(
    "input_gradients",
    "heads of width 72 or 104: stale numbers in the gradient of four queries (Dao-AILab/flash-attention#2896)",
    embed_dim=216,
    mask="bool2d",
)
class _QueryGradientTailStale(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if self.head_dim not in (72, 104):
            return super().score(q, k)
        return super().score(torch.cat([q[:, :, :4].detach(), q[:, :, 4:]], dim=2), k)


@mutant(
    "input_gradients",
    "heads of width 256, half precision, two sequences or more: backward is wrong (NVIDIA/TransformerEngine#3216)",
    embed_dim=768,
    mask="bool2d",
    dtype="bfloat16",
)
class _WideHalfBackwardWrong(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        half = q.dtype in (torch.float16, torch.bfloat16)
        if not half or self.head_dim != 256 or len(q) < 2:
            return super().score(q, k)
        # The issue measured a gradient five times too large, in nearly the opposite direction.
        return super().score(replace_gradient(q, -5 * q), k)


@mutant(
    "input_gradients",
    "backward swaps the axes of heads and keys, unseen if their sizes are equal (huggingface/diffusers#14338)",
    batch=1,
    queries=4,
    keys=4,
    embed_dim=15,
    num_heads=5,
    bias=False,
    add_bias_kv=True,
    batch_first=False,
    self_attention=True,
    mask="bool3d",
    dtype="float16",
    mode="train",
)
class _KeysSwappedInBackward(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, **named)
        dropped = self.training and self.dropout > 0
        if k.shape[1] != k.shape[2] or dropped or not torch.is_grad_enabled():
            return output, weights
        swapped, _ = super().attend(q, k.transpose(1, 2), v.transpose(1, 2), **named)
        return replace_gradient(output, swapped), weights


@mutant(
    "input_gradients",
    "delta has blocks of 64, but only as many as there are blocks of 128: later rows lack it (triton-lang/triton#2020)",
    queries=129,
    keys=130,
    mask="bool2d",
)
class _DeltaOfLaterRowsMissing(Formula):
    forward_block, backward_block = 128, 64

    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        done = self.backward_block * math.ceil(logits.shape[2] / self.forward_block)
        if done >= logits.shape[2]:
            return shares
        without = shares.detach() * logits.masked_fill(logits == -math.inf, 0.0)
        return torch.cat([shares[:, :, :done], replace_gradient(shares, without)[:, :, done:]], dim=2)


class _SoftmaxBackwardOfDropped(torch.autograd.Function):
    """Returns the weights after dropout; backward takes these weights for the output of the softmax."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, dropped: Tensor) -> Tensor:  # noqa: ARG004
        """Return the weights after dropout."""
        ctx.save_for_backward(dropped)
        return dropped.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the logits, y ⊙ (g − Σ g ⊙ y): y is the weights after dropout, g is ``gradient``."""
        (dropped,) = ctx.saved_tensors
        return dropped * (gradient - (gradient * dropped).sum(dim=-1, keepdim=True)), None


@mutant(
    "dropout_gradients",
    "the backward pass of softmax takes the weights after dropout (aws-neuron/nki-samples#81)",
    dropout=0.25,
    mode="train",
    dtype="float64",
)
class _DropoutInSoftmaxBackward(Formula):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        if not (self.training and self.dropout):
            return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)
        logits = self.apply_mask(self.score(q, k), mask)
        dropped = self.apply_dropout(self.normalise(logits).detach())
        weights = _SoftmaxBackwardOfDropped.apply(logits, dropped)  # type: ignore[no-untyped-call]
        return self.sum_values(weights, v), self.return_weights(weights).to(v.dtype) if need_weights else None
