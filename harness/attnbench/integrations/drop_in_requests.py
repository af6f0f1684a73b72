"""The requests that a drop-in worker answers in addition to those of a candidate worker, and its replies."""

from typing import Generic, TypeVar

import msgspec

from attnbench.processes.candidate_requests import Outcome, Samples
from attnbench.processes.request import Request

__all__ = [
    "CompareEmbeddings",
    "Comparison",
    "DropInRequest",
    "FindMissing",
    "Missing",
    "TimeModels",
    "TimedModels",
]

Reply = TypeVar("Reply", covariant=True)


class DropInRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request that only a drop-in worker answers, by a reply or by the reason why there is none."""


class Missing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What this machine lacks to run a model, with the remedy; None if it lacks nothing."""

    reason: str | None


class FindMissing(DropInRequest[Missing], frozen=True, kw_only=True):
    """Return what this machine lacks to run a model."""

    model: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An implementation's embeddings, compared with those of the original model and of the model in float64."""

    # Largest difference from the original's embeddings, and the smallest cosine similarity to them.
    largest: float
    cosine: float
    # Largest difference from the embeddings in float64, and the error budget for it.
    error: float
    allowed: float
    # Why the implementation must not be timed; None if it may be timed.
    untimed: str | None


class CompareEmbeddings(DropInRequest[Comparison], frozen=True, kw_only=True):
    """Compare an implementation's embeddings with those of the original model and of the model in float64."""

    implementation: str
    model: str
    # Number of sentences, and number of tokens of the longest sentence.
    batch: int
    length: int
    # Predicted seconds of one call above which the model is not run.
    work_s: float


class TimedModels(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples that one process took of one model, by implementation, by path of the original, and of the A/A control.

    ``errors`` has the error of each on the sentences in reversed order.
    """

    samples: dict[str, Samples]
    threads: int
    errors: dict[str, float]
    allowed: float


class TimeModels(DropInRequest[TimedModels], frozen=True, kw_only=True):
    """Time interleaved calls of the model with each implementation, and of two originals (A/A control)."""

    implementations: list[str]
    model: str
    batch: int
    length: int
    # Seconds of timed calls, and seconds after which no further call is made.
    budget_s: float
    limit_s: float
    seed: int
