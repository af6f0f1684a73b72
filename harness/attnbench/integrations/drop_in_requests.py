"""The requests that a drop-in worker answers and a candidate worker does not, and the replies to these requests."""

from typing import Generic, TypeVar

import msgspec

from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.request import Request
from attnbench.records.types import Timing
from attnbench.refusals import TypedRefusal

__all__ = [
    "CompareEmbeddings",
    "ComparedEmbeddings",
    "DropInRequest",
    "FindMissing",
    "Missing",
    "TimeModels",
    "TimedModels",
]

Reply = TypeVar("Reply", covariant=True)


class DropInRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request that only a drop-in worker answers, with a reply or with an outcome that says why there is none."""


class Missing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What this machine lacks to run a model, with the remedy; ``reason`` is None if it lacks nothing."""

    reason: str | None


class FindMissing(DropInRequest[Missing], frozen=True, kw_only=True):
    """Return what this machine lacks to run a model."""

    model: str


class ComparedEmbeddings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An implementation's embeddings, compared with the embeddings of the original and of the float64 model."""

    # Largest difference of the embeddings from those of the original model.
    largest: float
    # Smallest cosine similarity, over the sentences, to the original model's embedding of the same sentence.
    cosine: float
    # Largest difference of the embeddings from those of the model in float64.
    error: float
    # Error budget: the largest allowed ``error``.
    allowed: float
    # Why the implementation must not be timed; None if it may be timed.
    untimed: TypedRefusal | str | None


class CompareEmbeddings(DropInRequest[ComparedEmbeddings], frozen=True, kw_only=True):
    """Compare an implementation's embeddings with the embeddings of the original and of the float64 model."""

    implementation: str
    model: str
    # Number of sentences.
    batch: int
    # Number of tokens of the longest sentence.
    length: int
    # Work limit: the model is not run if one call of the implementation is predicted to take more seconds.
    work_s: float


class TimedModels(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples that one process took of one model, and the errors of the model's embeddings.

    The keys of ``samples`` and ``errors`` are names: of an implementation, of a code path of the original model, or of
    the A/A control. ``errors`` has the largest error of the embeddings of one timed call, chosen at random.
    ``allowed`` is the error budget.
    """

    samples: dict[str, Timing]
    errors: dict[str, float]
    allowed: float


class TimeModels(DropInRequest[TimedModels], frozen=True, kw_only=True):
    """Time interleaved calls of the model with each implementation, of the original model, and of a copy of it.

    The copy is for the A/A control.
    """

    implementations: list[str]
    model: str
    batch: int
    length: int
    # Planned time of all timed calls, in seconds.
    budget_s: float
    # Largest time of the minimum number of samples, in seconds. If these samples would take longer, fewer are taken.
    limit_s: float
    seed: int
