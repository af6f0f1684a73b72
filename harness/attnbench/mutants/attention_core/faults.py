"""Mistakes of kernels on split heads: the formula itself, or its backward, is wrong."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.decorator import CoreMutants
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import read_in_order, with_gradient_of
from attnbench.operators.attention_core.suites import GROUPED, PLAIN

__all__ = ["mutant"]

mutant = CoreMutants()
# Enough elements for what is off by little everywhere to rise above their rounding; the width is no power of 4.
PROBED = replace(PLAIN, sequences=4, queries=33, keys=47, head_dim=7)


@mutant("shared_keys_are_copies", "repeat() where repeat_interleave() was meant: head h took key head h mod K",
         shown_by=GROUPED)  # fmt: skip
class _KeyHeadsDealtInTurn(CoreFormula):
    def share(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@mutant("forward_parity", "a kernel for one key head given more of them read the first one only", shown_by=GROUPED)
class _FirstKeyHeadForAll(CoreFormula):
    def share(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor[:, :1].expand(-1, heads, -1, -1) if heads > tensor.shape[1] else tensor


@mutant("input_gradients", "each head of a group stored its dK and dV over the ones before, where they add up",
         shown_by=GROUPED, mode="train", mask="bias4d", num_heads=8)  # fmt: skip
class _GroupGradientsOverwritten(CoreFormula):
    def share(self, tensor: Tensor, heads: int) -> Tensor:
        share = heads // tensor.shape[1]
        copies = [tensor.detach()] * (share - 1) + [tensor]
        return torch.stack(copies, dim=2).flatten(1, 2)


@mutant("exact_selection", "window=0 was taken for no window: the flag was tested for truth, not for None",
         shown_by=GROUPED, regime="selection", mask="causal_br+window", window=0, dtype="float16")  # fmt: skip
class _WindowOfWidth0IsNone(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        return super().near(apart, window) if window else torch.ones_like(apart, dtype=torch.bool)


@mutant("unseen_keys_cannot_leak", "a window of W keys read as W keys before the query's own",
         mask="causal_br+window", window=2)  # fmt: skip
class _WindowOneTooWide(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        return apart.abs() <= window + 1


@mutant("furthest_keys_count", "the key at the window's edge left out: < where ≤ was meant",
         mask="causal_br+window", window=6, queries=7)  # fmt: skip
class _WindowOneTooNarrow(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        return apart.abs() < max(window, 1)


@mutant("forward_parity", "the window's right side forgotten: with no causal mask it has two",
         mask="window", window=3, dtype="bfloat16", mode="inference")  # fmt: skip
class _WindowToTheLeftAlone(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        return apart <= window


@mutant("queries_alone_at_their_corner", "a causal mask aligned at the first key, where the last one was meant",
         mask="causal_br", mode="train")  # fmt: skip
class _BottomRightAsTopLeft(CoreFormula):
    def distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        return super().distances(logits, "top_left" if causal else None, key_lengths)


@mutant("forward_parity", "a causal mask aligned at the last key, as a kernel's newer version does",
         mask="causal_tl", mode="train")  # fmt: skip
class _TopLeftAsBottomRight(CoreFormula):
    def distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        return super().distances(logits, "bottom_right" if causal else None, key_lengths)


@mutant("a_sequence_ends_at_its_length", "the diagonal of a short sequence ended at the end of its padding",
         mask="causal_br+ragged")  # fmt: skip
class _AlignedAtThePadding(CoreFormula):
    def distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        del key_lengths
        return super().distances(logits, causal, None)


@mutant("unseen_keys_cannot_leak", "the block that holds a sequence's last key was not masked to its end",
         mask="ragged")  # fmt: skip
class _LengthOneTooLong(CoreFormula):
    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        return super().lengths(logits, key_lengths) + (key_lengths is not None)


@mutant("exact_zero_leak", "sequence lengths dropped on the way to the kernel", regime="zeroleak", sequences=3,
         queries=3, keys=8, mask="ragged", dtype="float64")  # fmt: skip
class _LengthsIgnored(CoreFormula):
    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        del key_lengths
        return super().lengths(logits, None)


@mutant("exact_uniform_mean", "weights divided by the number of all keys, hidden ones included", regime="uniform",
         sequences=3, queries=3, keys=8, mask="ragged", dtype="float64")  # fmt: skip
class _MeanOverAllKeys(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        seen = logits.isfinite().sum(dim=-1, keepdim=True)
        return shares * (seen / max(logits.shape[-1], 1))


@mutant("unseen_keys_cannot_leak", "the soft-cap after the mask: c · tanh(−∞) is −c, a number like any other",
         mask="causal_br", softcap=3.0)  # fmt: skip
class _CapAfterTheMask(CoreFormula):
    cap_at = "normalise"


@mutant("a_row_of_the_bias_may_shift", "the soft-cap after the bias", mask="causal_br+window+bias2d+ragged", window=2,
         softcap=1.5, mode="train")  # fmt: skip
class _CapAfterTheBias(CoreFormula):
    cap_at = "hide"


@mutant("forward_parity", "a soft-cap passed to a kernel that has none", mask="causal_br", softcap=3.0)
class _CapMissing(CoreFormula):
    def cap(self, logits: Tensor, softcap: float) -> Tensor:
        del softcap
        return logits


@mutant("input_gradients", "backward left out the derivative of the soft-cap", mask="causal_br", softcap=3.0)
class _CapWithoutItsDerivative(CoreFormula):
    def cap(self, logits: Tensor, softcap: float) -> Tensor:
        return with_gradient_of(super().cap(logits, softcap), logits)


@mutant("alibi_is_a_bias", "slopes added, not subtracted: far keys were preferred", mask="causal_tl+alibi")
class _AlibiOfTheWrongSign(CoreFormula):
    def alibi(self, logits: Tensor, slopes: Sequence[float], apart: Tensor) -> Tensor:
        return -super().alibi(logits, slopes, apart)


@mutant("head_permutation", "slopes made anew for the number of heads, where others were given",
         mask="causal_tl+alibi")  # fmt: skip
class _AlibiSlopesMadeAnew(CoreFormula):
    def alibi(self, logits: Tensor, slopes: Sequence[float], apart: Tensor) -> Tensor:
        return super().alibi(logits, sorted(slopes, reverse=True), apart)


@mutant("forward_parity", "ALiBi added before the scale was applied", mask="causal_tl+alibi")
class _AlibiScaled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.scale = scale
        return super().score(query, key, scale)

    def alibi(self, logits: Tensor, slopes: Sequence[float], apart: Tensor) -> Tensor:
        return self.scale * super().alibi(logits, slopes, apart)


@mutant("forward_parity", "the bias added twice: by the mask's path and by its own", mask="bias4d")
class _BiasAddedTwice(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, None if bias is None else 2 * bias, slopes, apart)


@mutant("forward_parity", "the bias added before the scale was applied", mask="bias4d", num_heads=12, kv_heads=4,
         mode="train")  # fmt: skip
class _BiasScaled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.scale = scale
        return super().score(query, key, scale)

    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, None if bias is None else self.scale * bias, slopes, apart)


@mutant("mask_gradients", "no gradient for the bias", mask="bias4d")
class _BiasWithoutGradient(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, None if bias is None else bias.detach(), slopes, apart)


@mutant("forward_parity", "the scale of the values' width where those of keys are others", scale=0.0, head_dim=64,
         head_dim_v=128, mask="causal_br")  # fmt: skip
class _ScaleOfTheValuesWidth(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        scale = named["scale"]
        return super().forward(query, key, value, **named | {"scale": scale or value.shape[-1] ** -0.5})


@mutant("forward_parity", "the scale that was given dropped for 1/√head_dim", scale=0.2, head_dim_v=5)
class _GivenScaleIgnored(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        del scale
        return super().score(query, key, query.shape[-1] ** -0.5)


@mutant("effective_scale", "the scale 1 % off, which no single element shows in half precision", shown_by=PROBED,
         dtype="bfloat16")  # fmt: skip
class _ScaleOnePercentOff(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query, key, 1.01 * scale)


@mutant("effective_gradient_scale", "the backward of the queries 1 % off", shown_by=PROBED, dtype="bfloat16")
class _QueryGradientOnePercentOff(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(with_gradient_of(query, 1.01 * query), key, scale)


@mutant("forward_parity", "queries before the first key spread their weight evenly over keys that they do not see",
         queries=7, keys=3, mask="causal_br")  # fmt: skip
class _QueriesBeforeTheFirstKeySpread(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        empty = logits.isneginf().all(dim=-1, keepdim=True)
        return torch.softmax(logits.masked_fill(empty, 0.0), dim=-1)


@mutant("padding_invariance", "the last tile of keys is full in every test, and was taken for full", mask="ragged")
class _TailOfKeysScoredZero(CoreFormula):
    def hide(self, logits: Tensor, keep: Tensor) -> Tensor:
        return super().hide(logits, keep) if keep.shape[-1] <= 8 else logits.masked_fill(~keep, 0.0)


@mutant("strided_inputs", "heads of keys read one after another, wherever they lie in memory")
class _KeysReadInOrder(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if key.is_contiguous():
            return super().score(query, key, scale)
        return super().score(query, with_gradient_of(read_in_order(key, int(key.storage_offset())), key), scale)


@mutant("batch_independence", "the first sequence's bias for every sequence of the batch", mask="bias4d")
class _BiasOfTheFirstSequence(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, bias[:1] if bias is not None and bias.dim() > 2 else bias, slopes, apart)


@mutant("forward_parity", "the scale taken as it came: None was 1", mask="causal_tl", mode="train")
class _NoScaleIsOne(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        scale = named["scale"]
        return super().forward(query, key, value, **named | {"scale": 1.0 if scale is None else scale})


@mutant("forward_parity", "scale=1 read as the default of a kernel where 1 stands for 1/√head_dim", scale=1.0,
         mode="train")  # fmt: skip
class _ScaleOfOneIsNone(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query, key, query.shape[-1] ** -0.5 if scale == 1 else scale)


@mutant("forward_parity", "a tanh that is a straight line where the soft-cap is large", shown_by=GROUPED,
         mask="causal_br", softcap=50.0, regime="onehot", mode="train")  # fmt: skip
class _LargeCapMissing(CoreFormula):
    def cap(self, logits: Tensor, softcap: float) -> Tensor:
        return super().cap(logits, softcap) if softcap < 50 else logits


@mutant("forward_parity", "a window as wide as a tile taken for one that hides nothing", queries=70, keys=140,
         mask="causal_br+window", window=64)  # fmt: skip
class _WideWindowIsNone(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        return super().near(apart, window) if window < 64 else torch.ones_like(apart, dtype=torch.bool)


@mutant("forward_parity", "lengths clamped to 1, so that no sum is 0: an empty sequence got its first value",
         sequences=6, mask="ragged", mode="train")  # fmt: skip
class _EmptySequenceHasAKey(CoreFormula):
    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        return super().lengths(logits, key_lengths).clamp(min=1)


@mutant("forward_parity", "a path for lengths that asks for int64, and none for int32", sequences=3,
         mask="causal_br+ragged", int32_lengths=True, mode="train")  # fmt: skip
class _LengthsIn32BitsIgnored(CoreFormula):
    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        ignored = key_lengths is not None and key_lengths.dtype == torch.int32
        return super().lengths(logits, None if ignored else key_lengths)


@mutant("forward_parity", "a grid of 4 sequences: nothing was started for the others", sequences=6,
         mask="causal_br+ragged", mode="train")  # fmt: skip
class _SequencesBeyondTheGrid(CoreFormula):
    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().total(weights, value)
        return output * (torch.arange(output.shape[0], device=output.device) < 4)[:, None, None, None]


@mutant("forward_parity", "one program for 8 heads, whose second round began at the first key head again",
         shown_by=GROUPED, num_heads=16, kv_heads=4, mask="causal_tl", mode="train")  # fmt: skip
class _SecondRoundOfHeadsBeginsAgain(CoreFormula):
    def share(self, tensor: Tensor, heads: int) -> Tensor:
        shared = super().share(tensor, heads)
        return torch.cat([shared[:, :8]] * 2, dim=1) if heads == 16 else shared


@mutant("forward_parity", "minus infinity in a bias made a large number, so that no row is NaN: a hidden row spread",
         mask="bias2d", bias_hides=True, mode="train")  # fmt: skip
class _BiasMadeFinite(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, None if bias is None else bias.clamp(min=-1e4), slopes, apart)
