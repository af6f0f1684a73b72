"""Implementations in the place of a real model's own attention: what they do to its embeddings, and to its time.

Each is first compared in a process of its own; those whose embeddings are right are then timed in turns with the model
as it is, whole models against whole models, in several fresh processes. Importing this imports no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.analysis.speed_verdict import SpeedVerdict, judge_speed
from attnbench.plugins.registry import PluginError, shown
from attnbench.records.types import COUNTED, Timing
from attnbench.runner import Session
from attnbench.runner.progress import NoProgress, Progress
from attnbench.runner.session import Outcome

__all__ = ["PLANNED", "TWIN", "WORKER", "Asked", "Row", "drop_in"]

# The original once more, beside the names of implementations.
TWIN = "(twin)"
# What runs the models.
WORKER = "attnbench.integrations.drop_in_worker"
# Share of the time-out, which each model may take, that calls are planned for; the rest is for loading and warming up.
PLANNED = 0.4
# What is told of rows that were compared, and of what was not.
HELD, FAILED = "held", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How much is compared and measured."""

    # Sentences, and tokens of the longest one; half of all tokens are padding.
    batch: int
    length: int
    processes: int
    # Time given to one process.
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One implementation in one model; numbers are None where it did not get so far."""

    model: str
    implementation: str
    # ``held``, ``failed``, or how it ended.
    status: str
    reason: str = ""
    # Largest difference of an embedding from the original model's, and the smallest cosine between the two.
    largest: float | None = None
    cosine: float | None = None
    # Largest difference from the model in float64, and the error budget for it.
    error: float | None = None
    allowed: float | None = None
    timing: Timing | None = None
    contest: SpeedVerdict | None = None
    untimed: str = ""


def drop_in(
    session: Session,
    implementations: Sequence[str],
    models: Sequence[str],
    asked: Asked,
    *,
    steps: Progress | None = None,
) -> Iterator[Row]:
    """Rows of the drop-in table, model after model: the original's other paths, then the implementations.

    ``session`` must run ``WORKER``. Raises: PluginError where an implementation cannot be loaded.
    """
    steps = steps or NoProgress()
    for model in models:
        steps.begin(f"compare in {model}", len(implementations))
        rows = {}
        for name, worker in session.supervised(list(implementations)):
            steps.now(f"{name} in {model}")
            answer = worker.ask(
                "embed",
                implementation=name,
                model=model,
                batch=asked.batch,
                length=asked.length,
                work_s=session.limits.work_s,
            )
            rows[name] = _row(model, name, answer)
            steps.done(name)
        ready = [name for name, row in rows.items() if row.status == HELD and not row.untimed]
        yield from _Turns(session=session, model=model, asked=asked, rows=rows, steps=steps).timed(ready)


def _row(model: str, name: str, answer: Outcome) -> Row:
    row = Row(model=model, implementation=shown(name), status=answer.get("status", HELD))
    if "status" in answer:
        return replace(row, reason=answer["reason"])
    numbers = {key: answer[key] for key in ("largest", "cosine", "error", "allowed")}
    row = replace(row, **numbers, untimed=answer["untimed"] or "")
    if answer["error"] <= answer["allowed"]:  # false for NaN
        return row
    return replace(row, status=FAILED, reason=_over(answer["error"], answer["allowed"]), untimed="not right")


def _over(error: float, allowed: float) -> str:
    return (
        f"embeddings are off by {error:.3g} against the model in float64; allowed {allowed:.3g}, "
        "which is made from what the model's own paths are off"
    )


def _fault(answer: Outcome, names: Sequence[str]) -> tuple[str | None, str]:
    """Whose fault it was that a process gave no right samples, None: nobody's that is known; and what, or nothing."""
    if "status" in answer:
        culprit = answer.get("culprit")
        return culprit if culprit in names else None, f"{answer['status']}: in a timing process: {answer['reason']}"
    for name in names:
        if not answer["errors"][name] <= answer["allowed"]:  # false for NaN
            return name, f"{FAILED}: in a timing process: {_over(answer['errors'][name], answer['allowed'])}"
    return None, ""


@dataclass(slots=True, kw_only=True)
class _Samples:
    """What one contender came to: a tuple per process, empty where it took no part."""

    columns: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {name: [] for name in ("times_ns", *COUNTED)}
    )
    first_call_ns: list[int] = field(default_factory=list)

    def add(self, process: int, taken: dict[str, Any]) -> None:
        """Samples of a process."""
        for name, column in self.columns.items():
            column.extend([()] * (process - len(column)))
            column.append(tuple(taken[name]))
        self.first_call_ns.append(taken["first_call_ns"])

    def timing(self, processes: int, threads: int) -> Timing:
        """As a record."""
        whole: dict[str, Any] = {
            name: tuple(column + [()] * (processes - len(column))) for name, column in self.columns.items()
        }
        return Timing(
            samples_ns=whole["times_ns"],
            **{name: whole[name] for name in COUNTED if any(whole[name])},
            threads=threads,
            first_call_ns=tuple(self.first_call_ns),
        )


@dataclass(slots=True, kw_only=True)
class _Turns:
    """Timing of one model: all contenders in every process."""

    session: Session
    model: str
    asked: Asked
    rows: dict[str, Row]
    steps: Progress
    samples: dict[str, _Samples] = field(default_factory=dict)
    # The original's paths, the first of which is the baseline.
    originals: tuple[str, ...] = ()
    threads: int = 0

    def timed(self, names: Sequence[str]) -> Iterator[Row]:
        """Rows of the original's paths, and those given before with what their timing came to."""
        names = list(names)
        self.steps.begin(f"time {self.model}", self.asked.processes)
        for number in range(self.asked.processes):
            self.steps.now(f"process {number + 1}")
            self._process(number, names)
            # One process is like another.
            self.steps.done(self.model)
        timings = {name: own.timing(self.asked.processes, self.threads) for name, own in self.samples.items()}
        if self.originals:
            timings[self.originals[0]] = replace(timings[self.originals[0]], twin=timings[TWIN])
        for name in self.originals:
            yield self._judged(Row(model=self.model, implementation=name, status=HELD), timings, name)
        for name, row in self.rows.items():
            yield self._judged(row, timings, name) if name in names else row

    def _judged(self, row: Row, timings: dict[str, Timing], name: str) -> Row:
        if name not in timings:
            return row
        found = None if name == self.originals[0] else judge_speed(timings[name], timings[self.originals[0]])
        return replace(row, timing=timings[name], contest=found)

    def _process(self, number: int, names: list[str]) -> None:
        """One fresh process; whoever raises, or is no longer right, is out, and the others are timed again."""
        while True:
            answer = self._taken(number, names)
            guilty, reason = _fault(answer, names)
            if not reason:
                break
            if guilty is None:
                for name in names:
                    self._leave(name, reason)
                names.clear()
                return
            self._leave(guilty, reason, failed=True)
            names.remove(guilty)
        self.threads = answer["threads"]
        self.originals = tuple(name for name in answer["samples"] if name not in names and name != TWIN)
        for name, taken in answer["samples"].items():
            self.samples.setdefault(name, _Samples()).add(number, taken)

    def _taken(self, number: int, names: list[str]) -> Outcome:
        # And the model as it is.
        models = len(names) + 1
        try:
            worker = self.session.supervise_together(names)
        except PluginError as error:
            return {"status": "crashed", "reason": str(error)}
        with worker:
            return worker.ask(
                "take",
                shared_by=models,
                implementations=names,
                model=self.model,
                batch=self.asked.batch,
                length=self.asked.length,
                budget_s=self.asked.budget_s,
                limit_s=PLANNED * models * self.session.limits.timeout_s,
                seed=number,
            )

    def _leave(self, name: str, reason: str, *, failed: bool = False) -> None:
        """Leave an implementation out of what is timed, with what it had taken."""
        self.samples.pop(name, None)
        row = replace(self.rows[name], untimed=reason)
        self.rows[name] = replace(row, status=FAILED, reason=reason) if failed else row
