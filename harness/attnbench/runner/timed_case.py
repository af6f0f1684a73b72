"""One case that is being timed: its implementations, their samples so far, and those excluded with a reason."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.analysis.speed_verdict import decide_speed
from attnbench.plugins.registry import display_name, find_baseline
from attnbench.processes.candidate_requests import Samples, TimedSamples
from attnbench.records.types import SAMPLE_FIELDS, Finding, Result, Timing
from attnbench.runner.session import Plan

__all__ = ["TimedCase"]


@dataclass(slots=True)
class _Samples:
    """Samples of one implementation on one case: a tuple per process, empty if the process did not time it."""

    columns: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {name: [] for name in ("times_ns", *SAMPLE_FIELDS)}
    )
    # Methods by which the processes measured the times; a single method unless the processes differ.
    methods: dict[str, None] = field(default_factory=dict)
    # Sources of the readings of a device's clock; a single source unless the processes differ.
    clocks: dict[str, None] = field(default_factory=dict)
    build_ns: list[int] = field(default_factory=list)
    first_call_ns: list[int] = field(default_factory=list)

    def add(self, process: int, taken: Samples) -> None:
        """Add the samples of a process; earlier processes without samples get empty tuples."""
        for name, column in self.columns.items():
            column.extend([()] * (process - len(column)))
            column.append(tuple(getattr(taken, name)))
        self.methods[taken.method] = None
        self.clocks[taken.clock] = None
        self.build_ns.append(taken.build_ns)
        self.first_call_ns.append(taken.first_call_ns)

    def to_timing(self, processes: int, threads: int) -> Timing:
        """Convert the samples to the stored record."""
        whole: dict[str, Any] = {
            name: tuple(column + [()] * (processes - len(column))) for name, column in self.columns.items()
        }
        return Timing(
            samples_ns=whole["times_ns"],
            **{name: whole[name] for name in SAMPLE_FIELDS if any(whole[name])},
            threads=threads,
            method="; ".join(self.methods),
            clock="; ".join(self.clocks),
            build_ns=tuple(self.build_ns),
            first_call_ns=tuple(self.first_call_ns),
        )


@dataclass(slots=True)
class TimedCase:
    """One case that is being timed."""

    plan: Plan
    # Implementations that are timed, in the order given by the user.
    names: list[str]
    # Name of the baseline; None means the operator's reference.
    against: str | None = None
    samples: dict[str, _Samples] = field(default_factory=dict)
    # A/A control: samples of a second copy of the baseline.
    control: _Samples = field(default_factory=_Samples)
    threads: int = 0
    # Number of processes that have timed the case, and the wall time that they took together.
    processes: int = 0
    spent_s: float = 0.0
    # Excluded implementations, each with the reason, and with the findings of the checks that failed after timing.
    excluded: dict[str, tuple[str, tuple[Finding, ...]]] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """Name of the baseline, or None if it is not timed."""
        name = self.against or find_baseline(self.plan.case)
        return name if name in self.names else None

    def can_afford(self, limit_s: float | None) -> bool:
        """Whether one more process of average duration fits into the time limit; the first process always does."""
        return limit_s is None or not self.processes or self.spent_s * (1 + 1 / self.processes) <= limit_s

    def exclude(self, name: str, reason: str, findings: tuple[Finding, ...] = ()) -> None:
        """Exclude an implementation, and discard its samples."""
        self.names.remove(name)
        self.samples.pop(name, None)
        self.excluded[name] = (reason, findings)

    def add(self, process: int, answer: TimedSamples) -> None:
        """Add the samples of one process, without those of implementations that have been excluded meanwhile."""
        for name, taken in answer.samples.items():
            if name in self.names:
                self.samples.setdefault(name, _Samples()).add(process, taken)
        if answer.twin is not None:
            self.control.add(process, answer.twin)
        self.threads, self.processes = answer.threads, process + 1

    def make_timings(self) -> dict[str, Timing]:
        """Return the timing of every implementation that has samples."""
        found = {}
        for name in self.names:
            if name in self.samples:
                others = tuple(display_name(other) for other in self.names if other != name)
                timing = self.samples[name].to_timing(self.processes, self.threads)
                found[name] = replace(timing, interleaved_with=others)
        if self.baseline in found and any(self.control.columns["times_ns"]):
            twin = self.control.to_timing(self.processes, self.threads)
            found[self.baseline] = replace(found[self.baseline], twin=twin)
        return found

    def find_undecided(self) -> list[str]:
        """Return the implementations with an ``unknown`` speed verdict and the baseline; empty if none is unknown."""
        timings = self.make_timings()
        base = timings.get(self.baseline or "")
        if base is None:
            return []
        others = [
            name
            for name, timing in timings.items()
            if name != self.baseline and decide_speed(timing, base).state == "unknown"
        ]
        return [name for name in self.names if name == self.baseline or name in others] if others else []

    def make_results(self, ready: dict[tuple[str, str], Result]) -> Iterator[Result]:
        """Yield the ``ready`` results of this case with their timing, or with the reason why they have none."""
        for name, timing in self.make_timings().items():
            yield replace(ready[name, self.plan.case], timing=timing)
        for name, (reason, findings) in self.excluded.items():
            result = ready[name, self.plan.case]
            changed = {finding.check: finding for finding in findings}
            yield replace(
                result,
                findings=tuple(changed.get(finding.check, finding) for finding in result.findings),
                memory=None if changed else result.memory,
                timing=None,
                untimed=reason,
            )
