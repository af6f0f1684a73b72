"""Mutants of the elementary mechanisms that compute a wrong formula.

Many of the faults occur in teaching code.
"""

import math

import torch
from torch import Tensor, nn

from attnbench.masks import softmax_over_visible
from attnmechanisms.mutants.decorator import (
    ADDITIVE,
    BLOCK,
    DOT,
    LONG,
    ODD,
    PROJECTED,
    RAW,
    SCALED,
    SHORT,
    SINGLE,
    WITH_PARAMETERS,
    MechanismMutants,
)
from attnmechanisms.mutants.formula import Additive, Block, MechanismFormula
from attnmechanisms.operators.formulas import EPSILON

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant("sequences_do_not_mix", "softmax over the first axis, which was the key axis before a batch axis was added")
class _SoftmaxOverTheBatch(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=0)


@mutant("shares_sum_to_one", "softmax over the query axis instead of the key axis")
class _SoftmaxOverTheQueries(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=-2)


@mutant(
    "forward_parity", "exp without subtracting the row maximum: in float16, exp overflows beyond 65504",
    of=(RAW,), mask="pad", regime="peaked", dtype="float16",
)  # fmt: skip
class _ExpOverflows(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        shares = (scores if hide is None else scores.masked_fill(hide, -math.inf)).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mutant(
    "forward_parity", "exp without subtracting the row maximum: large tokens overflow exp in any dtype",
    of=(SCALED, SINGLE, BLOCK), mask="pad", regime="huge", mode="inference",
)  # fmt: skip
class _ExpOfLargeScores(_ExpOverflows):
    """The fault of ``_ExpOverflows``, in a case with scores so large that exp overflows in every dtype."""


@mutant("shares_parity", "softmax in blocks of 32 keys: earlier blocks are not rescaled to a larger maximum",
         dtype="float32", sizes=LONG)  # fmt: skip
class _BlocksNotScaledAnew(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        logits = scores if hide is None else scores.masked_fill(hide, -math.inf)
        blocks = [block - block.amax(dim=-1, keepdim=True) for block in torch.split(logits, 32, dim=-1)]
        shares = torch.cat(blocks, dim=-1).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mutant("shares_parity", "features are taken in pairs: the score lacks the last feature of an odd width",
         of=(RAW, SCALED, SINGLE, BLOCK), dtype="float32", sizes=ODD)  # fmt: skip
class _ScoredInPairs(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        q, k = (self.project(tokens, name) for name in ("w_q", "w_k"))
        pairs = q.shape[-1] // 2 * 2
        return q[..., :pairs] @ k[..., :pairs].mT / math.sqrt(self.key_width(tokens))


@mutant(
    "shares_parity",
    "the scale is fixed at 1/√2, which is right only for heads of width 2",
    of=(BLOCK,),
    dtype="float32",
    sizes=ODD,
)
class _ScaledForHeadsOfTwo(MechanismFormula):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 2


@mutant("sequences_do_not_mix", "squeeze() without an axis also removes a length axis of size 1", of=(DOT, ADDITIVE),
         dtype="float32", sizes=SHORT)  # fmt: skip
class _Squeezed(MechanismFormula):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        scores = scores if hide is None else scores.masked_fill(hide, -math.inf)
        return softmax_over_visible(scores.squeeze()).reshape(scores.shape)


@mutant(
    "forward_parity",
    "only the outputs of the first four sequences are computed, as by a kernel whose grid is too small",
    dtype="float32",
    sizes=SHORT,
)
class _FourSequencesAtMost(MechanismFormula):
    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        return torch.cat([output[:4], torch.zeros_like(output[4:])]), weights


@mutant("shares_parity", "in float16 training, scores are halved to avoid overflow, and not doubled again",
         of=WITH_PARAMETERS, dtype="float16", mode="train")  # fmt: skip
class _ScaledForTraining(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / 2 if self.training and scores.dtype == torch.float16 else scores


@mutant(
    "further_padding_changes_nothing",
    "scores are divided by 1 plus their standard deviation, which includes padded tokens",
)
class _SpreadOverEverything(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / (1 + scores.std(dim=-1, keepdim=True))


@mutant("order_of_tokens_is_free", "a term that depends on the position is left in the score")
class _PlaceInTheScore(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores - 0.1 * torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)


@mutant("forward_parity", "scores are stored in half precision", dtype="float32")
class _ScoresInHalf(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores.half().to(scores.dtype)


@mutant("shares_parity", "queries and keys are swapped", of=PROJECTED)
class _ScoresTransposed(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens).mT


@mutant("shares_parity", "the scale is missing", of=PROJECTED)
class _NotScaled(MechanismFormula):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 1


@mutant("shares_parity", "the scale uses the width of the model instead of the width of the keys", of=(SCALED, BLOCK))
class _ScaledByTheModelWidth(MechanismFormula):
    def key_width(self, tokens: Tensor) -> int:
        return tokens.shape[-1]


@mutant("shares_parity", "scores are scaled by 1/√d although the mechanism has no scale", of=(RAW, DOT, ADDITIVE))
class _ScaledAllTheSame(MechanismFormula):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens) / math.sqrt(tokens.shape[-1])


@mutant("forward_parity", "the weighted sum is over keys instead of values", of=(SCALED, SINGLE))
class _KeysForValues(MechanismFormula):
    def project_values(self, tokens: Tensor) -> Tensor:
        return self.project(tokens, "w_k")


@mutant("forward_parity", "the weighted mean of the values is divided by the number of keys")
class _AveragedTwice(MechanismFormula):
    def sum_values(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().sum_values(weights / tokens.shape[1], tokens)


@mutant("forward_parity", "only one element of the output is right: a comparison that ends in .any() would pass")
class _RightInOneElement(MechanismFormula):
    def return_result(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().return_result(output, weights)
        others = torch.arange(output.numel(), device=output.device).view(output.shape) > 0
        return output + 0.01 * others, weights


@mutant("shares_parity", "tanh is missing: the query adds the same number to all scores, and softmax cancels it",
         of=(ADDITIVE,))  # fmt: skip
class _LayerNotBent(Additive):
    def apply_activation(self, layer: Tensor) -> Tensor:
        return layer


@mutant("parameter_gradients", "a LayerNorm is created at every call, and the module's weight and bias are not used",
         of=(BLOCK,))  # fmt: skip
class _NormMadeInForward(Block):
    def apply_norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape[-1:])


@mutant("forward_parity", "the tokens are not added: the residual connection is missing", of=(BLOCK,))
class _WithoutTheResidual(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        del tokens
        return self.apply_norm(attended)


@mutant("forward_parity", "LayerNorm is applied to the output of attention, before the residual sum", of=(BLOCK,))
class _NormBeforeTheSum(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        return tokens + self.apply_norm(attended)


@mutant("forward_parity", "LayerNorm uses the sample variance: n − 1 instead of n", of=(BLOCK,))
class _NormOfASample(Block):
    def apply_norm(self, tokens: Tensor) -> Tensor:
        centred = tokens - tokens.mean(dim=-1, keepdim=True)
        return centred / (tokens.var(dim=-1, keepdim=True) + EPSILON).sqrt() * self.norm_weight + self.norm_bias


@mutant("sequences_do_not_mix", "LayerNorm takes mean and variance over the whole batch", of=(BLOCK,))
class _NormOverTheBatch(Block):
    def apply_norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape) * self.norm_weight + self.norm_bias


@mutant("forward_parity", "heads are split by a view without a transpose, which mixes tokens",
         of=(BLOCK,))  # fmt: skip
class _HeadsCutAcrossTokens(Block):
    def split(self, features: Tensor) -> Tensor:
        batch, length, _ = features.shape
        return features.reshape(batch, self.num_heads, length, -1)


@mutant("shares_parity", "the weights of the first head are returned instead of the mean over heads", of=(BLOCK,))
class _WeightsOfTheFirstHead(Block):
    def return_weights(self, weights: Tensor) -> Tensor:
        return weights[:, 0]
