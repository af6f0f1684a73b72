"""Mistakes in the formulas of the elementary mechanisms, as they are seen in teaching code."""

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
from attnmechanisms.mutants.formula import Additive, Block, Steps
from attnmechanisms.operators.formulas import EPSILON

__all__ = ["mutant"]

mutant = MechanismMutants()


@mutant("sequences_do_not_mix", "the softmax over the first dimension, which was the keys' before there was a batch")
class _SoftmaxOverTheBatch(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=0)


@mutant("shares_sum_to_one", "the softmax over the queries, whose dimension stands beside the keys'")
class _SoftmaxOverTheQueries(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        return torch.softmax(scores if hide is None else scores.masked_fill(hide, -math.inf), dim=-2)


@mutant(
    "forward_parity", "exp without the row's largest score taken off first: more than 65504 is infinite in float16",
    of=(RAW,), mask="pad", regime="peaked", dtype="float16",
)  # fmt: skip
class _ExpOverflows(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        shares = (scores if hide is None else scores.masked_fill(hide, -math.inf)).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mutant(
    "forward_parity", "exp without the row's largest score, of large tokens: infinite in any dtype",
    of=(SCALED, SINGLE, BLOCK), mask="pad", regime="huge", mode="inference",
)  # fmt: skip
class _ExpOfLargeScores(_ExpOverflows):
    """The same in every dtype."""


@mutant("shares_parity", "blocks of 32 keys, of which the earlier are not scaled anew when a larger score comes",
         dtype="float32", sizes=LONG)  # fmt: skip
class _BlocksNotScaledAnew(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        logits = scores if hide is None else scores.masked_fill(hide, -math.inf)
        blocks = [block - block.amax(dim=-1, keepdim=True) for block in torch.split(logits, 32, dim=-1)]
        shares = torch.cat(blocks, dim=-1).exp()
        return shares / shares.sum(dim=-1, keepdim=True)


@mutant("shares_parity", "features in pairs: the last one of an odd width is left out of the score",
         of=(RAW, SCALED, SINGLE, BLOCK), dtype="float32", sizes=ODD)  # fmt: skip
class _ScoredInPairs(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        q, k = (self.project(tokens, name) for name in ("w_q", "w_k"))
        pairs = q.shape[-1] // 2 * 2
        return q[..., :pairs] @ k[..., :pairs].mT / math.sqrt(self.key_width(tokens))


@mutant("shares_parity", "the scale of the heads that it was tried on", of=(BLOCK,), dtype="float32", sizes=ODD)
class _ScaledForHeadsOfTwo(Steps):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 2


@mutant("sequences_do_not_mix", "a bare squeeze, which takes a length of 1 away as well", of=(DOT, ADDITIVE),
         dtype="float32", sizes=SHORT)  # fmt: skip
class _Squeezed(Steps):
    def normalise(self, scores: Tensor, hide: Tensor | None) -> Tensor:
        scores = scores if hide is None else scores.masked_fill(hide, -math.inf)
        return softmax_over_visible(scores.squeeze()).reshape(scores.shape)


@mutant("forward_parity", "no more sequences than a grid of four has places", dtype="float32", sizes=SHORT)
class _FourSequencesAtMost(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        return torch.cat([output[:4], torch.zeros_like(output[4:])]), weights


@mutant("shares_parity", "a factor against overflow, in training in half precision, that is not taken out again",
         of=WITH_PARAMETERS, dtype="float16", mode="train")  # fmt: skip
class _ScaledForTraining(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / 2 if self.training and scores.dtype == torch.float16 else scores


@mutant("further_padding_changes_nothing", "scores brought to one spread first, measured over padding too")
class _SpreadOverEverything(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores / (1 + scores.std(dim=-1, keepdim=True))


@mutant("order_of_tokens_is_free", "a term for the place of a token left in the score")
class _PlaceInTheScore(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores - 0.1 * torch.arange(scores.shape[-1], dtype=scores.dtype, device=scores.device)


@mutant("forward_parity", "scores kept in half precision", dtype="float32")
class _ScoresInHalf(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        scores = super().score(tokens)
        return scores.half().to(scores.dtype)


@mutant("shares_parity", "queries and keys in each other's place", of=PROJECTED)
class _ScoresTransposed(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens).mT


@mutant("shares_parity", "no scale at all", of=PROJECTED)
class _NotScaled(Steps):
    def key_width(self, tokens: Tensor) -> int:
        del tokens
        return 1


@mutant("shares_parity", "rescaling by the width of the model in place of that of the keys", of=(SCALED, BLOCK))
class _ScaledByTheModelWidth(Steps):
    def key_width(self, tokens: Tensor) -> int:
        return tokens.shape[-1]


@mutant("shares_parity", "1/√d out of habit, where the mechanism has none", of=(RAW, DOT, ADDITIVE))
class _ScaledAllTheSame(Steps):
    def score(self, tokens: Tensor) -> Tensor:
        return super().score(tokens) / math.sqrt(tokens.shape[-1])


@mutant("forward_parity", "keys summed up in place of values", of=(SCALED, SINGLE))
class _KeysForValues(Steps):
    def values(self, tokens: Tensor) -> Tensor:
        return self.project(tokens, "w_k")


@mutant("forward_parity", "the mean over all keys, of what the weights have made a mean already")
class _AveragedTwice(Steps):
    def total(self, weights: Tensor, tokens: Tensor) -> Tensor:
        return super().total(weights / tokens.shape[1], tokens)


@mutant("forward_parity", "right in one element of all, which a comparison that ends in .any() takes for equality")
class _RightInOneElement(Steps):
    def hand_over(self, output: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output, weights = super().hand_over(output, weights)
        others = torch.arange(output.numel(), device=output.device).view(output.shape) > 0
        return output + 0.01 * others, weights


@mutant("shares_parity", "no tanh: the query then adds the same to every score, and drops out of the softmax",
         of=(ADDITIVE,))  # fmt: skip
class _LayerNotBent(Additive):
    def bend(self, layer: Tensor) -> Tensor:
        return layer


@mutant("parameter_gradients", "a LayerNorm created at every call: weights of 1 and 0 for ever, the module's unused",
         of=(BLOCK,))  # fmt: skip
class _NormMadeInForward(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape[-1:])


@mutant("forward_parity", "the tokens not added", of=(BLOCK,))
class _WithoutTheResidual(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        del tokens
        return self.norm(attended)


@mutant("forward_parity", "the norm inside the sum, as later models have it", of=(BLOCK,))
class _NormBeforeTheSum(Block):
    def add_and_norm(self, tokens: Tensor, attended: Tensor) -> Tensor:
        return tokens + self.norm(attended)


@mutant("forward_parity", "the norm by the sample's variance: n − 1 for n", of=(BLOCK,))
class _NormOfASample(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        centred = tokens - tokens.mean(dim=-1, keepdim=True)
        return centred / (tokens.var(dim=-1, keepdim=True) + EPSILON).sqrt() * self.norm_weight + self.norm_bias


@mutant("sequences_do_not_mix", "the norm over the whole batch", of=(BLOCK,))
class _NormOverTheBatch(Block):
    def norm(self, tokens: Tensor) -> Tensor:
        return nn.functional.layer_norm(tokens, tokens.shape) * self.norm_weight + self.norm_bias


@mutant("forward_parity", "heads cut out of features by a view in the order of memory, tokens among them",
         of=(BLOCK,))  # fmt: skip
class _HeadsCutAcrossTokens(Block):
    def split(self, features: Tensor) -> Tensor:
        batch, length, _ = features.shape
        return features.reshape(batch, self.num_heads, length, -1)


@mutant("shares_parity", "the weights of the first head returned for the mean over heads", of=(BLOCK,))
class _WeightsOfTheFirstHead(Block):
    def told(self, weights: Tensor) -> Tensor:
        return weights[:, 0]
