"""Mistakes of everything around the formula: memory, state, graphs, compilers, chance and the caller's own tensors."""

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.autograd import read_in_order, with_gradient_of
from attnmechanisms.mutants.decorator import ADDITIVE, SIZES, WITH_PARAMETERS, MechanismMutants
from attnmechanisms.mutants.formula import Additive, Steps

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant("input_gradients", "filled in place behind autograd's back, which needs what was there", mask="pad")
class _FilledInPlace(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        if hide is not None:
            weights.data.masked_fill_(hide, 0.0)
        return weights


@mutant("compiled_parity", "the branch for compilers is another one", mask="pad", dtype="float32", mode="aot")
class _CompiledWithoutTheMask(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores, None if torch.compiler.is_compiling() else hide)


@mutant("input_gradients", "weights made under no_grad")
class _WeightsDetached(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores.detach(), hide)


@mutant("gradients_are_slopes", "values taken from .data, through which no gradient comes back")
class _ValuesDetached(Steps):
    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().total(weights, tokens.detach())


@mutant(
    "parameter_gradients", "gradients averaged over the sequences of a batch, where they add up", of=WITH_PARAMETERS
)
class _GradientsAveraged(Steps):
    def __init__(self, reference: nn.Module) -> None:
        super().__init__(reference)
        for parameter in self.parameters():
            parameter.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: gradient / SIZES["sequences"]
            )


@mutant("no_stale_state", "what was summed up kept from the first call")
class _SumKept(Steps):
    _kept: Tensor | None = None

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        if self._kept is None:
            self._kept = super().total(weights, tokens)
        return self._kept


@mutant("outputs_are_its_own", "one output for every call, to save memory", dtype="float32", mode="inference")
class _OutputReused(Steps):
    _buffer: Tensor | None = None

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        if torch.is_grad_enabled():
            return output, weights
        if self._buffer is None or self._buffer.shape != output.shape:
            self._buffer = torch.empty_like(output)
        return self._buffer.copy_(output), weights


@mutant("inputs_untouched", "tokens centred in place")
class _CentredInPlace(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            tokens.sub_(tokens.mean())
        return tokens


@mutant("strided_inputs", "tokens read in the order of their memory, whatever their strides")
class _ReadInOrder(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        if tokens.is_contiguous():
            return tokens
        return with_gradient_of(read_in_order(tokens, int(tokens.storage_offset())), tokens)


@mutant("outputs_are_its_own", "two outputs in turn, to save memory", dtype="float32", mode="inference")
class _TwoOutputsInTurn(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        if torch.is_grad_enabled():
            return output, weights
        places = self.__dict__.setdefault("_places", [])
        if len(places) < 2 or places[0].shape != output.shape:
            places.append(output.clone())
            return places[-1], weights
        places.append(places.pop(0))
        return places[-1].copy_(output), weights


@mutant("further_padding_changes_nothing", "a place for scores that is as long as the longest call, and not emptied")
class _LongestCallRemembered(Steps):
    _longest = 0

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        self._longest = max(self._longest, scores.shape[-1])
        return super().normalise(scores, hide) * scores.shape[-1] / self._longest


@mutant("one_sequence_may_stand_for_all", "a stride of 0 taken for one sequence, whatever the masks say", mask="pad")
class _OneForAll(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        self._one = tokens.stride(0) == 0
        return tokens

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return output[:1].expand_as(output) if self._one else output, weights


@mutant("cotangent_layout_is_free", "what comes back from above read in the order of its memory")
class _CotangentReadInOrder(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        if output.requires_grad:
            output.register_hook(_in_order)  # type: ignore[no-untyped-call]
        return output, weights


def _in_order(gradient: Tensor) -> Tensor:
    """A dense gradient as its memory holds it."""
    whole = gradient.is_contiguous() or 0 in gradient.stride()
    return gradient if whole else read_in_order(gradient, int(gradient.storage_offset()))


@mutant("gradients_are_slopes", "a backward that ends where no gradient of the weights comes in")
class _BackwardWaitsForWeights(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights, self._heard = _Twice.apply(super().normalise(scores, hide))  # type: ignore[no-untyped-call]
        return weights  # type: ignore[no-any-return]

    def told(self, weights: Tensor) -> Tensor:
        del weights
        return super().told(self._heard)


class _Twice(torch.autograd.Function):
    """A tensor for what is summed up, and one to be told."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return weights.clone(), weights.clone()

    @staticmethod
    def backward(ctx: Any, summed: Tensor | None, heard: Tensor | None) -> Tensor | None:
        del ctx
        return None if summed is None or heard is None else summed + heard


@mutant("parameters_need_no_company", "one backward for all gradients, none where one of them is not asked for",
         of=WITH_PARAMETERS)  # fmt: skip
class _AllGradientsOrNone(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        self._whole = all(tensor.requires_grad for tensor in (tokens, *self.parameters()))
        return tokens

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return (output, weights) if self._whole else (output.detach(), weights.detach())


@mutant("global_state_untouched", "dropout of probability 0, which draws its numbers all the same")
class _DrawsForNothing(Steps):
    def told(self, weights: Tensor) -> Tensor:
        torch.rand(1)
        return super().told(weights)


@mutant("repeats_itself", "a layer created inside forward: new random weights at every call, and nothing to train",
         of=(ADDITIVE,))  # fmt: skip
class _LayerMadeInForward(Additive):
    def score(self, tokens: Tensor) -> Tensor:
        layer = nn.Linear(tokens.shape[-1], tokens.shape[-1], bias=False, dtype=tokens.dtype, device=tokens.device)
        return (self.bend(layer(tokens) + self.query @ self.w_q.mT) @ self.w).mT
