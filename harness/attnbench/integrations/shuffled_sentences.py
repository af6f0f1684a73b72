"""Sentences in another order for every timed call of a model."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnbench.integrations.models import Batch
from attnbench.measurement.judged_calls import JudgedCalls
from attnbench.measurement.surroundings import Ended

__all__ = ["ShuffledSentences"]


@dataclass(slots=True)
class ShuffledSentences:
    """Puts the sentences in a random order before each call, and keeps the embeddings of one call of each model.

    The order cannot be predicted, and the call is chosen after it has returned. A model that returns embeddings of an
    earlier call is therefore wrong.
    """

    batch: Batch
    # Order of the sentences now: the place of each in the original batch.
    order: Tensor = field(init=False)
    # For each model: the order of the sentences in one sampled call, and the embeddings that the call returned.
    judged: JudgedCalls[tuple[Tensor, Tensor]] = field(init=False, default_factory=JudgedCalls)
    _generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.order = torch.arange(len(self.batch.tokens))
        self._generator = torch.Generator().manual_seed(random.SystemRandom().getrandbits(63))

    def expect(self, counts: Mapping[str, int]) -> None:
        """Do nothing."""

    def prepare(self, name: str, cycle: int) -> None:
        """Put the sentences in a new order."""
        del name, cycle
        order = torch.randperm(len(self.order), generator=self._generator)
        self.batch.reorder(order)
        self.order = self.order[order]

    def inspect(self, name: str, result: object, ended: Ended) -> None:
        """Copy the embeddings, and choose whether the copy is kept: each call is as likely as another."""
        del ended
        assert isinstance(result, Tensor)
        self.judged.offer(name, (self.order, result.clone()))

    def note_freed(self, name: str, freeing_ns: int) -> None:
        """Do nothing."""

    def find_errors(self, oracle: Tensor) -> dict[str, float]:
        """Return the largest error of each model's copied embeddings; ``oracle`` has the original order."""
        return {
            name: float((embeddings.double() - oracle[order]).abs().max())
            for name, (order, embeddings) in self.judged.kept.items()
        }
