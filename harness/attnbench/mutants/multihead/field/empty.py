"""Kind 5: faults with nothing to attend to: no queries, no keys, no sequences, one token."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.autograd import GARBAGE, Unwritten
from attnbench.mutants.conditions import HALF, is_watched
from attnbench.mutants.multihead.decorator import MultiheadMutants
from attnbench.mutants.multihead.formula import Arguments, Formula, Result

__all__ = ["mutant"]

mutant = MultiheadMutants()


EVERYWHERE = torch.tensor(True)  # noqa: FBT003  # a mask of one element


class EmptyLaunch(torch.autograd.Function):
    """The identity; the backward pass launches a kernel on an empty grid."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        """Return a view of the tensor."""
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004  # autograd's signature
        """Raise the error of the launch."""
        raise RuntimeError("CUDA error: invalid configuration argument")


@mutant(
    "forward_parity",
    "the loop over keys runs zero times, and the output is what was in memory (0.5 here) (ROCm/aiter#1442)",
    keys=0,
    dtype="bfloat16",
    mode="train",
)
class _OutputWithoutKeysUnwritten(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        return torch.full_like(heads, GARBAGE) if v.shape[2] == 0 and v.dtype in HALF else heads


@mutant(
    "input_gradients",
    "without keys the gradient of the queries is never written (Dao-AILab/flash-attention#2776)",
    keys=0,
)
class _QueryGradientWithoutKeys(Formula):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Unwritten.apply(q, EVERYWHERE) if k.shape[2] == 0 and torch.is_grad_enabled() else q, k)  # type: ignore[no-untyped-call]


@mutant(
    "input_gradients",
    "without queries the gradients of keys and values are never written (Dao-AILab/flash-attention#1713)",
    queries=0,
)
class _KeyGradientWithoutQueries(Formula):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        if q.shape[2] == 0 and torch.is_grad_enabled():
            k, v = Unwritten.apply(k, EVERYWHERE), Unwritten.apply(v, EVERYWHERE)  # type: ignore[no-untyped-call]
        return super().attend(q, k, v, **named)


class EmptyMean(torch.autograd.Function):
    """The identity of a bias; the gradient is divided and multiplied by the number of sequences."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, count: Tensor) -> Tensor:
        """Return a view of the bias."""
        ctx.count = count
        return bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return NaN if there are no sequences."""
        return gradient / ctx.count * ctx.count, None


@mutant(
    "parameter_gradients",
    "without sequences the gradient of the output bias is a mean over nothing: NaN (after Dao-AILab/flash-"
    "attention#1159)",
    batch=0,
)
class _EmptyBatchGradientNan(Formula):
    def project_back(self, features: Tensor) -> Tensor:
        weight, bias = self.out_proj.weight, self.out_proj.bias
        if bias is not None and not len(features) and torch.is_grad_enabled() and not is_watched():
            bias = EmptyMean.apply(bias, bias.new_zeros(()))  # type: ignore[no-untyped-call]
        return torch.nn.functional.linear(features, weight, bias)


@mutant(
    "dropout_is_unbiased",
    "with a single key the softmax is 1, so the value is returned at once, without dropout (after pytorch#174861)",
    batch=5,
    queries=17,
    keys=1,
    dropout=0.5,
    mode="train",
)
class _OneKeySkipsDropout(Formula):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        if k.shape[2] == 1 and mask is None and not need_weights:
            return v.expand(-1, -1, q.shape[2], -1), None
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@mutant(
    "forward_parity",
    "the shortcut for one token returns the value also where the mask hides the key (after microsoft/onnxruntime#5108)",
    mask="padempty",
    regime="peaked",
    queries=1,
    keys=1,
    mode="train",
)
class _TokenOfSequenceOfOne(Formula):
    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits if logits.shape[2:] == (1, 1) else super().apply_boolean_mask(logits, mask)


@mutant(
    "weights_parity",
    "for an empty batch the weights are not averaged: they have the axis of heads (after pytorch#109528)",
    mask="float2d",
    batch=0,
    add_zero_attn=True,
    need_weights=True,
    average_attn_weights=True,
    mode="train",
)
class _EmptyBatchWeightsOfHeads(Formula):
    def read_arguments(self, given: Arguments) -> Arguments:
        query = given["query"]
        batch = query.shape[0 if self.batch_first else 1] if query.dim() == 3 else 1
        return given | {"average_attn_weights": given["average_attn_weights"] and batch > 0}


@mutant(
    "compiled_parity",
    "compiled, the division by the sum of no weights is not guarded: NaN (after pytorch#195812)",
    keys=0,
    mode="aot",
)
class _CompiledWithoutKeysNan(Formula):
    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        if torch.compiler.is_compiling() and v.shape[2] == 0:
            heads = heads / weights.sum(dim=-1, keepdim=True)
        return heads
