"""Mistakes of everything around the formula: memory, state, graphs, compilers, chance and the caller's own tensors."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnbench.interface import Policies
from attnbench.mutants.attention_core.decorator import CoreMutants
from attnbench.mutants.attention_core.formula import CoreFormula
from attnbench.mutants.autograd import AsContiguous, Once, read_in_order, with_gradient_of
from attnbench.operators.attention_core.suites import GROUPED

__all__ = ["mutant"]

mutant = CoreMutants()


@mutant("hidden_keys_get_no_gradient", "a backward kernel that is not handed what hides keys", mask="ragged")
class _HiddenKeysInBackward(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output = super().forward(query, key, value, **named)
        hides = dict.fromkeys(("causal", "window", "key_lengths"))
        return with_gradient_of(output, super().forward(query, key, value, **named | hides))


@mutant("backward_repeats", "what backward recomputes is written over what it needs the next time")
class _SecondBackwardZero(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(Once.apply(query), key, scale)  # type: ignore[no-untyped-call]


@mutant("one_gradient_alone", "dQ, dK and dV of one kernel, which is started where keys want theirs")
class _QueryGradientNeedsKey(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().score(query if key.requires_grad else query.detach(), key, scale)


@mutant("cotangent_layout_is_free", "dO read in order, whatever its strides: a sum's is one number")
class _CotangentStridesIgnored(CoreFormula):
    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = AsContiguous.apply(super().total(weights, value))  # type: ignore[no-untyped-call]
        return output


@mutant("second_derivatives", "a backward of stored weights that is differentiated as if they were numbers",
         dtype="float64", policies=Policies(twice_differentiable=True))  # fmt: skip
class _WeightsFixedInBackward(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        weights = super().normalise(logits)
        fixed, finite = weights.detach(), logits.masked_fill(logits.isneginf(), 0.0)
        return with_gradient_of(weights, fixed * (finite - (fixed * finite).sum(dim=-1, keepdim=True)))


@mutant("expanded_inputs", "a bias shared by the batch, with a stride of 0, read on beyond its end", mask="bias4d")
class _SharedBiasReadOn(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        if bias is not None and 0 in bias.stride():
            bias = with_gradient_of(read_in_order(bias, int(bias.storage_offset())), bias)
        return super().add(logits, bias, slopes, apart)


@mutant("packed_inputs", "values that lie behind keys in one tensor read from its beginning")
class _OffsetOfValuesIgnored(CoreFormula):
    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not value.storage_offset():
            return super().total(weights, value)
        return super().total(weights, with_gradient_of(read_in_order(value, 0), value))


@mutant("other_shapes_between_calls", "a work buffer for as many keys as the first call has")
class _KeyCountRemembered(CoreFormula):
    _keys: int | None = None

    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().total(weights, value)
        self._keys = value.shape[2] if self._keys is None else self._keys
        return super().total(weights[..., : self._keys], value[:, :, : self._keys])


@mutant("no_stale_state", "a cache of scaled keys known by their address, which new values share", mode="inference",
         mask="causal_br")  # fmt: skip
class _KeysCachedByAddress(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return super().score(query, key, scale)
        known = (key.data_ptr(), key.shape, key.stride(), key.dtype, scale)
        cached: Tensor = self.__dict__.setdefault("_cache", {}).setdefault(known, key * scale)
        return query @ cached.mT


@mutant("no_stale_state", "offsets kept by the address of the lengths, which a decoding loop rewrites",
         mask="ragged")  # fmt: skip
class _LengthsCachedByAddress(CoreFormula):
    # For every layer of a model; what is known stays alive, or its address would be another's.
    known: ClassVar[dict[tuple[int, int], tuple[Tensor, Tensor]]] = {}

    def lengths(self, logits: Tensor, key_lengths: Tensor | None) -> Tensor:
        if key_lengths is None or torch.compiler.is_compiling():
            return super().lengths(logits, key_lengths)
        place = (key_lengths.data_ptr(), len(key_lengths))
        copy, _ = self.known.setdefault(place, (key_lengths.clone(), key_lengths))
        return super().lengths(logits, copy)


@mutant("other_options_between_calls", "a plan made of the first call's options, run ever after", mask="causal_br",
         mode="train")  # fmt: skip
class _OptionsOfTheFirstCall(CoreFormula):
    _plan: dict[str, Any] | None = None

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        if self._plan is None:
            self._plan = {name: named[name] for name in ("causal", "window", "softcap", "scale")}
        return super().forward(query, key, value, **named | self._plan)


@mutant("other_options_between_calls", "the first window compiled into the kernel", mask="causal_br+window", window=2)
class _WindowOfTheFirstCall(CoreFormula):
    _window: int | None = None

    def near(self, apart: Tensor, window: int) -> Tensor:
        self._window = window if self._window is None else self._window
        return super().near(apart, self._window)


@mutant("other_options_between_calls", "slopes moved to the device once", mask="causal_tl+alibi")
class _SlopesOfTheFirstCall(CoreFormula):
    _slopes: Sequence[float] | None = None

    def alibi(self, logits: Tensor, slopes: Sequence[float], apart: Tensor) -> Tensor:
        self._slopes = slopes if self._slopes is None else self._slopes
        return super().alibi(logits, self._slopes, apart)


@mutant("outputs_are_its_own", "one output buffer for every decoding step", mode="inference", mask="causal_tl")
class _OutputBufferReused(CoreFormula):
    _buffer: Tensor | None = None

    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().total(weights, value)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return output
        if self._buffer is None or self._buffer.shape != output.shape or self._buffer.dtype != output.dtype:
            self._buffer = torch.empty_like(output)
        return self._buffer.copy_(output)


@mutant("inputs_untouched", "offsets of a packed batch summed up in the caller's lengths", mask="ragged")
class _LengthsSummedInPlace(CoreFormula):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        output = super().forward(query, key, value, **named)
        if named.get("key_lengths") is not None:
            named["key_lengths"].cumsum_(0)
        return output


@mutant("global_state_untouched", "one thread more asked for to split the keys of a decoding step", queries=1,
         keys=33, mask="causal_br+ragged", mode="inference")  # fmt: skip
class _ThreadsSet(CoreFormula):
    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        if weights.shape[2] == 1 and not torch.compiler.is_compiling():
            torch.set_num_threads(torch.get_num_threads() + 1)
        return super().total(weights, value)


@mutant("query_independence", "queries quantised by one step for the whole tensor", dtype="bfloat16")
class _QueriesQuantisedTogether(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.numel() == 0:
            return super().score(query, key, scale)
        step = query.detach().abs().mean().clamp(min=2.0**-14)
        return super().score(query / step, key, scale) * step


@mutant("key_permutation", "the first key favoured as a sink, left over from a streaming cache")
class _FirstKeyFavoured(CoreFormula):
    def hide(self, logits: Tensor, keep: Tensor) -> Tensor:
        first = torch.arange(logits.shape[-1], device=logits.device) == 0
        return super().hide(logits + first.to(logits.dtype), keep)


@mutant("duplicated_keys", "a row's maximum counted once in its sum, however many keys share it")
class _TiesCountedOnce(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        weights = super().normalise(logits)
        if weights.shape[-1] == 0:
            return weights
        largest = weights.detach().amax(dim=-1, keepdim=True)
        tied = (weights == largest).sum(dim=-1, keepdim=True)
        return weights / (1 - (tied - 1) * largest).clamp(min=2.0**-14)


@mutant("stays_finite", "exp of the logits as they are: training never had large ones", regime="flat")
class _MaximumNotSubtracted(CoreFormula):
    def normalise(self, logits: Tensor) -> Tensor:
        exponentials = logits.exp()
        total = exponentials.sum(dim=-1, keepdim=True)
        return exponentials / total.masked_fill(total == 0, 1.0)


@mutant("compiled_parity", "the branch for compilers has a scale of its own", mask="causal_tl", mode="aot")
class _ScaleLostWhenCompiled(CoreFormula):
    def score(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return query @ key.mT if torch.compiler.is_compiling() else super().score(query, key, scale)


@mutant("compiled_for_other_lengths", "the number of keys of the first graph in all later ones", shown_by=GROUPED,
         keys=5, mask="bias4d", mode="aot")  # fmt: skip
class _LengthBakedIn(CoreFormula):
    _keys: int | None = None

    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().total(weights, value)
        if self._keys is None:
            self._keys = int(value.shape[2])
        return super().total(weights[..., : self._keys], value[:, :, : self._keys])


@mutant("compiled_parity", "the branch for compilers never got the soft-cap", mask="causal_br+window", window=2,
         softcap=3.0, mode="aot")  # fmt: skip
class _CapLostWhenCompiled(CoreFormula):
    def cap(self, logits: Tensor, softcap: float) -> Tensor:
        return logits if torch.compiler.is_compiling() else super().cap(logits, softcap)


@mutant("compiled_parity", "the branch for compilers is causal, and has no window", mask="causal_br+window", window=2,
         softcap=3.0, mode="aot")  # fmt: skip
class _WindowLostWhenCompiled(CoreFormula):
    def near(self, apart: Tensor, window: int) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.ones_like(apart, dtype=torch.bool)
        return super().near(apart, window)


@mutant("compiled_parity", "the branch for compilers takes no slopes", mask="causal_br+alibi+ragged", mode="aot")
class _AlibiLostWhenCompiled(CoreFormula):
    def add(self, logits: Tensor, bias: Tensor | None, slopes: Sequence[float] | None, apart: Tensor) -> Tensor:
        return super().add(logits, bias, None if torch.compiler.is_compiling() else slopes, apart)


@mutant("compiled_parity", "the branch for compilers repeats key heads in turn where a mask is causal",
         shown_by=GROUPED, mask="causal_tl", mode="aot")  # fmt: skip
class _KeyHeadsDealtWhenCompiled(CoreFormula):
    _causal = False

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Tensor:
        self._causal = named["causal"] is not None
        return super().forward(query, key, value, **named)

    def share(self, tensor: Tensor, heads: int) -> Tensor:
        if self._causal and torch.compiler.is_compiling():
            return tensor.repeat(1, heads // tensor.shape[1], 1, 1)
        return super().share(tensor, heads)


def _noise(tensor: Tensor) -> Tensor:
    """Zeros and ones from a generator that no seed reaches."""
    generator = torch.Generator().manual_seed(time.perf_counter_ns())
    return torch.randint(2, tensor.shape, generator=generator).to(tensor)


@mutant("repeats_itself", "parts of split keys added up by whoever comes first, not declared")
class _LastBitRandom(CoreFormula):
    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().total(weights, value)
        if torch.compiler.is_compiling():
            return output
        return output * (1 + torch.finfo(output.dtype).eps * _noise(output))


@mutant("repeats_many_times", "a race between two warps that is lost in one call of sixteen", mask="causal_tl",
         mode="train")  # fmt: skip
class _RareRace(CoreFormula):
    _calls = 0

    def total(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().total(weights, value)
        if torch.compiler.is_compiling():
            return output
        self._calls += 1
        return output * (1 + torch.finfo(output.dtype).eps * (self._calls % 16 == 0))
