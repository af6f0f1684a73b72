"""Tokens of the queries and keys of a call, and which of them a query may see."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attnmodels.facts import Cause, Visibility

__all__ = ["Asked", "Pattern", "Tokens", "compare_visible", "derive_visible", "find_cause"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens in the rows of a batch: column, sequence and position of each, and whether it is real or padding.

    Shape: all (batch, tokens).
    """

    column: Tensor
    sequence: Tensor
    position: Tensor
    real: Tensor

    @classmethod
    def arrange(cls, rows: Sequence[Sequence[tuple[int, int] | None]]) -> Self:
        """Make tokens of rows of (sequence, position), with None for padding."""
        real = torch.tensor([[one is not None for one in row] for row in rows])
        pairs = torch.tensor([[(-1, 0) if one is None else one for one in row] for row in rows])
        column = torch.arange(real.shape[1]).expand_as(real)
        return cls(column, pairs[..., 0], pairs[..., 1], real)

    def take(self, columns: slice) -> Self:
        """Return the tokens of some columns."""
        return type(self)(*(one[:, columns] for one in (self.column, self.sequence, self.position, self.real)))

    def __len__(self) -> int:
        return self.column.shape[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Which keys a layer lets a query see; the other fields are the changes that fault models make."""

    causal: bool
    # A key is seen if it is less than this number of tokens away; None: at any distance.
    window: int | None
    padding: bool = True
    packing: bool = True
    diagonal: int = 0
    padding_shift: int = 0


def derive_visible(pattern: Pattern, queries: Tokens, keys: Tokens) -> Tensor:
    """Return which key each query may see.

    Shape: (batch, 1, queries, keys).
    """
    distance = queries.column[:, :, None] - keys.column[:, None, :] + pattern.diagonal
    visible = torch.ones_like(distance, dtype=torch.bool)
    if pattern.padding:
        visible = visible & keys.real.roll(pattern.padding_shift, 1)[:, None, :]
    if pattern.packing:
        own = queries.sequence[:, :, None] == keys.sequence[:, None, :]
        visible = visible & (own | ~keys.real[:, None, :])
    if pattern.causal:
        visible = visible & (distance >= 0)
    if pattern.window is not None:
        visible = visible & (distance.abs() < pattern.window)
    return visible[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What queries may see, and what it was derived from, where that is known.

    Shape: visible (batch, heads or 1, queries, keys); judged (batch, 1, queries, 1) is true at the queries that are
    compared.
    """

    visible: Tensor
    judged: Tensor
    pattern: Pattern | None
    queries: Tokens | None
    keys: Tokens | None


def compare_visible(seen: Tensor, asked: Asked, *, masked: bool) -> Visibility | None:
    """Return how many keys queries see wrongly, and why; None if they see what they may.

    Shape: seen (batch, heads or 1, queries, keys). ``masked``: a mask came with the call.
    """
    wrong = (seen != asked.visible) & asked.judged
    if not bool(wrong.any()):
        return None
    return Visibility(
        seen=int((wrong & seen).any(1).sum()),
        hidden=int((wrong & ~seen).any(1).sum()),
        pairs=int(asked.judged.sum()) * seen.shape[-1],
        cause=find_cause(seen, asked, masked=masked),
        masked=masked,
    )


def find_cause(seen: Tensor, asked: Asked, *, masked: bool) -> Cause | None:
    """Return the argument whose change gives what queries see, if there is one."""

    def agrees(other: Tensor) -> bool:
        # What a query sees that sees nothing is up to the function.
        judged = (asked.judged & other.any(-1, keepdim=True)).expand_as(seen)
        return bool(judged.any()) and bool((seen == other)[judged].all())

    everything = [(Cause(argument="attention_mask"), torch.ones_like(asked.visible))]
    inverted = [(Cause(argument="attention_mask", change="inverted"), ~asked.visible)]
    faults: list[tuple[Cause, Tensor]] = []
    if asked.pattern is not None and asked.queries is not None and asked.keys is not None:
        faults = [
            (cause, derive_visible(one, asked.queries, asked.keys))
            for cause, one in _list_faults(asked.pattern, len(asked.queries), len(asked.keys))
        ]
    # Without a window, keys in both directions are the same as without any mask.
    windows = [one for one in faults if one[0].argument == "sliding_window"]
    known = [*windows, *everything, *faults] if masked else [*faults, *everything]
    return next((cause for cause, visible in [*known, *inverted] if agrees(visible)), None)


def _list_faults(pattern: Pattern, queries: int, keys: int) -> Iterator[tuple[Cause, Pattern]]:
    """Yield changed patterns, the likeliest first; some change nothing for some tokens."""
    if pattern.window is not None:
        yield Cause(argument="sliding_window"), replace(pattern, window=None)
        for by in (1, -1, 2, -2):
            cause = Cause(argument="sliding_window", change="shifted", by=by)
            yield cause, replace(pattern, window=pattern.window + by)
    yield Cause(argument="attention_mask"), replace(pattern, padding=False)
    yield Cause(argument="position_ids"), replace(pattern, packing=False)
    for by in (1, -1, 2, -2):
        yield Cause(argument="attention_mask", change="shifted", by=by), replace(pattern, padding_shift=by)
    if pattern.causal:
        yield Cause(argument="is_causal"), replace(pattern, causal=False)
        for by in (1, -1, queries - keys):
            cause = Cause(argument="past_key_values" if keys > queries else "is_causal", change="shifted", by=by)
            yield cause, replace(pattern, diagonal=by)
        yield Cause(argument="attention_mask"), replace(pattern, padding=False, packing=False, window=None)
