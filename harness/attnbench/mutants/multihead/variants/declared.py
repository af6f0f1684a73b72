"""Correct variants that deviate from the contract as their policies declare."""

from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.multihead import deviations
from attnbench.mutants.multihead.formula import Formula
from attnbench.mutants.mutant import ModuleImplementation

__all__ = ["DECLARED"]


class _SoftmaxAlwaysInSingle(Formula):
    """The softmax is in float32 for every dtype, float64 too, as in torchscale and fairseq; a policy declares this."""

    def normalise(self, logits: Tensor) -> Tensor:
        return super().normalise(logits.float()).to(logits.dtype)


class _DeclaredSharesBeforeDropout(deviations.TellsSharesBeforeDropout):
    pass


class _DeclaredDetachedWeights(deviations.Detached):
    pass


class _DeclaredMeanByFill(deviations.MeanByFill):
    pass


class _DeclaredMeanByBias(deviations.MeanByBias):
    pass


class _DeclaredGradientsNan(deviations.NanGradients):
    pass


class _DeclaredRowsNan(deviations.NanRows):
    pass


class _DeclaredEmptyBatchesRefused(Formula):
    """A batch without sequences is refused, as by ``view(batch, -1, …)``."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if not len(q):
            raise RuntimeError("cannot reshape a tensor of 0 elements")
        return super().score(q, k)


_POLICIES = {
    _SoftmaxAlwaysInSingle: Policies(computes_in="float32", twice_differentiable=True),
    _DeclaredSharesBeforeDropout: Policies(returned_weights="before_dropout"),
    _DeclaredDetachedWeights: Policies(detached_weights=True),
    _DeclaredMeanByFill: Policies(hidden_rows="mean"),
    _DeclaredMeanByBias: Policies(hidden_rows="mean", hidden_row_gradients="softmax"),
    _DeclaredGradientsNan: Policies(hidden_row_gradients="nan"),
    _DeclaredRowsNan: Policies(hidden_rows="nan", hidden_row_gradients="nan"),
    _DeclaredEmptyBatchesRefused: Policies(empty_batches="refused"),
}

DECLARED = tuple(ModuleImplementation(module, policies=policies) for module, policies in _POLICIES.items())
