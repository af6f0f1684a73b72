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


class _EmptyBatchesRefused(Formula):
    """A batch without sequences is refused, as by ``view(batch, -1, …)``."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        if not len(q):
            raise RuntimeError("cannot reshape a tensor of 0 elements")
        return super().score(q, k)


DECLARED = tuple(
    ModuleImplementation(module, name=name, policies=policies)
    for name, module, policies in (
        (
            "softmax_always_in_single",
            _SoftmaxAlwaysInSingle,
            Policies(computes_in="float32", twice_differentiable=True),
        ),
        (
            "declared_shares_before_dropout",
            deviations.TellsSharesBeforeDropout,
            Policies(returned_weights="before_dropout"),
        ),
        ("declared_detached_weights", deviations.Detached, Policies(detached_weights=True)),
        ("declared_mean_by_fill", deviations.MeanByFill, Policies(hidden_rows="mean")),
        (
            "declared_mean_by_bias",
            deviations.MeanByBias,
            Policies(hidden_rows="mean", hidden_row_gradients="softmax"),
        ),
        ("declared_gradients_nan", deviations.NanGradients, Policies(hidden_row_gradients="nan")),
        ("declared_rows_nan", deviations.NanRows, Policies(hidden_rows="nan", hidden_row_gradients="nan")),
        ("declared_empty_batches_refused", _EmptyBatchesRefused, Policies(empty_batches="refused")),
    )
)
