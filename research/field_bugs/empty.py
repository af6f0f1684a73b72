"""Kind 5: faults with nothing to attend to: no queries, no keys, no sequences, one token."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.formula import Arguments, Formula, Result
from research.field_bugs.backward import GARBAGE, Unwritten
from research.field_bugs.faults import HALF, FaultList, is_watched, on

__all__ = ["fault"]

fault = FaultList()
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


@fault(
    "bug", 5,
    source="https://github.com/Dao-AILab/flash-attention/pull/2776",
    condition="no queries, no keys or no sequences, and a backward pass",
    under=on(keys=0),
    beside=[on(keys=0, mode="inference"), on(keys=1)],
)  # fmt: skip
class BackwardOfNothingRaises(Formula):
    """The forward pass returns early for an empty workload; the backward pass does not, and raises."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Result:
        output, weights = super().attend(q, k, v, **named)
        if 0 in (q.shape[0], q.shape[2], k.shape[2]):
            output = EmptyLaunch.apply(output)  # type: ignore[no-untyped-call]
        return output, weights


@fault(
    "mutant", 5,
    source="https://github.com/ROCm/aiter/issues/1442",
    condition="no keys, half precision",
    under=on(keys=0, dtype="bfloat16", mode="inference"),
    beside=[on(keys=0, mode="inference"), on(keys=1, dtype="bfloat16", mode="inference")],
)  # fmt: skip
class OutputWithoutKeysUnwritten(Formula):
    """The loop over keys runs zero times, and the output is what was in memory (0.5 here)."""

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        return torch.full_like(heads, GARBAGE) if v.shape[2] == 0 and v.dtype in HALF else heads


@fault(
    "mutant", 5,
    source="https://github.com/Dao-AILab/flash-attention/pull/2776",
    condition="no keys, gradients of queries or of their parameters",
    under=on(keys=0),
    beside=[on(keys=0, mode="inference"), on(keys=1)],
)  # fmt: skip
class QueryGradientWithoutKeys(Formula):
    """Without keys the gradient of the queries is never written."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(Unwritten.apply(q, EVERYWHERE) if k.shape[2] == 0 and torch.is_grad_enabled() else q, k)  # type: ignore[no-untyped-call]


@fault(
    "mutant", 5,
    source="https://github.com/Dao-AILab/flash-attention/issues/1713",
    condition="no queries, gradients of keys, of values or of their parameters",
    under=on(queries=0),
    beside=[on(queries=0, mode="inference"), on(queries=1)],
)  # fmt: skip
class KeyGradientWithoutQueries(Formula):
    """Without queries the gradients of keys and values are never written."""

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


@fault(
    "mutant", 5,
    source="https://github.com/Dao-AILab/flash-attention/issues/1159",
    inferred=True,
    condition="no sequences, gradient of out_proj.bias",
    under=on(batch=0),
    beside=[on(batch=0, mode="inference"), on(batch=1), on(batch=0, bias=False)],
)  # fmt: skip
class EmptyBatchGradientNan(Formula):
    """Without sequences the gradient of the output bias is a mean over nothing: NaN."""

    def project_back(self, features: Tensor) -> Tensor:
        weight, bias = self.out_proj.weight, self.out_proj.bias
        if bias is not None and not len(features) and torch.is_grad_enabled() and not is_watched():
            bias = EmptyMean.apply(bias, bias.new_zeros(()))  # type: ignore[no-untyped-call]
        return torch.nn.functional.linear(features, weight, bias)


@fault(
    "mutant", 5,
    source="https://github.com/pytorch/pytorch/issues/174861",
    inferred=True,
    condition="one key, no mask, no weights, training with dropout",
    under=on(keys=1, dropout=0.5),
    beside=[on(keys=1, dropout=0.5, mode="eval"), on(keys=2, dropout=0.5)],
)  # fmt: skip
class OneKeySkipsDropout(Formula):
    """With a single key the softmax is 1, so the value is returned at once, without dropout."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, need_weights: bool, **named: Any
    ) -> Result:
        if k.shape[2] == 1 and mask is None and not need_weights:
            return v.expand(-1, -1, q.shape[2], -1), None
        return super().attend(q, k, v, mask=mask, need_weights=need_weights, **named)


@fault(
    "mutant", 5,
    source="https://github.com/microsoft/onnxruntime/pull/5108",
    inferred=True,
    condition="one query, one key, a boolean mask that hides it",
    under=on(queries=1, keys=1, mask="padempty"),
    beside=[on(queries=2, keys=1, mask="padempty"), on(queries=1, keys=2, mask="padempty"), on(queries=1, keys=1)],
)  # fmt: skip
class OneTokenOfASequenceOfOne(Formula):
    """The shortcut for one token returns the value also where the mask hides the key."""

    def apply_boolean_mask(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits if logits.shape[2:] == (1, 1) else super().apply_boolean_mask(logits, mask)


@fault(
    "mutant", 5,
    source="https://github.com/pytorch/pytorch/issues/109528",
    inferred=True,
    condition="no sequences, averaged weights",
    under=on(batch=0, need_weights=True, average_attn_weights=True, mode="inference"),
    beside=[on(batch=1, need_weights=True, average_attn_weights=True),
            on(batch=0, need_weights=True, mode="inference")],
)  # fmt: skip
class EmptyBatchWeightsOfHeads(Formula):
    """For an empty batch the weights are not averaged: they have the axis of heads."""

    def read_arguments(self, given: Arguments) -> Arguments:
        query = given["query"]
        batch = query.shape[0 if self.batch_first else 1] if query.dim() == 3 else 1
        return given | {"average_attn_weights": given["average_attn_weights"] and batch > 0}


@fault(
    "mutant", 5, 4,
    source="https://github.com/pytorch/pytorch/pull/195812",
    inferred=True,
    condition="compiled or exported, no keys",
    under=on(keys=0, mode="aot"),
    beside=[on(keys=0), on(keys=1, mode="aot")],
)  # fmt: skip
class CompiledWithoutKeysNan(Formula):
    """Compiled, the division by the sum of no weights is not guarded: NaN."""

    def sum_values(self, weights: Tensor, v: Tensor) -> Tensor:
        heads = super().sum_values(weights, v)
        if torch.compiler.is_compiling() and v.shape[2] == 0:
            heads = heads / weights.sum(dim=-1, keepdim=True)
        return heads
