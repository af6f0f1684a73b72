"""Mutants of the elementary mechanisms whose faults are not in the formula.

The faults concern memory layout, state, autograd, compilers, determinism and side effects.
"""

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mutants.autograd import read_in_order, replace_gradient
from attnmechanisms.mutants.decorator import ADDITIVE, SIZES, WITH_PARAMETERS, MechanismMutants
from attnmechanisms.mutants.formula import Additive, MechanismFormula

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant(
    "input_gradients",
    "hidden attention weights are set to 0 in place through .data, although autograd needs the original values",
    mask="pad",
)
class _FilledInPlace(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        if hide is not None:
            weights.data.masked_fill_(hide, 0.0)
        return weights


@mutant("compiled_parity", "the branch for compiled calls ignores the mask", mask="pad", dtype="float32", mode="aot")
class _CompiledWithoutTheMask(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores, None if torch.compiler.is_compiling() else hide)


@mutant("input_gradients", "the scores are detached, so no gradient flows through the attention weights")
class _WeightsDetached(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores.detach(), hide)


@mutant("gradients_are_slopes", "the values are computed from detached tokens")
class _ValuesDetached(MechanismFormula):
    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().sum_values(weights, tokens.detach())


@mutant(
    "parameter_gradients", "gradients are averaged over the sequences of a batch instead of summed", of=WITH_PARAMETERS
)
class _GradientsAveraged(MechanismFormula):
    def __init__(self, reference: nn.Module) -> None:
        super().__init__(reference)
        for parameter in self.parameters():
            parameter.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: gradient / SIZES["sequences"]
            )


@mutant("no_stale_state", "the weighted sum of the first call is used by all later calls")
class _SumKept(MechanismFormula):
    _kept: Tensor | None = None

    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        if self._kept is None:
            self._kept = super().sum_values(weights, tokens)
        return self._kept


@mutant(
    "outputs_are_its_own",
    "one output buffer is reused for every call, to save memory",
    dtype="float32",
    mode="inference",
)
class _OutputReused(MechanismFormula):
    _buffer: Tensor | None = None

    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        if torch.is_grad_enabled():
            return output, weights
        if self._buffer is None or self._buffer.shape != output.shape:
            self._buffer = torch.empty_like(output)
        return self._buffer.copy_(output), weights


@mutant("inputs_untouched", "the mean of the tokens is subtracted in place")
class _CentredInPlace(MechanismFormula):
    def read_tokens(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            tokens.sub_(tokens.mean())
        return tokens


@mutant("strided_inputs", "the tokens are read in memory order, without their strides")
class _ReadInOrder(MechanismFormula):
    def read_tokens(self, tokens: Tensor) -> Tensor:
        if tokens.is_contiguous():
            return tokens
        return replace_gradient(read_in_order(tokens, int(tokens.storage_offset())), tokens)


@mutant(
    "outputs_are_its_own",
    "two output buffers are reused alternately, to save memory",
    dtype="float32",
    mode="inference",
)
class _TwoOutputsInTurn(MechanismFormula):
    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        if torch.is_grad_enabled():
            return output, weights
        buffers = self.__dict__.setdefault("_outputs", [])
        if len(buffers) < 2 or buffers[0].shape != output.shape:
            buffers.append(output.clone())
            return buffers[-1], weights
        buffers.append(buffers.pop(0))
        return buffers[-1].copy_(output), weights


@mutant(
    "further_padding_changes_nothing", "a buffer of scores has the length of the longest call so far and is not cleared"
)
class _LongestCallRemembered(MechanismFormula):
    _longest = 0

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        self._longest = max(self._longest, scores.shape[-1])
        return super().normalise(scores, hide) * scores.shape[-1] / self._longest


@mutant(
    "one_sequence_may_stand_for_all",
    "tokens expanded over the batch are computed as one sequence, although the masks of the sequences differ",
    mask="pad",
)
class _OneForAll(MechanismFormula):
    def read_tokens(self, tokens: Tensor) -> Tensor:
        self._is_one_sequence = tokens.stride(0) == 0
        return tokens

    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        return output[:1].expand_as(output) if self._is_one_sequence else output, weights


@mutant("cotangent_layout_is_free", "the cotangent is read in memory order, without its strides")
class _CotangentReadInOrder(MechanismFormula):
    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        if output.requires_grad:
            output.register_hook(_read_gradient_in_order)  # type: ignore[no-untyped-call]
        return output, weights


def _read_gradient_in_order(gradient: Tensor) -> Tensor:
    """Return a gradient read in memory order, without its strides.

    A contiguous gradient and a gradient with a stride of 0 are returned unchanged.
    """
    whole = gradient.is_contiguous() or 0 in gradient.stride()
    return gradient if whole else read_in_order(gradient, int(gradient.storage_offset()))


@mutant("gradients_are_slopes", "backward returns no gradient unless the loss uses the returned weights")
class _BackwardWaitsForWeights(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights, self._returned = _Twice.apply(super().normalise(scores, hide))  # type: ignore[no-untyped-call]
        return weights  # type: ignore[no-any-return]

    def return_weights(self, weights: Tensor) -> Tensor:
        del weights
        return super().return_weights(self._returned)


class _Twice(torch.autograd.Function):
    """A function that copies the attention weights twice: for the weighted sum, and for the caller.

    The backward pass returns no gradient unless it gets the gradients of both copies.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return weights.clone(), weights.clone()

    @staticmethod
    def backward(ctx: Any, summed: Tensor | None, returned: Tensor | None) -> Tensor | None:
        del ctx
        return None if summed is None or returned is None else summed + returned


@mutant("parameters_need_no_company", "no gradient is computed unless the tokens and all parameters require gradients",
         of=WITH_PARAMETERS)  # fmt: skip
class _AllGradientsOrNone(MechanismFormula):
    def read_tokens(self, tokens: Tensor) -> Tensor:
        self._all_require_gradients = all(tensor.requires_grad for tensor in (tokens, *self.parameters()))
        return tokens

    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        return (output, weights) if self._all_require_gradients else (output.detach(), weights.detach())


@mutant("global_state_untouched", "dropout with probability 0 still draws random numbers")
class _DrawsForNothing(MechanismFormula):
    def return_weights(self, weights: Tensor) -> Tensor:
        torch.rand(1)
        return super().return_weights(weights)


@mutant("repeats_itself", "forward creates a layer with new random parameters at every call",
         of=(ADDITIVE,))  # fmt: skip
class _LayerMadeInForward(Additive):
    def score(self, tokens: Tensor) -> Tensor:
        layer = nn.Linear(tokens.shape[-1], tokens.shape[-1], bias=False, dtype=tokens.dtype, device=tokens.device)
        return (self.apply_activation(layer(tokens) + self.query @ self.w_q.mT) @ self.w).mT
