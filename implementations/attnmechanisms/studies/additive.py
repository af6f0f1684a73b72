"""Additive and dot-product attention side by side: with random parameters, and after a short training.

    additive    w · tanh(W_k k + W_q q)       at most Σ|w|, whatever the width
    dot         q · k                         variance d
    scaled dot  q · k / √d                    variance 1

k is a key, q a query, and d the width of both. The tokens of the training task are standard normal.
In each sequence, a vector is added to one token, the marked token. The vector is the same in all
sequences. Pooling with a learned query must return the marked token. The loss is the mean squared
difference between the pooled vector and the marked token. A model that has learned the added vector
attends to the marked token.

Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1; Britz et al. 2017,
https://arxiv.org/abs/1703.03906, section 4.5.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from attnstudies.rows import entropy_bits, gradient_norm, quartiles

__all__ = ["SCORES", "additive"]

Parameters = dict[str, Tensor]
# Number of rows of scores over which medians and quartiles are taken.
ROWS = 512
# Training. STEPS: number of steps of Adam. RATE: learning rate of Adam. BATCH: sequences per step.
# LENGTH: tokens per sequence. SIGNAL: norm of the vector that is added to the marked token.
STEPS, RATE, BATCH, LENGTH, SIGNAL = 150, 0.01, 32, 16, 5.0
# HELD_OUT: number of held-out sequences in which a trained model must find the marked token.
# REPEATS: number of trainings, each with a different seed.
HELD_OUT, REPEATS = 512, 3


def _additive(keys: Tensor, given: Parameters) -> Tensor:
    hidden = torch.tanh(keys @ given["w_k"].T + given["query"] @ given["w_q"].T)
    return hidden @ given["w"]


def _dot(keys: Tensor, given: Parameters) -> Tensor:
    return keys @ given["query"]


def _scaled_dot(keys: Tensor, given: Parameters) -> Tensor:
    return keys @ given["query"] / math.sqrt(len(given["query"]))


# Score functions by name. Each function computes scores (…, keys) from keys (…, keys, width) and
# parameters.
SCORES: dict[str, Callable[[Tensor, Parameters], Tensor]] = {
    "additive": _additive,
    "scaled dot": _scaled_dot,
    "dot": _dot,
}


def additive(*, head_dims: Sequence[int], keys: int, seed: int) -> dict[str, Any]:
    """Return statistics of scores before training, and the result of training.

    The entry ``rows`` of the result has one row for each head_dim and score function.
    """
    rows = [
        {
            "head_dim": head_dim,
            "score": name,
            **_measure_untrained(name, head_dim, keys, seed),
            **_train(name, head_dim, seed),
        }
        for head_dim in head_dims
        for name in SCORES
    ]
    return {"keys": keys, "steps": STEPS, "length": LENGTH, "rows": rows}


def _draw_parameters(name: str, width: int, generator: torch.Generator) -> Parameters:
    """Draw a standard normal query; for the additive score also w_q, w_k and w, with variance 1 / width."""
    spread = 1 / math.sqrt(width)
    drawn = {"query": torch.randn(width, generator=generator)}
    if name == "additive":
        drawn |= {
            "w_q": spread * torch.randn(width, width, generator=generator),
            "w_k": spread * torch.randn(width, width, generator=generator),
            "w": spread * torch.randn(width, generator=generator),
        }
    return drawn


def _measure_untrained(name: str, width: int, keys: int, seed: int) -> dict[str, float]:
    """Return statistics of rows of scores before training; each row has its own random query."""
    generator = torch.Generator().manual_seed(seed)
    given = _draw_parameters(name, width, generator)
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


def _train(name: str, width: int, seed: int) -> dict[str, float]:
    """Return the fraction of held-out sequences in which the marked token has the largest attention weight.

    ``found``, ``found_low`` and ``found_high`` are the mean, minimum and maximum over ``REPEATS``
    trainings.
    """
    shares = [_train_once(name, width, seed + repeat) for repeat in range(REPEATS)]
    return {"found": sum(shares) / REPEATS, "found_low": min(shares), "found_high": max(shares)}


def _train_once(name: str, width: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
    given = {key: value.requires_grad_() for key, value in _draw_parameters(name, width, generator).items()}
    optimiser = torch.optim.Adam(given.values(), lr=RATE)
    for tokens, marked in _draw_batches(direction, generator):
        pooled = (torch.softmax(SCORES[name](tokens, given), dim=-1)[:, None] @ tokens)[:, 0]
        loss = (pooled - tokens[torch.arange(BATCH), marked]).square().mean()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    with torch.no_grad():
        tokens, marked = _draw_batch(direction, HELD_OUT, generator)
        found: Tensor = SCORES[name](tokens, given).argmax(dim=-1) == marked
    return found.double().mean().item()


def _draw_batches(direction: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    return (_draw_batch(direction, BATCH, generator) for _ in range(STEPS))


def _draw_batch(direction: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences (count, length, width) and the index of the marked token of each sequence (count)."""
    tokens = torch.randn(count, LENGTH, len(direction), generator=generator)
    marked = torch.randint(LENGTH, (count,), generator=generator)
    tokens[torch.arange(count), marked] += SIGNAL * direction
    return tokens, marked
