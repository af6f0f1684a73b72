"""Ask an implementation what it declares about many cases, within a time limit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from attnbench.processes.candidate_requests import AskSupport, Outcome
from attnbench.runner.refusal import check_work_limit
from attnbench.runner.session import Supervisor

__all__ = ["Declaration", "Declarations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What an implementation declares about one case."""

    # Why the case is refused; None: it is supported, or the declaration raised an exception.
    unsupported: str | None
    # Exception that the declaration raised; None: it raised none.
    raised: str | None
    # Whether the predicted time of a call is within the work limit; true if no time is predicted.
    within_limit: bool

    @property
    def supported(self) -> bool:
        """Whether the implementation declares that it computes the case."""
        return self.unsupported is None and self.raised is None


@dataclass(slots=True, kw_only=True)
class Declarations:
    """Asks an implementation about cases, at most ``limit_s`` seconds in total."""

    worker: Supervisor
    implementation: str
    limit_s: float
    work_limit_s: float
    # ``count``: number of cases answered so far. ``seconds``: time that these answers took.
    count: int = 0
    seconds: float = 0.0
    # Why the implementation is asked about no further case; empty while asking goes on.
    stopped: str = ""
    # ``raised_count``: number of cases on which the declaration raised. ``first_raised``: the first exception.
    raised_count: int = field(default=0)
    first_raised: str = ""

    def ask(self, cases: Sequence[str]) -> list[Declaration]:
        """Return the declarations about the cases, in order.

        If the time limit passes, the list ends there. It is empty if asking has stopped, or if the worker does not
        answer.
        """
        if self.stopped or not cases:
            return []
        left_s = max(self.limit_s - self.seconds, 0.0)
        request = AskSupport(implementation=self.implementation, cases=list(cases), limit_s=left_s)
        answers = self.worker.ask(request)
        if isinstance(answers, Outcome):
            self.stopped = f"unsupported(case) gave no answer on many cases: {answers.reason}"
            return []
        self.count += len(answers.unsupported)
        self.seconds += answers.seconds
        if len(answers.unsupported) < len(cases):
            each_ms = 1e3 * self.seconds / max(self.count, 1)
            self.stopped = (
                f"unsupported(case) is slow: {self.count} cases took {self.seconds:.3g} s, {each_ms:.3g} ms each; "
                f"no further case was asked after {self.limit_s:g} s"
            )
        found = []
        for refused, predicted_s, raised in zip(answers.unsupported, answers.predicted_s, answers.raised, strict=True):
            if raised is not None:
                self.raised_count += 1
                self.first_raised = self.first_raised or raised
            within = check_work_limit(predicted_s, self.work_limit_s) is None
            found.append(Declaration(unsupported=refused or None, raised=raised, within_limit=within))
        return found

    def describe_faults(self) -> Iterator[str]:
        """Yield a line about exceptions, if there were any, and a line about why asking stopped, if it did."""
        if self.raised_count:
            yield (
                f"declarations raised on {self.raised_count} of {self.count} cases that were asked, "
                f"which count as refused; the first exception: {self.first_raised}"
            )
        if self.stopped:
            yield self.stopped
