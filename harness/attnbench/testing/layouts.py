"""Layouts of queries, keys and values: conversion to (batch, heads, length, width)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "Packing", "read_packing", "split_heads"]

# bhsd: (batch, heads, length, width), as torch's scaled_dot_product_attention. bshd: (batch, length, heads, width), as
# flash-attention and xFormers. thd: (tokens, heads, width), the sequences one after the other.
LAYOUTS = ("bhsd", "bshd", "thd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The lengths of packed sequences, of their queries and of their keys."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    def find_visible(self) -> Tensor:
        """Return a mask that is true where a query sees a key, if padding hides the rest.

        Shape: (sequences, 1, queries, keys).
        """
        real = [
            torch.arange(max(lengths, default=0)) < torch.tensor(lengths)[:, None]
            for lengths in (self.queries, self.keys)
        ]
        return (real[0][:, :, None] & real[1][:, None, :])[:, None]


def read_packing(cu_seqlens: object, tokens: tuple[int, int]) -> Packing:
    """Read the cumulative lengths of packed queries and keys: one list for both, or a pair.

    ``tokens`` are the numbers of packed queries and of packed keys.

    Raises: ValueError where the lengths do not add up.
    """
    pair = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    if len(pair) != 2:
        raise ValueError(f"cu_seqlens must be a list or a pair of lists (queries, keys), got {len(pair)} lists")
    read = [
        _read_lengths(one, count, which) for one, count, which in zip(pair, tokens, ("queries", "keys"), strict=True)
    ]
    if len(read[0]) != len(read[1]):
        raise ValueError(
            f"cu_seqlens must have as many sequences of queries as of keys, got {len(read[0])} and {len(read[1])}"
        )
    return Packing(queries=read[0], keys=read[1])


def _read_lengths(cumulative: object, tokens: int, which: str) -> tuple[int, ...]:
    if isinstance(cumulative, Tensor):
        cumulative = cumulative.tolist()
    if not isinstance(cumulative, Sequence) or not all(isinstance(one, int) for one in cumulative):
        raise TypeError(f"cu_seqlens must have whole numbers, such as [0, 3, 8]; got {cumulative!r:.80}")
    lengths = tuple(after - before for before, after in pairwise(cumulative))
    if not cumulative or cumulative[0] != 0 or cumulative[-1] != tokens or min(lengths, default=0) < 0:
        raise ValueError(
            f"cu_seqlens of the {which} must ascend from 0 to {tokens}, the number of packed tokens; "
            f"got {cumulative!r:.80}"
        )
    return lengths


def split_heads(tensor: Tensor, layout: str, lengths: Sequence[int] = ()) -> Tensor:
    """Return a tensor as (batch, heads, length, …); packed sequences of these lengths are padded with zeros."""
    if layout == "bhsd":
        return tensor
    if layout == "bshd":
        return tensor.transpose(1, 2)
    sequences = torch.split(tensor, list(lengths))
    return torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first=True).transpose(1, 2)
