"""Compare and time a real model whose attention is replaced by an implementation.

Each implementation is first compared in a separate process: the model's embeddings must be within the error budget.
Whole models with the accepted implementations, and the original model, are then timed with interleaved calls in several
new processes. Importing this module does not import torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from attnbench.analysis.speed_verdict import CONTROL, SpeedVerdict, decide_speed
from attnbench.integrations.drop_in_requests import (
    ComparedEmbeddings,
    CompareEmbeddings,
    DropInRequest,
    TimedModels,
    TimeModels,
)
from attnbench.plugins.registry import PluginError, display_name
from attnbench.processes.candidate_requests import Outcome
from attnbench.records.outcome_facts import CannotLoad
from attnbench.records.types import Timing
from attnbench.runner import Session
from attnbench.runner.candidate_pool import TIMING, Supervisor
from attnbench.runner.parallelism import run_each
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.timed_case import add_process
from attnbench.words.findings import describe_facts
from attnbench.words.refusals import describe_declared

__all__ = ["PLANNED", "WORKER", "DropInClient", "Row", "Settings", "drop_in"]

# Module that the worker processes of a session must run if the session is passed to ``drop_in``.
WORKER = "attnbench.integrations.drop_in_worker"
# Fraction of a model's time-out that is planned for timed calls. The rest is for loading and warming up.
PLANNED = 0.4
# Status of a row: ``HELD`` if the embeddings are within the error budget, ``FAILED`` if they are not.
HELD, FAILED = "held", "failed"
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Size of the batch, and effort of the timing."""

    # Number of sentences; half of all tokens are padding.
    batch: int
    # Number of tokens of the longest sentence.
    length: int
    # Number of processes, one after the other, in which the models are timed.
    processes: int
    # Time for all timed calls in one process, in seconds.
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of the drop-in table: one implementation in one model. Numbers that were not measured are None."""

    model: str
    implementation: str
    # ``held`` (error within the error budget), ``failed``, or the status of a refusal or an error.
    status: str
    reason: str = ""
    # Largest difference of the embeddings from those of the original model.
    largest: float | None = None
    # Smallest cosine similarity, over the sentences, to the original model's embedding of the same sentence.
    cosine: float | None = None
    # Largest difference of the embeddings from those of the model in float64.
    error: float | None = None
    # Error budget: the largest allowed ``error``.
    allowed: float | None = None
    timing: Timing | None = None
    contest: SpeedVerdict | None = None
    untimed: str = ""


@dataclass(frozen=True, slots=True)
class DropInClient:
    """Sends the requests that only a drop-in worker answers."""

    worker: Supervisor

    def ask(self, request: DropInRequest[Reply], *, shared_by: int = 1) -> Reply | Outcome:
        """Send a request and return its reply, or an outcome with the reason why there is no reply."""
        return self.worker.send(request, shared_by=shared_by)


def drop_in(
    session: Session,
    implementations: Sequence[str],
    models: Sequence[str],
    settings: Settings,
    *,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """Yield the rows of the drop-in table: for each model, the code paths of the original, then the implementations.

    The worker module of ``session`` must be ``WORKER``.

    Raises: PluginError where an implementation cannot be loaded.
    """
    progress = progress or NoProgress()
    for model in models:
        progress.begin(f"compare in {model}", len(implementations))
        compare = partial(_compare, session, model, settings, progress)
        rows = dict(run_each(session, [(name, ()) for name in implementations], compare))
        ready = [name for name, row in rows.items() if row.status == HELD and not row.untimed]
        timing = _ModelTiming(session=session, model=model, settings=settings, rows=rows, progress=progress)
        yield from timing.time_models(ready)


def _compare(
    session: Session, model: str, settings: Settings, progress: Progress, name: str, _: object, worker: Supervisor
) -> Iterator[tuple[str, Row]]:
    progress.now(f"{name} in {model}")
    request = CompareEmbeddings(
        implementation=name,
        model=model,
        batch=settings.batch,
        length=settings.length,
        work_s=session.limits.work_s,
    )
    yield name, _make_row(model, name, DropInClient(worker).ask(request))
    progress.done(name)


def _make_row(model: str, name: str, answer: ComparedEmbeddings | Outcome) -> Row:
    row = Row(model=model, implementation=display_name(name), status=HELD)
    if isinstance(answer, Outcome):
        return replace(row, status=answer.status, reason=describe_facts(answer.facts))
    row = replace(
        row,
        largest=answer.largest,
        cosine=answer.cosine,
        error=answer.error,
        allowed=answer.allowed,
        untimed=describe_declared(answer.untimed) if answer.untimed else "",
    )
    if answer.error <= answer.allowed:  # false for NaN
        return row
    reason = _format_excess(answer.error, answer.allowed)
    return replace(row, status=FAILED, reason=reason, untimed="wrong embeddings")


def _format_excess(error: float, allowed: float) -> str:
    return (
        f"embeddings differ by {error:.3g} from those of the model in float64, but only {allowed:.3g} is allowed, "
        "which is a multiple of the error of the original model's code paths"
    )


def _find_fault(answer: TimedModels | Outcome, names: Sequence[str]) -> tuple[str | None, str]:
    """Return the implementation that made a timing process fail, and the reason.

    The implementation is None if it is unknown. The reason is empty if the process did not fail.
    """
    if isinstance(answer, Outcome):
        culprit = answer.culprit if answer.culprit in names else None
        return culprit, f"{answer.status} in a timing process: {describe_facts(answer.facts)}"
    for name in names:
        if not answer.errors[name] <= answer.allowed:  # false for NaN
            return name, f"{FAILED} in a timing process: {_format_excess(answer.errors[name], answer.allowed)}"
    return None, ""


@dataclass(slots=True, kw_only=True)
class _ModelTiming:
    """Timing of one model: each process times the original and all implementations."""

    session: Session
    model: str
    settings: Settings
    rows: dict[str, Row]
    progress: Progress
    samples: dict[str, Timing] = field(default_factory=dict)
    # Names of the code paths of the original model. The first path is the baseline.
    originals: tuple[str, ...] = ()

    def time_models(self, names: Sequence[str]) -> Iterator[Row]:
        """Time the model with the implementations in ``names``.

        Yield a row for each code path of the original model, then ``self.rows``.
        """
        names, processes = list(names), self.settings.processes
        self.progress.begin(f"time {self.model}", processes)
        for number in range(processes):
            self.progress.now(f"process {number + 1}")
            self._time_in_process(number, names)
            # All processes report the same label, which tells the progress estimate that they take about the same time.
            self.progress.done(self.model)
        timings = {name: own.fill(processes) for name, own in self.samples.items()}
        if self.originals:
            timings[self.originals[0]] = replace(timings[self.originals[0]], twin=timings[CONTROL])
        for name in self.originals:
            yield self._add_timing(Row(model=self.model, implementation=name, status=HELD), timings, name)
        for name, row in self.rows.items():
            yield self._add_timing(row, timings, name) if name in names else row

    def _add_timing(self, row: Row, timings: dict[str, Timing], name: str) -> Row:
        if name not in timings:
            return row
        verdict = None if name == self.originals[0] else decide_speed(timings[name], timings[self.originals[0]])
        return replace(row, timing=timings[name], contest=verdict)

    def _time_in_process(self, number: int, names: list[str]) -> None:
        """Take samples in a new process.

        If an implementation raises or is wrong, exclude it and start again. If the process fails for another reason,
        exclude all implementations.
        """
        while True:
            answer = self._take_samples(number, names)
            culprit, reason = _find_fault(answer, names)
            if isinstance(answer, TimedModels) and not reason:
                break
            if culprit is None:
                for name in names:
                    self._exclude(name, reason)
                names.clear()
                return
            self._exclude(culprit, reason, failed=True)
            names.remove(culprit)
        self.originals = tuple(name for name in answer.samples if name not in names and name != CONTROL)
        for name, samples in answer.samples.items():
            self.samples[name] = add_process(self.samples.get(name), number, samples)

    def _take_samples(self, number: int, names: list[str]) -> TimedModels | Outcome:
        # Number of models: one for each implementation, and the original.
        models = len(names) + 1
        try:
            worker = self.session.workers.get(names, TIMING)
        except PluginError as error:
            return Outcome(status="crashed", facts=(CannotLoad(message=str(error)),))
        request = TimeModels(
            implementations=names,
            model=self.model,
            batch=self.settings.batch,
            length=self.settings.length,
            budget_s=self.settings.budget_s,
            limit_s=PLANNED * models * self.session.limits.timeout_s,
            seed=number,
        )
        with worker:
            return DropInClient(worker).ask(request, shared_by=models)

    def _exclude(self, name: str, reason: str, *, failed: bool = False) -> None:
        """Exclude an implementation from the timing, and discard its samples."""
        self.samples.pop(name, None)
        row = replace(self.rows[name], untimed=reason)
        self.rows[name] = replace(row, status=FAILED, reason=reason) if failed else row
