"""The request that a max-length worker answers in addition to those of a candidate worker, and its reply."""

from typing import Generic, TypeVar

import msgspec

from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.request import Request

__all__ = ["LongPass", "MaxLengthRequest", "TryPass"]

Reply = TypeVar("Reply", covariant=True)


class MaxLengthRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request that only a max-length worker answers, by a reply or by the reason why there is none."""


class LongPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Time and memory of one pass on a long sequence."""

    took_s: float
    # None if the time is over the limit, or if counting itself ran out of memory.
    peak_bytes: int | None
    threads: int
    # How the bytes were counted.
    method: str


class TryPass(MaxLengthRequest[LongPass], frozen=True, kw_only=True):
    """Measure the time and memory of one pass on the short case's inputs, stretched by ``factor``."""

    implementation: str
    case: str
    factor: int
    # Files of inputs at the short length, and at twice that length.
    short: str
    double: str
    limit_s: float
