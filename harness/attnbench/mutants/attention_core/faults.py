"""Mutants of kernels on split heads: the formula itself, or its backward pass, is wrong."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import read_in_order, replace_gradient
from attnbench.mutants.mutant import MutantList
from attnbench.operators.attention_core.suites import GROUPED, PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")
# A problem with many elements. A mean over many elements has a small rounding error, so a check
# can detect a small error that all elements have. head_dim is not a power of 4, so 1/√head_dim is
# inexact in binary.
PROBED = replace(PLAIN, sequences=4, queries=33, keys=47, head_dim=7)


@mutant(
    "shared_keys_are_copies",
    "repeat() instead of repeat_interleave(): with K key heads, query head h uses key head h mod K",
    shown_by=GROUPED,
)
class _KeyHeadsDealtInTurn(CoreFormula):
    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor.repeat(1, heads // tensor.shape[1], 1, 1)


@mutant(
    "forward_parity",
    "a kernel for one key head is used for several key heads, and reads only the first key head",
    shown_by=GROUPED,
)
class _FirstKeyHeadForAll(CoreFormula):
    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        return tensor[:, :1].expand(-1, heads, -1, -1) if heads > tensor.shape[1] else tensor


@mutant("input_gradients", "each head of a group overwrites dK and dV of the previous head instead of adding",
         shown_by=GROUPED, mode="train", mask="bias4d", num_heads=8)  # fmt: skip
class _GroupGradientsOverwritten(CoreFormula):
    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        share = heads // tensor.shape[1]
        copies = [tensor.detach()] * (share - 1) + [tensor]
        return torch.stack(copies, dim=2).flatten(1, 2)


@mutant("exact_selection", "window=0 is taken for no window: `if window` instead of `if window is not None`",
         shown_by=GROUPED, regime="selection", mask="causal_br+window", window=0, dtype="float16")  # fmt: skip
class _WindowOfWidth0IsNone(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        return super().is_in_window(distance, window) if window else torch.ones_like(distance, dtype=torch.bool)


@mutant("unseen_keys_cannot_leak", "the window is one key too wide on each side",
         mask="causal_br+window", window=2)  # fmt: skip
class _WindowOneTooWide(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        return distance.abs() <= window + 1


@mutant("furthest_keys_count", "the key at the window's edge is left out: < instead of ≤",
         mask="causal_br+window", window=6, queries=7)  # fmt: skip
class _WindowOneTooNarrow(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        return distance.abs() < max(window, 1)


@mutant("forward_parity", "the window hides no keys to the right of a query, as if there were a causal mask",
         mask="window", window=3, dtype="bfloat16", mode="inference")  # fmt: skip
class _WindowToTheLeftAlone(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        return distance <= window


@mutant("queries_alone_at_their_corner", "a bottom-right causal mask is aligned at the first key, not the last key",
         mask="causal_br", mode="train")  # fmt: skip
class _BottomRightAsTopLeft(CoreFormula):
    def compute_distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        return super().compute_distances(logits, "top_left" if causal else None, key_lengths)


@mutant(
    "forward_parity",
    "a top-left causal mask is aligned at the last key: a newer kernel version changed its default",
    mask="causal_tl",
    mode="train",
)
class _TopLeftAsBottomRight(CoreFormula):
    def compute_distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        return super().compute_distances(logits, "bottom_right" if causal else None, key_lengths)


@mutant(
    "a_sequence_ends_at_its_length",
    "the causal mask is aligned at the last padded key, not at the sequence's last key",
    mask="causal_br+ragged",
)
class _AlignedAtThePadding(CoreFormula):
    def compute_distances(self, logits: Tensor, causal: str | None, key_lengths: Tensor | None) -> Tensor:
        del key_lengths
        return super().compute_distances(logits, causal, None)


@mutant("unseen_keys_cannot_leak", "in the block with a sequence's last key, the mask leaves one hidden key visible",
         mask="ragged")  # fmt: skip
class _LengthOneTooLong(CoreFormula):
    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        return super().read_lengths(logits, key_lengths) + (key_lengths is not None)


@mutant("exact_zero_leak", "key_lengths are not passed to the kernel", regime="zeroleak", sequences=3,
         queries=3, keys=8, mask="ragged", dtype="float64")  # fmt: skip
class _LengthsIgnored(CoreFormula):
    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        del key_lengths
        return super().read_lengths(logits, None)


@mutant("exact_uniform_mean", "the mean is taken over all keys, hidden keys included", regime="uniform",
         sequences=3, queries=3, keys=8, mask="ragged", dtype="float64")  # fmt: skip
class _MeanOverAllKeys(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        shares = super().normalise(logits)
        seen = logits.isfinite().sum(dim=-1, keepdim=True)
        return shares * (seen / max(logits.shape[-1], 1))


@mutant("unseen_keys_cannot_leak", "the soft-cap is applied after the mask: c · tanh(−∞) = −c is a finite logit",
         mask="causal_br", softcap=3.0)  # fmt: skip
class _CapAfterTheMask(CoreFormula):
    cap_at = "normalise"


@mutant("a_row_of_the_bias_may_shift", "the soft-cap is applied after the bias",
         mask="causal_br+window+bias2d+ragged", window=2, softcap=1.5, mode="train")  # fmt: skip
class _CapAfterTheBias(CoreFormula):
    cap_at = "apply_mask"


@mutant("forward_parity", "the soft-cap is passed to a kernel that ignores it", mask="causal_br", softcap=3.0)
class _CapMissing(CoreFormula):
    def apply_softcap(self, logits: Tensor, softcap: float) -> Tensor:
        del softcap
        return logits


@mutant("input_gradients", "the backward pass lacks the derivative of the soft-cap", mask="causal_br", softcap=3.0)
class _CapWithoutItsDerivative(CoreFormula):
    def apply_softcap(self, logits: Tensor, softcap: float) -> Tensor:
        return replace_gradient(super().apply_softcap(logits, softcap), logits)


@mutant("alibi_is_a_bias", "ALiBi is added instead of subtracted: distant keys are preferred", mask="causal_tl+alibi")
class _AlibiOfTheWrongSign(CoreFormula):
    def compute_alibi(self, logits: Tensor, slopes: Sequence[float], distance: Tensor) -> Tensor:
        return -super().compute_alibi(logits, slopes, distance)


@mutant("head_permutation", "the given ALiBi slopes are replaced by the default slopes for this number of heads",
         mask="causal_tl+alibi")  # fmt: skip
class _AlibiSlopesMadeAnew(CoreFormula):
    def compute_alibi(self, logits: Tensor, slopes: Sequence[float], distance: Tensor) -> Tensor:
        return super().compute_alibi(logits, sorted(slopes, reverse=True), distance)


@mutant("forward_parity", "ALiBi is added before the scale is applied", mask="causal_tl+alibi")
class _AlibiScaled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.scale = scale
        return super().score(query, key, scale)

    def compute_alibi(self, logits: Tensor, slopes: Sequence[float], distance: Tensor) -> Tensor:
        return self.scale * super().compute_alibi(logits, slopes, distance)


@mutant("forward_parity", "the bias is added twice: once with the mask and once by itself", mask="bias4d")
class _BiasAddedTwice(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, None if bias is None else 2 * bias, slopes, distance)


@mutant("forward_parity", "the bias is added before the scale is applied", mask="bias4d", num_heads=12, kv_heads=4,
         mode="train")  # fmt: skip
class _BiasScaled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.scale = scale
        return super().score(query, key, scale)

    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, None if bias is None else self.scale * bias, slopes, distance)


@mutant("mask_gradients", "the bias gets no gradient", mask="bias4d")
class _BiasWithoutGradient(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, None if bias is None else bias.detach(), slopes, distance)


@mutant("forward_parity", "the default scale is computed from head_dim_v instead of head_dim", scale=0.0, head_dim=64,
         head_dim_v=128, mask="causal_br")  # fmt: skip
class _ScaleOfTheValuesWidth(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        scale = named["scale"]
        return super().forward(query, key, value, **named | {"scale": scale or value.shape[-1] ** -0.5})


@mutant("forward_parity", "the argument scale is replaced by 1/√head_dim", scale=0.2, head_dim_v=5)
class _GivenScaleIgnored(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        del scale
        return super().score(query, key, query.shape[-1] ** -0.5)


@mutant("effective_scale", "the scale is 1 % too large: in half precision, no single element exceeds its allowed error",
         shown_by=PROBED, dtype="bfloat16")  # fmt: skip
class _ScaleOnePercentOff(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query, key, 1.01 * scale)


@mutant(
    "effective_gradient_scale",
    "the gradient with respect to the queries is 1 % too large",
    shown_by=PROBED,
    dtype="bfloat16",
)
class _QueryGradientOnePercentOff(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(replace_gradient(query, 1.01 * query), key, scale)


@mutant("forward_parity", "queries before the first key get uniform weights over keys that they do not see",
         queries=7, keys=3, mask="causal_br")  # fmt: skip
class _QueriesBeforeTheFirstKeySpread(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        empty = logits.isneginf().all(dim=-1, keepdim=True)
        return torch.softmax(logits.masked_fill(empty, 0.0), dim=-1)


@mutant(
    "padding_invariance",
    "if the last tile of keys is only partly filled, hidden keys get the logit 0",
    mask="ragged",
)
class _TailOfKeysScoredZero(CoreFormula):
    def apply_mask(self, logits: Tensor, keep: Tensor) -> Tensor:
        return super().apply_mask(logits, keep) if keep.shape[-1] <= 8 else logits.masked_fill(~keep, 0.0)


@mutant("strided_inputs", "keys are read in memory order, ignoring their strides")
class _KeysReadInOrder(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if key.is_contiguous():
            return super().score(query, key, scale)
        return super().score(query, replace_gradient(read_in_order(key, int(key.storage_offset())), key), scale)


@mutant("batch_independence", "the bias of the first sequence is used for the whole batch", mask="bias4d")
class _BiasOfTheFirstSequence(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, bias[:1] if bias is not None and bias.dim() > 2 else bias, slopes, distance)


@mutant("forward_parity", "scale=None is taken for 1, not for 1/√head_dim", mask="causal_tl", mode="train")
class _NoScaleIsOne(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        scale = named["scale"]
        return super().forward(query, key, value, **named | {"scale": 1.0 if scale is None else scale})


@mutant("forward_parity", "scale=1 is taken for the default scale, 1/√head_dim", scale=1.0,
         mode="train")  # fmt: skip
class _ScaleOfOneIsNone(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query, key, query.shape[-1] ** -0.5 if scale == 1 else scale)


@mutant("forward_parity", "a large soft-cap is not applied", shown_by=GROUPED,
         mask="causal_br", softcap=50.0, regime="onehot", mode="train")  # fmt: skip
class _LargeCapMissing(CoreFormula):
    def apply_softcap(self, logits: Tensor, softcap: float) -> Tensor:
        return super().apply_softcap(logits, softcap) if softcap < 50 else logits


@mutant("forward_parity", "a window as wide as a tile is taken for no window", queries=70, keys=140,
         mask="causal_br+window", window=64)  # fmt: skip
class _WideWindowIsNone(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        return super().is_in_window(distance, window) if window < 64 else torch.ones_like(distance, dtype=torch.bool)


@mutant("forward_parity", "lengths are clamped to at least 1: an empty sequence returns the value of its first token",
         sequences=6, mask="ragged", mode="train")  # fmt: skip
class _EmptySequenceHasAKey(CoreFormula):
    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        return super().read_lengths(logits, key_lengths).clamp(min=1)


@mutant("forward_parity", "key_lengths in int32 are ignored: only int64 is handled", sequences=3,
         mask="causal_br+ragged", int32_lengths=True, mode="train")  # fmt: skip
class _LengthsIn32BitsIgnored(CoreFormula):
    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        ignored = key_lengths is not None and key_lengths.dtype == torch.int32
        return super().read_lengths(logits, None if ignored else key_lengths)


@mutant("forward_parity", "the kernel's grid covers only 4 sequences: further ones are never computed", sequences=6,
         mask="causal_br+ragged", mode="train")  # fmt: skip
class _SequencesBeyondTheGrid(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().sum_values(weights, value)
        return output * (torch.arange(output.shape[0], device=output.device) < 4)[:, None, None, None]


@mutant("forward_parity", "heads are computed in groups of 8, and each group begins at key head 0 again",
         shown_by=GROUPED, num_heads=16, kv_heads=4, mask="causal_tl", mode="train")  # fmt: skip
class _SecondRoundOfHeadsBeginsAgain(CoreFormula):
    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        shared = super().repeat_key_heads(tensor, heads)
        return torch.cat([shared[:, :8]] * 2, dim=1) if heads == 16 else shared


@mutant("forward_parity", "−∞ in a bias is clamped to a finite number to avoid NaN: a fully masked row gets weights",
         mask="bias2d", bias_hides=True, mode="train")  # fmt: skip
class _BiasMadeFinite(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, None if bias is None else bias.clamp(min=-1e4), slopes, distance)
