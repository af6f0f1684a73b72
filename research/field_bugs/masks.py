"""Kind 2: faults of two masks in one call, and of values of a mask that look as if nothing were hidden."""

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.mutants.multihead.formula import Formula, Result
from research.field_bugs.backward import Unwritten
from research.field_bugs.faults import FaultList, is_additive, is_boolean, on

__all__ = ["fault"]

fault = FaultList()
PYTORCH = "https://github.com/pytorch/pytorch/issues/"
FINITE = 8.0


def hide_tails(tensors: dict[str, Tensor]) -> None:
    """Hide the last keys of every sequence, one more of each."""
    keys = tensors["key_padding_mask"].shape[1]
    places = torch.arange(keys)
    for number, row in enumerate(tensors["key_padding_mask"]):
        row.copy_(places >= keys - 2 - number)


def show_all(tensors: dict[str, Tensor]) -> None:
    """Make all keys visible in attn_mask, which keeps its finite values."""
    tensors["attn_mask"].nan_to_num_(neginf=-1.0)


def balance(tensors: dict[str, Tensor]) -> None:
    """Make attn_mask finite, and its sum 0 exactly."""
    show_all(tensors)
    mask = tensors["attn_mask"]
    mask.mul_(FINITE).round_()
    mask[-1, -1] -= mask.sum()


def make_negative(tensors: dict[str, Tensor]) -> None:
    """Make all values of attn_mask finite and at most 0."""
    show_all(tensors)
    tensors["attn_mask"].abs_().neg_()


@fault(
    "bug", 2,
    source=PYTORCH + "92554",
    condition="a float key_padding_mask that hides keys, beside an attn_mask",
    under=on(mask="bool2d+padfloat"),
    beside=[on(mask="padfloat"), on(mask="bool2d+pad")],
)  # fmt: skip
class FloatPaddingBesideMask(Formula):
    """The masks are merged by masked_fill, which expects boolean padding: float padding has no effect."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        if named["attn_mask"] is not None and is_additive(padding):
            named["key_padding_mask"] = padding.masked_fill(padding == padding, 0.0)  # all elements
        return super().under_masks(query, key, value, **named)


@fault(
    "bug", 2, 1,
    source=PYTORCH + "63271",
    condition="a boolean attn_mask of each head and padding, as many queries as keys",
    under=on(queries=7, mask="bool3d+pad"),
    beside=[on(queries=7, mask="bool2d+pad"), on(mask="bool3d+pad"), on(queries=7, mask="bool3d")],
)  # fmt: skip
class PaddedRowsHidden(Formula):
    """A mask of each head is combined with padding along one axis too many: rows of padded tokens are hidden too."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_boolean(mask) and is_boolean(padding) and mask.dim() == 3 and query.shape[1] == key.shape[1]:
            named["attn_mask"] = mask | padding.repeat_interleave(self.num_heads, 0)[:, :, None]
        return super().under_masks(query, key, value, **named)


@fault(
    "bug", 2, 5,
    source="https://github.com/fla-org/flash-linear-attention/pull/892",
    condition="boolean padding that hides the last keys of every sequence, gradients",
    under=on(mask="pad", prepare=hide_tails),
    beside=[on(mask="pad"), on(mask="pad", prepare=hide_tails, mode="inference")],
)  # fmt: skip
class GradientOfTheCommonTail(Formula):
    """Gradients of keys behind the longest sequence are never written, and keep what was in memory (0.5 here)."""

    tail: Tensor | None = None

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        self.tail, padding = None, named["key_padding_mask"]
        if is_boolean(padding) and torch.is_grad_enabled():
            hidden = padding.all(dim=0)
            self.tail = hidden.flip(0).long().cumprod(0).bool().flip(0)
        return super().under_masks(query, key, value, **named)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(query, key, value)
        if self.tail is None or not len(k):
            return q, k, v
        places = self.tail[:, None]
        return q, Unwritten.apply(k, places), Unwritten.apply(v, places)  # type: ignore[no-untyped-call]


@fault(
    "mutant", 2,
    source="https://github.com/huggingface/candle/issues/1933",
    inferred=True,
    condition="a float attn_mask whose values sum to 0 exactly; eager calls",
    under=on(mask="float2d", prepare=balance),
    beside=[on(mask="float2d", prepare=show_all), on(mask="float2d")],
)  # fmt: skip
class DroppedIfItSumsToZero(Formula):
    """A float mask counts as hiding nothing if its sum is 0, and is dropped."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        read = is_additive(mask) and not torch.compiler.is_compiling() and mask.numel()
        if read and float(mask.detach().sum()) == 0:
            named["attn_mask"] = mask * 0
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source="https://github.com/huggingface/transformers/issues/46773",
    inferred=True,
    condition="padding that begins in a later sequence than the first, without attn_mask; eager calls",
    under=on(mask="pad"),
    beside=[on(mask="pad", prepare=hide_tails), on(mask="bool2d+pad")],
)  # fmt: skip
class PaddingOfTheFirstSequenceAsked(Formula):
    """Padding is dropped if the first sequence has none."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        read = is_boolean(padding) and named["attn_mask"] is None and not torch.compiler.is_compiling() and len(padding)
        if read and not bool(padding[0].any()):
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source="https://github.com/huggingface/transformers/issues/39573",
    condition="more keys than queries, all hidden keys behind as many as there are queries, no attn_mask; eager calls",
    under=on(batch=1, mask="pad"),
    beside=[on(batch=1, queries=6, mask="pad"), on(batch=1, mask="bool2d+pad")],
)  # fmt: skip
class PaddingBeyondTheQueries(Formula):
    """Padding is dropped if the first keys, as many as there are queries, are all visible."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding, queries = named["key_padding_mask"], query.shape[1]
        read = is_boolean(padding) and named["attn_mask"] is None and not torch.compiler.is_compiling()
        if read and 0 < queries < key.shape[1] and not bool(padding[:, :queries].any()):
            named["key_padding_mask"] = None
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source=PYTORCH + "107084",
    inferred=True,
    condition="a float attn_mask without a positive and with a finite negative value, and no gradient; eager calls",
    under=on(mask="float2d", prepare=make_negative, mode="inference"),
    beside=[on(mask="float2d", prepare=show_all, mode="inference"), on(mask="float2d", prepare=make_negative)],
)  # fmt: skip
class NegativeBiasReadAsBoolean(Formula):
    """A float mask without positive values is taken for 0 and minus infinity: every value below 0 hides."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        read = is_additive(mask) and not (torch.compiler.is_compiling() or mask.requires_grad) and mask.numel()
        if read and float(mask.max()) <= 0:
            named["attn_mask"] = mask.masked_fill(mask < 0, -math.inf)
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source=PYTORCH + "92733",
    condition="a boolean attn_mask beside a float key_padding_mask",
    under=on(mask="bool2d+padfloat"),
    beside=[on(mask="bool2d+pad"), on(mask="float2d+padfloat"), on(mask="float2d+pad")],
)  # fmt: skip
class TrueAddedToFloatPadding(Formula):
    """Beside float padding, a boolean attn_mask is converted to float and added as 0 and 1."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        if is_boolean(named["attn_mask"]) and is_additive(named["key_padding_mask"]):
            named |= {"attn_mask": named["attn_mask"].to(query.dtype), "is_causal": False}
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source=PYTORCH + "191612",
    inferred=True,
    condition="a float attn_mask beside boolean padding, in float32 or float64",
    under=on(mask="float2d+pad"),
    beside=[on(mask="float2d"), on(mask="float2d+padfloat")],
)  # fmt: skip
class FloatBesideBooleanRounded(Formula):
    """Beside boolean padding, a float attn_mask is combined in float16, and so rounded."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask = named["attn_mask"]
        if is_additive(mask) and is_boolean(named["key_padding_mask"]):
            named["attn_mask"] = mask.half().to(mask.dtype)
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source="https://github.com/fla-org/flash-linear-attention/pull/892",
    inferred=True,
    condition="an attn_mask with a gradient, and padding that hides its last columns in every sequence",
    under=on(mask="float2d+pad", prepare=hide_tails),
    beside=[on(mask="float2d+pad"), on(mask="pad", prepare=hide_tails)],
)  # fmt: skip
class MaskGradientInTheHiddenTail(Formula):
    """The gradient of attn_mask is never written in columns that are hidden in every sequence (0.5 there)."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_additive(mask) and mask.requires_grad and is_boolean(padding):
            named["attn_mask"] = Unwritten.apply(mask, padding.all(dim=0))  # type: ignore[no-untyped-call]
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source="https://github.com/HKUSTDial/flash-sparse-attention/pull/193",
    inferred=True,
    condition="both masks float, both with gradients",
    under=on(mask="float2d+padfloat"),
    beside=[on(mask="float2d"), on(mask="float2d+pad"), on(mask="float2d+padfloat", mode="inference")],
)  # fmt: skip
class MaskGradientTwiceBesidePadding(Formula):
    """The gradient of attn_mask is added once for each mask, so it is doubled."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        mask, padding = named["attn_mask"], named["key_padding_mask"]
        if is_additive(mask) and is_additive(padding) and mask.requires_grad and padding.requires_grad:
            finite = mask.masked_fill(mask == -math.inf, 0.0)
            named["attn_mask"] = mask + (finite - finite.detach())
        return super().under_masks(query, key, value, **named)


@fault(
    "mutant", 2,
    source=PYTORCH + "97111",
    condition="the fast path (inference, one tensor, batch_first, no weights, no attn_mask), padding in every sequence",
    under=on(keys=5, self_attention=True, mask="pad", prepare=hide_tails, mode="inference"),
    beside=[on(keys=5, self_attention=True, mask="pad", mode="inference"),
            on(keys=5, self_attention=True, mask="pad", prepare=hide_tails, mode="eval")],
)  # fmt: skip
class RowsBeyondTheLongestZero(Formula):
    """On the fast path, rows of the output beyond the longest sequence of the batch are 0."""

    def under_masks(self, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Result:
        padding = named["key_padding_mask"]
        fast = query is key and key is value and not (self.training or torch.is_grad_enabled() or named["need_weights"])
        fast = fast and self.batch_first and named["attn_mask"] is None and is_boolean(padding) and not self.columns
        output, weights = super().under_masks(query, key, value, **named)
        if fast and not torch.compiler.is_compiling():
            output = output.masked_fill(padding.all(dim=0)[:, None], 0.0)
        return output, weights
