"""The small problem on which conventions are tried, and its results by the formula in float64."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["Sizes", "attend", "draw", "is_close", "make_masks", "quiet_trial"]


class Sizes:
    """Sizes that differ from each other, so that a wrong layout gives another result or an exception."""

    batch = 2
    heads = 3
    queries = 5
    # Of a call in which queries and keys are as many, and of one in which they are not.
    keys = 7
    head_dim = 8
    embed_dim = heads * head_dim


# Share of the largest expected value by which a right result in float32 may be off. A kernel that computes in bfloat16
# internally is within it, and another convention is not.
TOLERANCE = 1e-2


def draw(*shape: int, seed: int) -> Tensor:
    """Return normally distributed numbers in float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_masks(queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Return two keep masks, of every query (queries, keys) and of every sequence (batch, keys).

    Every query sees the first key.
    """
    generator = torch.Generator().manual_seed(11)
    shown = torch.rand(queries, keys, generator=generator) < 0.6
    padding = torch.arange(keys) < torch.tensor([[keys - 2], [keys - 1]])
    shown[:, 0] = True
    return shown, padding


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return attention in float64; ``mask`` is boolean with true = keep, or additive. A fully masked row is NaN."""
    q, k, v = q.double(), k.double(), v.double()
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1) @ v


def is_close(found: object, expected: Tensor) -> bool:
    """Whether a result has the expected shape and values."""
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return False
    apart = (found.detach().double() - expected).abs()
    return bool(apart.max() <= TOLERANCE * expected.abs().max())


@contextmanager
def quiet_trial() -> Iterator[None]:
    """Context in which conventions are tried: without gradients, and without warnings of calls that do not fit."""
    import warnings

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
