"""One case that is being timed: its implementations, their samples, and the excluded implementations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from attnbench.plugins.registry import display_name, find_baseline
from attnbench.processes.candidate_requests import TimedSamples
from attnbench.records.facts import Reason
from attnbench.records.types import Finding, Result, Timing
from attnbench.runner.session import Plan
from attnbench.runner.timing_processes import Effort

__all__ = ["TimedCase", "add_process"]


@dataclass(slots=True)
class TimedCase:
    """One case that is being timed."""

    plan: Plan
    # Implementations that are timed, in the order given by the user.
    names: list[str]
    # Name of the baseline; None means the operator's reference.
    against: str | None = None
    # Samples of each implementation, and of the A/A control: a second copy of the baseline.
    samples: dict[str, Timing] = field(default_factory=dict)
    control: Timing | None = None
    # ``processes``: number of processes that have timed the case. ``spent_s``: their wall time for the case, in
    # seconds, added up.
    processes: int = 0
    spent_s: float = 0.0
    # Excluded implementations, each with the reason, and with the findings of the checks that failed after timing.
    excluded: dict[str, tuple[Reason, tuple[Finding, ...]]] = field(default_factory=dict)
    # Excluded implementations whose results were yielded.
    reported: set[str] = field(default_factory=set)

    @property
    def baseline(self) -> str | None:
        """Name of the baseline, or None if the baseline is not timed."""
        name = self.against or find_baseline(self.plan.case)
        return name if name in self.names else None

    def restore(self, stored: Mapping[str, Timing | None]) -> None:
        """Take the samples of earlier processes, by name, if these processes timed the same implementations together.

        If not, nothing is taken, because samples of different processes are not interleaved.
        """
        timings = {name: timing for name, timing in stored.items() if timing is not None}
        shown = {display_name(name) for name in self.names}
        together = all({display_name(name), *one.interleaved_with} == shown for name, one in timings.items())
        counts = {len(one.samples_ns) for one in timings.values()}
        base = timings.get(self.baseline or "")
        controlled = self.baseline is None or (base is not None and base.twin is not None)
        # Calls of older runs had the same input values, or frozen parameters.
        recent = all(one.values and one.trainable for one in timings.values())
        if timings.keys() != set(self.names) or not together or len(counts) != 1 or not controlled or not recent:
            return
        self.samples = {name: replace(one, twin=None) for name, one in timings.items()}
        self.control = base.twin if base is not None else None
        (self.processes,) = counts
        every = [*timings.values(), *([self.control] if self.control is not None else [])]
        # The calls themselves are most of what a process takes for a case.
        self.spent_s = sum(sum(map(sum, timing.samples_ns)) for timing in every) / 1e9

    def can_afford(self, limit_s: float | None) -> bool:
        """Whether one more process of average duration fits into the time limit; the first process always does."""
        return limit_s is None or not self.processes or self.spent_s * (1 + 1 / self.processes) <= limit_s

    def exclude(self, name: str, reason: Reason, findings: tuple[Finding, ...] = ()) -> None:
        """Exclude an implementation from the timing of this case, and discard its samples."""
        self.names.remove(name)
        self.samples.pop(name, None)
        self.excluded[name] = (reason, findings)

    def add(self, process: int, answer: TimedSamples) -> None:
        """Add the samples of one process, without those of implementations that have been excluded meanwhile."""
        for name, taken in answer.samples.items():
            if name in self.names:
                self.samples[name] = add_process(self.samples.get(name), process, taken)
        if answer.twin is not None:
            self.control = add_process(self.control, process, answer.twin)
        self.processes = process + 1

    def count_judged(self, name: str) -> None:
        """Count a timed call of an implementation whose result was evaluated, and passed."""
        self.samples[name] = replace(self.samples[name], judged=self.samples[name].judged + 1)

    def make_timings(self) -> dict[str, Timing]:
        """Return the timing of every implementation that has samples."""
        found = {}
        for name in self.names:
            if name in self.samples:
                others = tuple(display_name(other) for other in self.names if other != name)
                found[name] = replace(self.samples[name].fill(self.processes), interleaved_with=others)
        if self.baseline in found and self.control is not None:
            found[self.baseline] = replace(found[self.baseline], twin=self.control.fill(self.processes))
        return found

    def list_open(self, effort: Effort) -> list[str]:
        """Return the implementations that further processes must time to decide what is open; empty if nothing is."""
        return effort.list_open(self.make_timings(), self.baseline, verdicts=self.against is not None)

    def make_results(self, ready: Mapping[tuple[str, str], Result]) -> Iterator[Result]:
        """Yield the ``ready`` results of this case with their timing so far, or with the reason why they have none.

        A result with such a reason is yielded once.
        """
        for name, (reason, findings) in self.excluded.items():
            if name not in self.reported:
                self.reported.add(name)
                yield _explain_exclusion(ready[name, self.plan.case], reason, findings)
        for name, timing in self.make_timings().items():
            yield replace(ready[name, self.plan.case], timing=timing)


def add_process(known: Timing | None, process: int, taken: Timing) -> Timing:
    """Return the samples of earlier processes, if there are any, with those that one more process took."""
    return taken.shift(process) if known is None else known.join(taken, process)


def _explain_exclusion(result: Result, reason: Reason, findings: Sequence[Finding]) -> Result:
    changed = {finding.check: finding for finding in findings}
    return replace(
        result,
        findings=tuple(changed.get(finding.check, finding) for finding in result.findings),
        memory=None if changed else result.memory,
        timing=None,
        untimed=reason,
    )
