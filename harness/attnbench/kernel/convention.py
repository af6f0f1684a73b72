"""How a function on split heads is called, where it differs from the call that ``from_kernel`` makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from attnbench.interface import find_accepted_keywords
from attnbench.masks import additive

__all__ = ["Convention", "Layout", "MaskKind", "convert_mask"]

# How tensors are arranged. "bhsd": (batch, heads, sequence, width). "bshd": (batch, sequence, heads, width). "folded":
# (batch·heads, sequence, width). "bs3hd": one tensor (batch, sequence, 3, heads, width) of queries, keys and values.
Layout = Literal["bhsd", "bshd", "folded", "bs3hd"]
# "any": boolean masks with true = keep, and masks that are added to the logits. "keep": only the former. "hide":
# boolean masks with true = hide. "additive": only masks that are added.
MaskKind = Literal["any", "keep", "hide", "additive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a function takes its tensors and masks, and returns its output.

    The defaults are the call that ``from_kernel`` describes. A function returns its output in the layout of its
    queries. Of a tuple, other elements than the first are dropped, unless the function takes ``need_weights``.
    """

    layout: Layout = "bhsd"
    # Order of queries, keys and values among the positional arguments; not read if the layout has one tensor.
    order: tuple[Literal["q", "k", "v"], ...] = ("q", "k", "v")
    # The function's own keyword, by the keyword of ``from_kernel`` that it stands for.
    names: Mapping[str, str] = field(default_factory=dict)
    masks: MaskKind = "any"
    # The function applies a causal mask in every call, and takes no flag for it.
    causal_only: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if ``order`` does not have each of q, k and v once."""
        if sorted(self.order) != ["k", "q", "v"]:
            raise ValueError(f"order must have each of 'q', 'k' and 'v' once, got {self.order!r}")

    @property
    def is_packed(self) -> bool:
        """Whether queries, keys and values are one tensor, so that they must have equal shapes."""
        return self.layout == "bs3hd"

    def find_keywords(self, function: Callable[..., Any]) -> frozenset[str] | None:
        """Return the keywords of ``from_kernel`` that the function takes; None if it takes any.

        The keyword ``is_causal`` is among them if the function is always causal.
        """
        accepted = find_accepted_keywords(function)
        if accepted is None:
            return None
        # A keyword that has another name here is not taken under its own.
        own = {word for word in accepted if self.names.get(word, word) == word}
        renamed = {word for word, name in self.names.items() if name in accepted}
        return frozenset(own | renamed | ({"is_causal"} if self.causal_only else set()))

    def call(
        self, function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, keywords: Mapping[str, Any]
    ) -> Any:
        """Call the function with these keywords of ``from_kernel``; return what ``from_kernel`` expects.

        Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), output like q.
        """
        given = dict(keywords)
        if self.causal_only:
            given.pop("is_causal", None)
        if isinstance(mask := given.get("mask"), Tensor):
            mask = convert_mask(mask, self.masks, q.dtype)
            if self.layout == "folded":
                mask = mask.expand(*q.shape[:2], q.shape[2], k.shape[2]).flatten(0, 1)
            given["mask"] = mask
        tensors = self._arrange(q, k, v)
        result = function(*tensors, **{self.names.get(word, word): value for word, value in given.items()})
        if not isinstance(result, tuple):
            return self._restore(result, q)
        output = self._restore(result[0], q)
        return (output, result[1]) if "need_weights" in keywords else output

    def _arrange(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Return the positional arguments of the function."""
        if self.layout == "bs3hd":
            return [torch.stack([one.transpose(1, 2) for one in (q, k, v)], dim=2)]
        named = {"q": q, "k": k, "v": v}
        ordered = [named[name] for name in self.order]
        if self.layout == "bshd":
            return [one.transpose(1, 2) for one in ordered]
        return [one.flatten(0, 1) for one in ordered] if self.layout == "folded" else ordered

    def _restore(self, output: Any, q: Tensor) -> Any:
        """Return an output as (batch, heads, queries, width); what is no tensor of the layout is left as it is."""
        if not isinstance(output, Tensor) or output.dim() != (3 if self.layout == "folded" else 4):
            return output
        if self.layout in ("bshd", "bs3hd"):
            return output.transpose(1, 2)
        return torch.unflatten(output, 0, tuple(q.shape[:2])) if self.layout == "folded" else output


def convert_mask(mask: Tensor, kind: MaskKind, dtype: torch.dtype) -> Tensor:
    """Return a mask as a function of this kind takes it.

    ``mask`` is boolean with true = keep, or is added to the logits; the latter is possible for the kinds "any" and
    "additive" only.
    """
    if mask.dtype != torch.bool:
        return mask
    if kind == "additive":
        return additive(mask, dtype)
    return ~mask if kind == "hide" else mask
