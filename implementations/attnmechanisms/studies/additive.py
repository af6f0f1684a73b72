"""Additive and dot-product attention side by side: as drawn, and after a little training.

    additive    w · tanh(W_k k + W_q q)       bounded by Σ|w|, whatever the width
    dot         q · k                         of variance d
    scaled dot  q · k / √d                    of variance 1

The task to be learned: in each sequence of standard normal tokens one has a certain direction added to it, the same in
all sequences. Pooling with a learned query shall give that token: the loss is the squared distance to it. Whoever finds
the direction attends to the right token.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1; Britz et al. 2017,
https://arxiv.org/abs/1703.03906, section 4.5.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.study.rows import entropy_bits, gradient_norm, quartiles

__all__ = ["SCORES", "additive"]

Parameters = dict[str, Tensor]
# Rows over which a median is taken.
ROWS = 512
# Training: steps of Adam at one rate, sequences a step, tokens a sequence, and the length of what one token has added.
STEPS, RATE, BATCH, LENGTH, SIGNAL = 150, 0.01, 32, 16, 5.0
# Sequences that were not trained on, on which the share of right tokens is counted; repeats with other seeds.
HELD_OUT, REPEATS = 512, 3


def _additive(keys: Tensor, given: Parameters) -> Tensor:
    hidden = torch.tanh(keys @ given["w_k"].T + given["query"] @ given["w_q"].T)
    return hidden @ given["w"]


def _dot(keys: Tensor, given: Parameters) -> Tensor:
    return keys @ given["query"]


def _scaled_dot(keys: Tensor, given: Parameters) -> Tensor:
    return keys @ given["query"] / math.sqrt(len(given["query"]))


# Scores (…, keys) of keys (…, keys, width) by name.
SCORES: dict[str, Callable[[Tensor, Parameters], Tensor]] = {
    "additive": _additive,
    "scaled dot": _scaled_dot,
    "dot": _dot,
}


def additive(*, head_dims: Sequence[int], keys: int, seed: int) -> dict[str, Any]:
    """Rows as drawn and what training comes to, by head_dim and score."""
    rows = [
        {"head_dim": head_dim, "score": name, **_drawn(name, head_dim, keys, seed), **_learned(name, head_dim, seed)}
        for head_dim in head_dims
        for name in SCORES
    ]
    return {"keys": keys, "steps": STEPS, "length": LENGTH, "rows": rows}


def _parameters(name: str, width: int, generator: torch.Generator) -> Parameters:
    """The learned query, standard normal; weights of an additive score, such that sums keep their variance."""
    spread = 1 / math.sqrt(width)
    drawn = {"query": torch.randn(width, generator=generator)}
    if name == "additive":
        drawn |= {
            "w_q": spread * torch.randn(width, width, generator=generator),
            "w_k": spread * torch.randn(width, width, generator=generator),
            "w": spread * torch.randn(width, generator=generator),
        }
    return drawn


def _drawn(name: str, width: int, keys: int, seed: int) -> dict[str, float]:
    """A query for each row, and rows as they are before training."""
    generator = torch.Generator().manual_seed(seed)
    given = _parameters(name, width, generator)
    scores = torch.stack(
        [
            SCORES[name](
                torch.randn(keys, width, generator=generator),
                given | {"query": torch.randn(width, generator=generator)},
            )
            for _ in range(ROWS)
        ]
    ).double()
    cotangent = torch.randn(ROWS, keys, generator=generator).double()
    return {
        "score_std": scores.std().item(),
        **quartiles("entropy_bits", entropy_bits(torch.softmax(scores, dim=-1))),
        **quartiles("gradient_norm", gradient_norm(scores, cotangent)),
    }


def _learned(name: str, width: int, seed: int) -> dict[str, float]:
    """Share of held-out sequences in which the right token has the largest weight: the mean, and the extremes."""
    shares = [_trained_share(name, width, seed + repeat) for repeat in range(REPEATS)]
    return {"found": sum(shares) / REPEATS, "found_low": min(shares), "found_high": max(shares)}


def _trained_share(name: str, width: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
    given = {key: value.requires_grad_() for key, value in _parameters(name, width, generator).items()}
    optimiser = torch.optim.Adam(given.values(), lr=RATE)
    for tokens, right in _sequences(direction, generator):
        pooled = (torch.softmax(SCORES[name](tokens, given), dim=-1)[:, None] @ tokens)[:, 0]
        loss = (pooled - tokens[torch.arange(BATCH), right]).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    with torch.no_grad():
        tokens, right = _batch(direction, HELD_OUT, generator)
        found: Tensor = SCORES[name](tokens, given).argmax(dim=-1) == right
    return found.double().mean().item()


def _sequences(direction: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    return (_batch(direction, BATCH, generator) for _ in range(STEPS))


def _batch(direction: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (count, length, width) and which token of each is the right one (count)."""
    tokens = torch.randn(count, LENGTH, len(direction), generator=generator)
    right = torch.randint(LENGTH, (count,), generator=generator)
    tokens[torch.arange(count), right] += SIGNAL * direction
    return tokens, right
