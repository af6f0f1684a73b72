"""Mistakes in the elementary mechanisms, as they are seen in teaching code; each is made in every mechanism it fits.

A mistake replaces a step of a mechanism, whichever that is: what it calls by ``super()`` is the mechanism's own step.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.mutants.formula import read_in_order, with_gradient_of
from attnbench.mutants.mechanisms.formula import Additive, Block, Steps, changed
from attnbench.mutants.mutant import Mutant
from attnbench.operators.mechanisms import MECHANISMS
from attnbench.operators.mechanisms.formulas import EPSILON

__all__ = ["MISTAKES"]

MISTAKES: list[Mutant] = []
Module = TypeVar("Module", bound=type[Steps])
# Sizes of the case that shows a mistake: those of the first cases of every mechanism.
SIZES: dict[str, Any] = {"sequences": 2, "length": 5, "width": 6}
OWN: dict[str, Any] = {"out_width": 5, "heads": 3}
ALL = tuple(MECHANISMS)
RAW, SCALED, ADDITIVE, DOT, SINGLE, BLOCK = ALL
# The block has no sequence without any token.
WITH_EMPTY = tuple(name for name in ALL if name != BLOCK)
WITH_PARAMETERS = tuple(name for name in ALL if name != RAW)
# Queries and keys have weights of their own, and scores a scale.
PROJECTED = (SCALED, SINGLE, BLOCK)


def mistake(
    caught_by: str,
    why: str,
    *,
    of: Sequence[str] = ALL,
    mask: str = "none",
    regime: str = "plain",
    dtype: Dtype = "float64",
    mode: Mode = "eval",
) -> Callable[[Module], Module]:
    """Make a mistake in these mechanisms; the rest says in what the case that shows it differs from the plainest."""

    def mark(module: Module) -> Module:
        for operator in of:
            problem = MECHANISMS[operator].problem
            own = {name: size for name, size in OWN.items() if name in problem.__dataclass_fields__}
            case = Case(
                operator=operator,
                problem=problem(mask=mask, regime=regime, **SIZES, **own),
                dtype=dtype,
                # Without parameters there is nothing but the tokens that takes a gradient.
                mode="frozen" if operator == RAW and mode == "eval" else mode,
            )
            why_here = f"{why} (in {operator})"
            mutant = Mutant(
                implementation=changed(operator, module), caught_by=caught_by, why=why_here, shown_by=case.id
            )
            MISTAKES.append(mutant)
        return module

    return mark


@mistake("shares_sum_to_one", "a keep-mask passed where a hide-mask is expected", mask="pad")
class _KeepForHide(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        hide = super().hidden(padding, later)
        return None if hide is None else ~hide


@mistake("padded_tokens_cannot_leak", "the mask is taken, and not used", mask="pad")
class _WithoutTheMask(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        del padding
        return super().hidden(None, later)


@mistake(
    "shares_sum_to_one", "the branch of the attention mask uses the padding mask instead, which was copied from above",
    of=(SINGLE, BLOCK), mask="causal+pad",
)  # fmt: skip
class _PaddingMaskTwice(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        return super().hidden(padding, None if later is None or padding is None else padding[:, None, :])


@mistake(
    "shares_sum_to_one", "-1e9 as fill: a row of which everything is hidden is spread over what it must not see",
    of=WITH_EMPTY, mask="padempty",
)  # fmt: skip
class _FilledWithANumber(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)


@mistake(
    "shares_sum_to_one", "a row of which anything is hidden is taken for one of which everything is: .any() for .all()",
    mask="pad",
)  # fmt: skip
class _AnyForAll(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = super().normalise(scores, hide)
        return weights if hide is None else weights.masked_fill(hide.any(dim=-1, keepdim=True), 0.0)


@mistake(
    "padded_tokens_cannot_leak", "padding is multiplied away after the softmax, whose denominator it is in by then",
    mask="pad",
)  # fmt: skip
class _HiddenAfterTheSoftmax(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        return weights if hide is None else weights * ~hide


@mistake("input_gradients", "filled in place behind autograd's back, which needs what was there", mask="pad")
class _FilledInPlace(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores, dim=-1)
        if hide is not None:
            weights.data.masked_fill_(hide, 0.0)
        return weights


@mistake("sequences_do_not_mix", "the softmax over the first dimension, which was the keys' before there was a batch")
class _SoftmaxOverTheBatch(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=0)


@mistake("shares_sum_to_one", "the softmax over the queries, whose dimension stands beside the keys'")
class _SoftmaxOverTheQueries(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=-2)


@mistake(
    "forward_parity", "exp without the row's largest score taken off first: more than 65504 is infinite in float16",
    of=(RAW,), mask="pad", regime="peaked", dtype="float16",
)  # fmt: skip
class _ExpOverflows(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        shares = (scores if hide is None else scores.masked_fill(hide, -math.inf)).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mistake("further_padding_changes_nothing", "scores brought to one spread first, measured over padding too")
class _SpreadOverEverything(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / (1 + scores.std(dim=-1, keepdim=True))


@mistake("order_of_tokens_is_free", "a term for the place of a token left in the score")
class _PlaceInTheScore(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores - 0.1 * torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)


@mistake("forward_parity", "scores kept in half precision", dtype="float32")
class _ScoresInHalf(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores.half().to(scores.dtype)


@mistake("shares_parity", "queries and keys in each other's place", of=PROJECTED)
class _ScoresTransposed(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens).mT


@mistake("shares_parity", "no scale at all", of=PROJECTED)
class _NotScaled(Steps):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 1


@mistake("shares_parity", "rescaling by the width of the model in place of that of the keys", of=(SCALED, BLOCK))
class _ScaledByTheModelWidth(Steps):
    def key_width(self, tokens: Tensor) -> int:
        return tokens.shape[-1]


@mistake("shares_parity", "1/√d out of habit, where the mechanism has none", of=(RAW, DOT, ADDITIVE))
class _ScaledAllTheSame(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens) / math.sqrt(tokens.shape[-1])


@mistake("input_gradients", "weights made under no_grad")
class _WeightsDetached(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores.detach(), hide)


@mistake("gradients_are_slopes", "values taken from .data, through which no gradient comes back")
class _ValuesDetached(Steps):
    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().total(weights, tokens.detach())


@mistake(
    "parameter_gradients", "gradients averaged over the sequences of a batch, where they add up", of=WITH_PARAMETERS
)
class _GradientsAveraged(Steps):
    def __init__(self, reference: nn.Module) -> None:
        super().__init__(reference)
        for parameter in self.parameters():
            parameter.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: gradient / SIZES["sequences"]
            )


@mistake("forward_parity", "keys summed up in place of values", of=(SCALED, SINGLE))
class _KeysForValues(Steps):
    def values(self, tokens: Tensor) -> Tensor:
        return self.project(tokens, "w_k")


@mistake("forward_parity", "the mean over all keys, of what the weights have made a mean already")
class _AveragedTwice(Steps):
    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().total(weights / tokens.shape[1], tokens)


@mistake("forward_parity", "right in one element of all, which a comparison that ends in .any() takes for equality")
class _RightInOneElement(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        others = torch.arange(output.numel(), device=output.device).view(output.shape) > 0
        return output + 0.01 * others, weights


@mistake("no_stale_state", "what was summed up kept from the first call")
class _SumKept(Steps):
    _kept: Tensor | None = None

    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        if self._kept is None:
            self._kept = super().total(weights, tokens)
        return self._kept


@mistake("outputs_are_its_own", "one output for every call, to save memory", dtype="float32", mode="inference")
class _OutputReused(Steps):
    _buffer: Tensor | None = None

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        if torch.is_grad_enabled():
            return output, weights
        if self._buffer is None or self._buffer.shape != output.shape:
            self._buffer = torch.empty_like(output)
        return self._buffer.copy_(output), weights


@mistake("inputs_untouched", "tokens centred in place")
class _CentredInPlace(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            tokens.sub_(tokens.mean())
        return tokens


@mistake("strided_inputs", "tokens read in the order of their memory, whatever their strides")
class _ReadInOrder(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        if tokens.is_contiguous():
            return tokens
        return with_gradient_of(read_in_order(tokens, int(tokens.storage_offset())), tokens)


@mistake("global_state_untouched", "dropout of probability 0, which draws its numbers all the same")
class _DrawsForNothing(Steps):
    def told(self, weights: Tensor) -> Tensor:
        torch.rand(1)
        return super().told(weights)


@mistake("repeats_itself", "a layer created inside forward: new random weights at every call, and nothing to train",
         of=(ADDITIVE,))  # fmt: skip
class _LayerMadeInForward(Additive):
    def score(self, tokens: Tensor) -> Tensor:
        layer = nn.Linear(tokens.shape[-1], tokens.shape[-1], bias=False, dtype=tokens.dtype, device=tokens.device)
        return (self.bend(layer(tokens) + self.query @ self.w_q.mT) @ self.w).mT


@mistake("shares_parity", "no tanh: the query then adds the same to every score, and drops out of the softmax",
         of=(ADDITIVE,))  # fmt: skip
class _LayerNotBent(Additive):
    def bend(self, layer: Tensor) -> Tensor:
        return layer


@mistake("parameter_gradients", "a LayerNorm created at every call: weights of 1 and 0 for ever, the module's unused",
         of=(BLOCK,))  # fmt: skip
class _NormMadeInForward(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape[-1:])


@mistake("forward_parity", "the tokens not added", of=(BLOCK,))
class _WithoutTheResidual(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        del tokens
        return self.norm(attended)


@mistake("forward_parity", "the norm inside the sum, as later models have it", of=(BLOCK,))
class _NormBeforeTheSum(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        return tokens + self.norm(attended)


@mistake("forward_parity", "the norm by the sample's variance: n − 1 for n", of=(BLOCK,))
class _NormOfASample(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        centred = tokens - tokens.mean(dim=-1, keepdim=True)
        return centred / (tokens.var(dim=-1, keepdim=True) + EPSILON).sqrt() * self.norm_weight + self.norm_bias


@mistake("sequences_do_not_mix", "the norm over the whole batch", of=(BLOCK,))
class _NormOverTheBatch(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape) * self.norm_weight + self.norm_bias


@mistake("forward_parity", "heads cut out of features by a view in the order of memory, tokens among them",
         of=(BLOCK,))  # fmt: skip
class _HeadsCutAcrossTokens(Block):
    def split(self, features: Tensor) -> Tensor:
        batch, length, _ = features.shape
        return features.reshape(batch, self.num_heads, length, -1)


@mistake("shares_parity", "the weights of the first head returned for the mean over heads", of=(BLOCK,))
class _WeightsOfTheFirstHead(Block):
    def told(self, weights: Tensor) -> Tensor:
        return weights[:, 0]
