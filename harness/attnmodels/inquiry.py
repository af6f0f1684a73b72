"""Asks processes about a model: one that checks, which is started again after it died, and others that time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec

from attnbench.api.conventions import announce_conventions
from attnbench.plugins.registry import PluginError
from attnbench.processes.errors import ChildDied, ChildTimeout
from attnbench.processes.request import Fault, Request
from attnbench.processes.rpc import Child
from attnbench.runner import Session
from attnbench.words.findings import describe_fact
from attnmodels.facts import MODEL, Cell, CheckedSource, Inspection, Raised
from attnmodels.requests import CheckAttention, CheckedAttention, InspectModel, ModelSamples, SampleModel
from attnmodels.timing import time_models

__all__ = ["Inquiry", "Timed"]

# Functions that are checked if none is named, by the library before the colon of a source; the first is the baseline.
DEFAULTS = {"diffusers": ("native",)}
OTHER_DEFAULTS = ("eager", "sdpa")
# Time limit of an attention function in all situations, or of a timing process, in seconds; a small model takes some.
LIMIT_S = 900.0
# Part of the time limit of a timing process that is planned for calls. The rest is for loading and warming up.
PLANNED = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Size of the timed batch, and effort of the timing."""

    batch: int
    # Tokens of the longest sequence.
    length: int
    processes: int
    # Time of all timed calls in one process, in seconds.
    budget_s: float
    threads: int | None


@dataclass(slots=True)
class Inquiry:
    """What is asked about a model."""

    source: str
    small: bool | None
    log: Path
    child: Child | None = field(init=False, default=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child is not None:
            self.child.__exit__(None, None, None)
            self.child = None

    @property
    def defaults(self) -> tuple[str, ...]:
        """The functions that are checked if none is named; the first is the baseline of times."""
        return DEFAULTS.get(self.source.partition(":")[0], OTHER_DEFAULTS)

    def check(self, attentions: Sequence[str]) -> CheckedSource:
        """Check attention functions in a model; none: the defaults.

        Raises: PluginError where there is no such model, or no such function.
        """
        inspection = self._inspect()
        cells = [cell for name in attentions or self.defaults for cell in self._check_attention(name, inspection)]
        return CheckedSource(source=self.source, inspection=inspection, cells=(*inspection.cells, *cells))

    def _inspect(self) -> Inspection:
        try:
            found: Inspection = self._ask(InspectModel(source=self.source, small=self.small))
        except (ChildDied, ChildTimeout) as error:
            raise PluginError(f"the process of the model ended: {describe_fact(error.fact)}") from None
        return found

    def _check_attention(self, name: str, inspection: Inspection) -> tuple[Cell, ...]:
        try:
            found: CheckedAttention = self._ask(CheckAttention(source=self.source, small=self.small, attention=name))
        except (ChildDied, ChildTimeout) as error:
            fact = Raised(kind="ended", message=describe_fact(error.fact))
            return tuple(
                Cell(attention=name, situation=one, status="failed", calls=0, layers=("",), facts=(fact,))
                for one in inspection.situations
            )
        if found.is_implementation and any(cell.status in ("deviates", "failed") for cell in found.cells):
            with Session() as session:
                announce_conventions(session, [name])
        return found.cells

    def time(self, found: CheckedSource, timed: Timed) -> CheckedSource:
        """Add the times of functions that do not deviate, or why there are none; the first default is the baseline."""
        held = [name for name in found.attentions if name != MODEL and found.is_right(name)]
        names = list(dict.fromkeys([self.defaults[0], *held]))
        request = SampleModel(
            source=self.source, small=self.small, attentions=names, batch=timed.batch, length=timed.length,
            budget_s=timed.budget_s, limit_s=PLANNED * LIMIT_S, seed=0, threads=timed.threads,
        )  # fmt: skip

        def sample(number: int) -> ModelSamples:
            try:
                with self:
                    samples: ModelSamples = self._ask(msgspec.structs.replace(request, seed=number))
            except (ChildDied, ChildTimeout) as error:
                raise PluginError(f"a timing process ended: {describe_fact(error.fact)}") from None
            return samples

        try:
            times = tuple(time_models(names, timed.processes, sample))
        except PluginError as error:
            return msgspec.structs.replace(found, untimed=str(error))
        return msgspec.structs.replace(found, timed_batch=timed.batch, timed_length=timed.length, times=times)

    def _ask(self, request: Request[Any]) -> Any:
        if self.child is None:
            self.child = Child("attnmodels.process", log=self.log)
        try:
            answer = self.child.ask(request, timeout_s=LIMIT_S)
        except (ChildDied, ChildTimeout):
            self.child = None
            raise
        if isinstance(answer, Fault):
            raise PluginError(answer.reason)
        return answer
