"""The request that only a max-length worker answers, and its reply.

A max-length worker also answers the requests of ``candidate_requests``.
"""

from typing import Generic, TypeVar

import msgspec

from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.request import Request

__all__ = ["LongPass", "MaxLengthRequest", "TryPass"]

Reply = TypeVar("Reply", covariant=True)


class MaxLengthRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request that only a max-length worker answers.

    The answer is a reply, or, if there is no reply, an ``Outcome`` with the reason.
    """


class LongPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Time and memory of one pass on a long sequence."""

    took_s: float
    # Peak memory of the pass in bytes; None if the pass took longer than ``limit_s``, or if counting the bytes ran out
    # of memory.
    peak_bytes: int | None
    threads: int
    # The method by which ``peak_bytes`` was counted, in words.
    method: str


class TryPass(MaxLengthRequest[LongPass], frozen=True, kw_only=True):
    """Asks the worker to measure the time and memory of one pass on a long sequence.

    The inputs of the pass are the inputs at a short length, repeated ``factor`` times along the sequence.
    """

    implementation: str
    case: str
    factor: int
    # Path of the file of inputs at the short length.
    short: str
    # Path of the file of inputs at twice the short length. The dimensions that are twice as long as in ``short`` are
    # the dimensions that grow with the length.
    double: str
    limit_s: float
