"""Call a function on split heads by the convention that it declares."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.interface import find_accepted_keywords
from attnbench.interface.conventions import Convention, Layout, MaskKind
from attnbench.masks import additive

__all__ = ["call_by", "convert_mask", "find_keywords"]

# The permutation of (batch, heads, sequence, width) that gives a layout, and its inverse.
_PERMUTED: Mapping[Layout, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bshd": ((0, 2, 1, 3), (0, 2, 1, 3)),
    "sbhd": ((2, 0, 1, 3), (1, 2, 0, 3)),
}


def find_keywords(convention: Convention, function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the keywords of ``from_kernel`` that the function takes; None if it takes any.

    The keyword ``is_causal`` is among them if the function is always causal.
    """
    accepted = find_accepted_keywords(function)
    if accepted is None:
        return None
    # A keyword that has another name here is not taken under its own.
    own = {word for word in accepted if convention.names.get(word, word) == word}
    renamed = {word for word, name in convention.names.items() if name in accepted}
    return frozenset(own | renamed | ({"is_causal"} if convention.causal_only else set()))


def call_by(
    convention: Convention, function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, keywords: Mapping[str, Any]
) -> Any:
    """Call the function with these keywords of ``from_kernel``; return what ``from_kernel`` expects.

    Shape: q (batch, heads, queries, head_dim), k and v (batch, heads, keys, head_dim), output like q.
    """
    given = dict(keywords)
    if convention.causal_only:
        given.pop("is_causal", None)
    if isinstance(mask := given.get("mask"), Tensor):
        mask = convert_mask(mask, convention.masks, q.dtype)
        if convention.layout == "folded":
            mask = mask.expand(*q.shape[:2], q.shape[2], k.shape[2]).flatten(0, 1)
        given["mask"] = mask
    tensors = _arrange(convention, q, k, v)
    if convention.contiguous:
        tensors = [one.contiguous() for one in tensors]
    result = function(*tensors, **{convention.names.get(word, word): value for word, value in given.items()})
    if not isinstance(result, tuple):
        return _restore(convention, result, q)
    output = _restore(convention, result[0], q)
    return (output, result[1]) if "need_weights" in keywords else output


def _arrange(convention: Convention, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """Return the positional arguments of the function."""
    if convention.layout == "bs3hd":
        return [torch.stack([one.transpose(1, 2) for one in (q, k, v)], dim=2)]
    named = {"q": q, "k": k, "v": v}
    ordered = [named[name] for name in convention.order]
    if convention.layout in _PERMUTED:
        return [one.permute(_PERMUTED[convention.layout][0]) for one in ordered]
    return [one.flatten(0, 1) for one in ordered] if convention.layout == "folded" else ordered


def _restore(convention: Convention, output: Any, q: Tensor) -> Any:
    """Return an output as (batch, heads, queries, width); what is no tensor of the layout is left as it is."""
    if not isinstance(output, Tensor) or output.dim() != (3 if convention.layout == "folded" else 4):
        return output
    if convention.layout == "bs3hd":
        return output.transpose(1, 2)
    if convention.layout in _PERMUTED:
        return output.permute(_PERMUTED[convention.layout][1])
    return torch.unflatten(output, 0, tuple(q.shape[:2])) if convention.layout == "folded" else output


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
