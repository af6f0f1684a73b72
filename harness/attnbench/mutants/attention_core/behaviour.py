"""Mutants with the right formula, but faults of layout, state, autograd, compilers, determinism or side effects."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import AsContiguous, Once, read_in_order, replace_gradient
from attnbench.mutants.mutant import MutantList
from attnbench.mutants.softmax import divide_by_sum
from attnbench.operators.attention_core.suites import GROUPED, PLAIN

__all__ = ["mutant"]

mutant = MutantList("attention_core", PLAIN, prefix="core_")


@mutant("hidden_keys_get_no_gradient", "the backward kernel does not get the arguments that hide keys", mask="ragged")
class _HiddenKeysInBackward(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output = super().forward(query, key, value, **named)
        hides = dict.fromkeys(("causal", "window", "key_lengths"))
        return replace_gradient(output, super().forward(query, key, value, **named | hides))


@mutant("backward_repeats", "the backward pass overwrites a buffer that a second backward pass needs")
class _SecondBackwardZero(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(Once.apply(query), key, scale)  # type: ignore[no-untyped-call]


@mutant("one_gradient_alone", "the kernel for dQ, dK and dV runs only if the key requires a gradient")
class _QueryGradientNeedsKey(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query if key.requires_grad else query.detach(), key, scale)


@mutant(
    "cotangent_layout_is_free",
    "the output's gradient is read in memory order, although the backward pass of sum() gives it strides of 0",
)
class _CotangentStridesIgnored(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = AsContiguous.apply(super().sum_values(weights, value))  # type: ignore[no-untyped-call]
        return output


@mutant("second_derivatives", "the second derivative treats the stored attention weights as constants",
         dtype="float64", policies=Policies(twice_differentiable=True))  # fmt: skip
class _WeightsFixedInBackward(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        weights = super().normalise(logits)
        fixed, finite = weights.detach(), logits.masked_fill(logits.isneginf(), 0.0)
        return replace_gradient(weights, fixed * (finite - (fixed * finite).sum(dim=-1, keepdim=True)))


@mutant(
    "expanded_inputs",
    "a bias expanded over the batch (stride 0) is read beyond the end of its memory",
    mask="bias4d",
)
class _SharedBiasReadOn(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        if bias is not None and 0 in bias.stride():
            bias = replace_gradient(read_in_order(bias, int(bias.storage_offset())), bias)
        return super().add_bias(logits, bias, slopes, distance)


@mutant(
    "packed_inputs",
    "value is a slice of a packed tensor, but is read from the beginning of the packed tensor",
)
class _OffsetOfValuesIgnored(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not value.storage_offset():
            return super().sum_values(weights, value)
        return super().sum_values(weights, replace_gradient(read_in_order(value, 0), value))


@mutant("other_shapes_between_calls", "a work buffer fits the number of keys of the first call only")
class _KeyCountRemembered(CoreFormula):
    _keys: int | None = None

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().sum_values(weights, value)
        self._keys = value.shape[2] if self._keys is None else self._keys
        return super().sum_values(weights[..., : self._keys], value[:, :, : self._keys])


@mutant(
    "no_stale_state",
    "scaled keys are cached by memory address, but a later call may have other keys at the same address",
    mode="inference",
    mask="causal_br",
)
class _KeysCachedByAddress(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().score(query, key, scale)
        place = (key.data_ptr(), key.shape, key.stride(), key.dtype, scale)
        cached: Tensor = self.__dict__.setdefault("_cache", {}).setdefault(place, key * scale)
        return query @ cached.mT


@mutant(
    "no_stale_state",
    "key_lengths is cached by memory address, but a decoding loop rewrites key_lengths in place",
    mask="ragged",
)
class _LengthsCachedByAddress(CoreFormula):
    # All layers of a model share this cache. An entry keeps the caller's key_lengths alive:
    # otherwise another tensor could get the memory address that is the key of the entry.
    cached: ClassVar[dict[tuple[int, int], tuple[Tensor, Tensor]]] = {}

    def read_lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        if key_lengths is None or torch.compiler.is_compiling():
            return super().read_lengths(logits, key_lengths)
        place = (key_lengths.data_ptr(), len(key_lengths))
        copy, _ = self.cached.setdefault(place, (key_lengths.clone(), key_lengths))
        return super().read_lengths(logits, copy)


@mutant(
    "other_options_between_calls",
    "causal, window, softcap and scale of the first call are used in every later call",
    mask="causal_br",
    mode="train",
)
class _OptionsOfTheFirstCall(CoreFormula):
    _plan: dict[str, Any] | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        if self._plan is None:
            self._plan = {name: named[name] for name in ("causal", "window", "softcap", "scale")}
        return super().forward(query, key, value, **named | self._plan)


@mutant(
    "other_options_between_calls",
    "the window of the first call is compiled into the kernel and used in every later call",
    mask="causal_br+window",
    window=2,
)
class _WindowOfTheFirstCall(CoreFormula):
    _window: int | None = None

    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        self._window = window if self._window is None else self._window
        return super().is_in_window(distance, self._window)


@mutant(
    "other_options_between_calls",
    "the ALiBi slopes of the first call stay on the device and are used in every later call",
    mask="causal_tl+alibi",
)
class _SlopesOfTheFirstCall(CoreFormula):
    _slopes: Sequence[float] | None = None

    def compute_alibi(self, logits: Tensor, slopes: Sequence[float], distance: Tensor) -> Tensor:
        self._slopes = slopes if self._slopes is None else self._slopes
        return super().compute_alibi(logits, self._slopes, distance)


@mutant(
    "outputs_are_its_own", "one output buffer is reused for every decoding step", mode="inference", mask="causal_tl"
)
class _OutputBufferReused(CoreFormula):
    _buffer: Tensor | None = None

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().sum_values(weights, value)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return output
        if self._buffer is None or self._buffer.shape != output.shape or self._buffer.dtype != output.dtype:
            self._buffer = torch.empty_like(output)
        return self._buffer.copy_(output)


@mutant(
    "inputs_untouched",
    "the caller's key_lengths is overwritten with its cumulative sum, the packed offsets",
    mask="ragged",
)
class _LengthsSummedInPlace(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output = super().forward(query, key, value, **named)
        if named.get("key_lengths") is not None:
            named["key_lengths"].cumsum_(0)
        return output


@mutant("global_state_untouched", "the thread count is raised to split the keys of a decoding step, and not restored",
         queries=1, keys=33, mask="causal_br+ragged", mode="inference")  # fmt: skip
class _ThreadsSet(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        if weights.shape[2] == 1 and not torch.compiler.is_compiling():
            torch.set_num_threads(torch.get_num_threads() + 1)
        return super().sum_values(weights, value)


@mutant("query_independence", "queries are quantised with one step size for the whole tensor", dtype="bfloat16")
class _QueriesQuantisedTogether(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.numel() == 0:
            return super().score(query, key, scale)
        step = query.detach().abs().mean().clamp(min=2.0**-14)
        return super().score(query / step, key, scale) * step


@mutant("key_permutation", "the first key's logit is raised, as for the attention sink of a streaming cache")
class _FirstKeyFavoured(CoreFormula):
    def apply_mask(self, logits: Tensor, keep: Tensor) -> Tensor:
        first = torch.arange(logits.shape[-1], device=logits.device) == 0
        return super().apply_mask(logits + first.to(logits.dtype), keep)


@mutant(
    "duplicated_keys",
    "the softmax denominator counts the largest logit of a row once, even if several keys have this logit",
)
class _TiesCountedOnce(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        weights = super().normalise(logits)
        if weights.shape[-1] == 0:
            return weights
        largest = weights.detach().amax(dim=-1, keepdim=True)
        tied = (weights == largest).sum(dim=-1, keepdim=True)
        return weights / (1 - (tied - 1) * largest).clamp(min=2.0**-14)


@mutant(
    "stays_finite",
    "the row maximum is not subtracted before exp, because all logits were small in training",
    regime="flat",
)
class _MaximumNotSubtracted(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        return divide_by_sum(logits.exp())


@mutant("compiled_parity", "the branch for torch.compile lacks the scale", mask="causal_tl", mode="aot")
class _ScaleLostWhenCompiled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return query @ key.mT if torch.compiler.is_compiling() else super().score(query, key, scale)


@mutant("compiled_for_other_lengths", "the number of keys of the first compiled graph is used in all later graphs",
         shown_by=GROUPED, keys=5, mask="bias4d", mode="aot")  # fmt: skip
class _LengthBakedIn(CoreFormula):
    _keys: int | None = None

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().sum_values(weights, value)
        if self._keys is None:
            self._keys = int(value.shape[2])
        return super().sum_values(weights[..., : self._keys], value[:, :, : self._keys])


@mutant("compiled_parity", "the branch for torch.compile lacks the soft-cap", mask="causal_br+window", window=2,
         softcap=3.0, mode="aot")  # fmt: skip
class _CapLostWhenCompiled(CoreFormula):
    def apply_softcap(self, logits: Tensor, softcap: float) -> Tensor:
        return logits if torch.compiler.is_compiling() else super().apply_softcap(logits, softcap)


@mutant(
    "compiled_parity",
    "the branch for torch.compile applies the causal mask, but not the window",
    mask="causal_br+window",
    window=2,
    softcap=3.0,
    mode="aot",
)
class _WindowLostWhenCompiled(CoreFormula):
    def is_in_window(self, distance: Tensor, window: int) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.ones_like(distance, dtype=torch.bool)
        return super().is_in_window(distance, window)


@mutant(
    "compiled_parity",
    "the branch for torch.compile ignores alibi_slopes",
    mask="causal_br+alibi+ragged",
    mode="aot",
)
class _AlibiLostWhenCompiled(CoreFormula):
    def add_bias(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, distance: Tensor) -> Tensor:
        return super().add_bias(logits, bias, None if torch.compiler.is_compiling() else slopes, distance)


@mutant(
    "compiled_parity",
    "the causal branch for torch.compile copies key heads by repeat(), not repeat_interleave()",
    shown_by=GROUPED,
    mask="causal_tl",
    mode="aot",
)
class _KeyHeadsDealtWhenCompiled(CoreFormula):
    _causal = False

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        self._causal = named["causal"] is not None
        return super().forward(query, key, value, **named)

    def repeat_key_heads(self, tensor: Tensor, heads: int) -> Tensor:
        if self._causal and torch.compiler.is_compiling():
            return tensor.repeat(1, heads // tensor.shape[1], 1, 1)
        return super().repeat_key_heads(tensor, heads)


def _draw_bits(tensor: Tensor) -> Tensor:
    """Draw zeros and ones from a generator that ``torch.manual_seed`` does not seed."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns())
    return torch.randint(2, tensor.shape, generator=generator).to(tensor)


@mutant(
    "repeats_itself",
    "partial sums over blocks of keys are added in random order; no policy declares this",
)
class _LastBitRandom(CoreFormula):
    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().sum_values(weights, value)
        if torch.compiler.is_compiling():
            return output
        return output * (1 + torch.finfo(output.dtype).eps * _draw_bits(output))


@mutant("repeats_many_times", "a race condition between two warps changes one call in sixteen", mask="causal_tl",
         mode="train")  # fmt: skip
class _RareRace(CoreFormula):
    _calls = 0

    def sum_values(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().sum_values(weights, value)
        if torch.compiler.is_compiling():
            return output
        self._calls += 1
        return output * (1 + torch.finfo(output.dtype).eps * (self._calls % 16 == 0))
