"""Fault models of the softmax that the built-in operators share: it is left out, not divided, or has another base."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from attnbench.interface import FaultModel
from attnbench.operators.rounding import Noise, softmax

__all__ = ["generate_softmax_faults"]


def generate_softmax_faults(make_steps: Callable[..., Any]) -> Iterator[FaultModel]:
    """Yield the fault models; ``make_steps`` makes the steps of an operator's formula."""
    # The logits of these fault models are the logits after the mask was added.
    yield FaultModel(name="softmax_missing", fault=make_steps(normalise=lambda logits, _: logits))
    yield FaultModel(name="softmax_base_two", fault=make_steps(normalise=_use_base_two))
    for exponentials, normalise in (("exp(x)", _exponentiate), ("exp(x − max)", _exponentiate_below_maximum)):
        values = {"exponentials": exponentials}
        yield FaultModel(name="softmax_undivided", values=values, fault=make_steps(normalise=normalise))


def _use_base_two(logits: Tensor, noise: Noise | None) -> Tensor:
    return softmax(logits * math.log(2), noise)


def _exponentiate(logits: Tensor, noise: Noise | None) -> Tensor:
    exponentials = logits.exp()
    return noise(exponentials) if noise else exponentials


def _exponentiate_below_maximum(logits: Tensor, noise: Noise | None) -> Tensor:
    """Compute exp(x − max) of each row; the maximum takes a gradient too, because no division cancels it."""
    if logits.shape[-1] == 0:
        return logits
    largest = logits.amax(dim=-1, keepdim=True)
    return _exponentiate(logits - largest.masked_fill(largest == -math.inf, 0.0), noise)
