"""Mistakes in the elementary mechanisms, as they are seen in teaching code; each is made in every mechanism it fits.

A mistake replaces a step of a mechanism, whichever that is: what it calls by ``super()`` is the mechanism's own step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnbench.cases import Case, Dtype, Mode
from attnbench.masks import softmax_over_visible
from attnbench.mutants.formula import read_in_order, with_gradient_of
from attnbench.mutants.mechanisms.formula import Additive, Block, Steps, changed
from attnbench.mutants.mutant import Mutant
from attnbench.operators.mechanisms import MECHANISMS, suites
from attnbench.operators.mechanisms.formulas import EPSILON

__all__ = ["MISTAKES"]

MISTAKES: list[Mutant] = []
Module = TypeVar("Module", bound=type[Steps])
# Sizes of the case that shows a mistake: those of the first cases of every mechanism, unless it takes others.
SIZES, _, ODD, _, SHORT, LONG = suites.SIZES
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
    sizes: Mapping[str, int] = SIZES,
) -> Callable[[Module], Module]:
    """Make a mistake in these mechanisms; the rest says in what the case that shows it differs from the plainest."""

    def mark(module: Module) -> Module:
        for operator in of:
            problem = MECHANISMS[operator].problem
            own: dict[str, Any] = {n: m for n, m in sizes.items() if n in problem.__dataclass_fields__}
            case = Case(
                operator=operator,
                problem=problem(mask=mask, regime=regime, **own),
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


@mistake(
    "forward_parity", "exp without the row's largest score, of large tokens: infinite in any dtype",
    of=(SCALED, SINGLE, BLOCK), mask="pad", regime="huge", mode="inference",
)  # fmt: skip
class _ExpOfLargeScores(_ExpOverflows):
    """The same in every dtype."""


@mistake("shares_parity", "blocks of 32 keys, of which the earlier are not scaled anew when a larger score comes",
         dtype="float32", sizes=LONG)  # fmt: skip
class _BlocksNotScaledAnew(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        logits = scores if hide is None else scores.masked_fill(hide, -math.inf)
        blocks = [block - block.amax(dim=-1, keepdim=True) for block in torch.split(logits, 32, dim=-1)]
        shares = torch.cat(blocks, dim=-1).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mistake("shares_parity", "features in pairs: the last one of an odd width is left out of the score",
         of=(RAW, SCALED, SINGLE, BLOCK), dtype="float32", sizes=ODD)  # fmt: skip
class _ScoredInPairs(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        q, k = (self.project(tokens, name) for name in ("w_q", "w_k"))
        pairs = q.shape[-1] // 2 * 2
        return q[..., :pairs] @ k[..., :pairs].mT / math.sqrt(self.key_width(tokens))


@mistake("shares_parity", "the scale of the heads that it was tried on", of=(BLOCK,), dtype="float32", sizes=ODD)
class _ScaledForHeadsOfTwo(Steps):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 2


@mistake("shares_sum_to_one", "any mask of queries and keys taken for a causal one", of=(SINGLE, BLOCK), mask="bool2d")
class _AnyMaskIsCausal(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        return super().hidden(padding, None if later is None else torch.ones_like(later).triu(1))


@mistake("shares_sum_to_one", "padding taken for lengths, from which it all follows", mask="padholes")
class _PaddingTakenForLengths(Steps):
    def hidden(self, padding: Tensor | None, later: Tensor | None) -> Tensor | None:
        if padding is not None:
            lengths = (~padding).sum(dim=-1, keepdim=True)
            padding = torch.arange(padding.shape[-1], device=padding.device) >= lengths
        return super().hidden(padding, later)


@mistake("shares_sum_to_one", "a sequence without tokens looked for in the last place alone, where it was tried",
         of=WITH_EMPTY, mask="padempty")  # fmt: skip
class _EmptyOnlyLast(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        weights = torch.softmax(scores if hide is None else scores.masked_fill(hide, -1e9), dim=-1)
        return torch.cat([weights[:-1], super().normalise(scores, hide)[-1:]])


@mistake("sequences_do_not_mix", "a bare squeeze, which takes a length of 1 away as well", of=(DOT, ADDITIVE),
         dtype="float32", sizes=SHORT)  # fmt: skip
class _Squeezed(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        scores = scores if hide is None else scores.masked_fill(hide, -math.inf)
        return softmax_over_visible(scores.squeeze()).reshape(scores.shape)


@mistake("forward_parity", "no more sequences than a grid of four has places", dtype="float32", sizes=SHORT)
class _FourSequencesAtMost(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return torch.cat([output[:4], torch.zeros_like(output[4:])]), weights


@mistake("shares_sum_to_one", "the fast path in half precision hides after the softmax", mask="pad", dtype="float16",
         mode="inference")  # fmt: skip
class _HiddenLateInHalf(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() or scores.dtype != torch.float16 or hide is None:
            return super().normalise(scores, hide)
        return torch.softmax(scores, dim=-1) * ~hide


@mistake("shares_parity", "a factor against overflow, in training in half precision, that is not taken out again",
         of=WITH_PARAMETERS, dtype="float16", mode="train")  # fmt: skip
class _ScaledForTraining(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / 2 if self.training and scores.dtype == torch.float16 else scores


@mistake("compiled_parity", "the branch for compilers is another one", mask="pad", dtype="float32", mode="aot")
class _CompiledWithoutTheMask(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return super().normalise(scores, None if torch.compiler.is_compiling() else hide)


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


@mistake("outputs_are_its_own", "two outputs in turn, to save memory", dtype="float32", mode="inference")
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


@mistake("further_padding_changes_nothing", "a place for scores that is as long as the longest call, and not emptied")
class _LongestCallRemembered(Steps):
    _longest = 0

    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        self._longest = max(self._longest, scores.shape[-1])
        return super().normalise(scores, hide) * scores.shape[-1] / self._longest


@mistake("one_sequence_may_stand_for_all", "a stride of 0 taken for one sequence, whatever the masks say", mask="pad")
class _OneForAll(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        self._one = tokens.stride(0) == 0
        return tokens

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return output[:1].expand_as(output) if self._one else output, weights


@mistake("cotangent_layout_is_free", "what comes back from above read in the order of its memory")
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


@mistake("gradients_are_slopes", "a backward that ends where no gradient of the weights comes in")
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


@mistake("parameters_need_no_company", "one backward for all gradients, none where one of them is not asked for",
         of=WITH_PARAMETERS)  # fmt: skip
class _AllGradientsOrNone(Steps):
    def receive(self, tokens: Tensor) -> Tensor:
        self._whole = all(tensor.requires_grad for tensor in (tokens, *self.parameters()))
        return tokens

    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return (output, weights) if self._whole else (output.detach(), weights.detach())


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
