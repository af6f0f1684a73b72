"""Mutants of kernels that show only after other calls, beside another thread, or under a transform of torch.func."""

from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import Accumulating, WrongForwardSoftmax
from attnbench.mutants.conditions import is_transformed, is_watched
from attnbench.mutants.mutant import MutantList
from attnbench.mutants.softmax import divide_by_sum, make_finite
from attnbench.operators.attention_core.suites import PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")


@mutant(
    "first_or_later_call",
    "a call without gradients folds the scale into a table, which later calls with gradients apply once more",
)
class _ScaleTwiceAfterInference(CoreFormula):
    folded = False

    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.folded |= not (torch.is_grad_enabled() or is_watched())
        return super().score(query, key, scale * scale if self.folded and torch.is_grad_enabled() else scale)


@mutant("copies_after_calls", "the module keeps its weights with their graph, and only leaves can be copied deeply")
class _WeightsKeptWithTheirGraph(CoreFormula):
    last: Tensor | None = None

    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        if not is_watched():
            self.last = shares
        return shares


@mutant("backward_passes_in_turns", "the buffer of dQ is cleared in the forward pass, not before each backward pass")
class _BufferClearedInTheForwardPass(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        counted = torch.is_grad_enabled() and not is_watched()
        return super().score(Accumulating.apply(query) if counted else query, key, scale)  # type: ignore[no-untyped-call]


WORKSPACES: dict[Any, Tensor] = {}


@mutant(
    "two_threads",
    "keys are copied into a workspace of all callers with these sizes",
    mask="causal_tl",
    mode="inference",
)
class _WorkspaceOfAllCallers(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if torch.is_grad_enabled() or is_watched():
            return super().score(query, key, scale)
        place = (key.shape, key.dtype, key.device)
        with torch.inference_mode(mode=False):
            space = WORKSPACES.setdefault(place, torch.empty(key.shape, dtype=key.dtype, device=key.device))
        kept = space.copy_(key)
        return super().score(query, kept, scale)


@mutant(
    "vmap_equals_loop",
    "under a transform the call falls back to a path that hides no key",
    mask="causal_tl",
    mode="train",
)
class _TransformsHideNothing(CoreFormula):
    def apply_mask(self, logits: Tensor, keep: Tensor) -> Tensor:
        return logits if is_transformed() else super().apply_mask(logits, keep)


@mutant("func_grad_works", "under a transform the weights are constant for the derivative")
class _TransformsDetachTheWeights(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().sum_values(weights.detach() if is_transformed() else weights, value)


@mutant("forward_derivatives", "the derivative of forward mode of the softmax lacks the mean of the tangents")
class _ForwardSoftmaxLacksTheMean(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares: Tensor = WrongForwardSoftmax.apply(logits)  # type: ignore[no-untyped-call]
        return shares


@mutant(
    "rising_logits",
    "the maximum of the first 16 keys is subtracted from all logits",
    queries=1,
    keys=257,
    mask="causal_br",
    mode="inference",
)
class _MaximumOfTheFirstKeys(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        if not logits.shape[-1]:
            return super().normalise(logits)
        return divide_by_sum((logits - make_finite(logits[..., :16].detach().amax(dim=-1, keepdim=True))).exp())
