"""One case that is being timed: who takes turns, what they came to so far, who is out and why."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.analysis.speed_verdict import judge_speed
from attnbench.plugins.registry import baseline, shown
from attnbench.records.types import COUNTED, Finding, Result, Timing
from attnbench.runner.session import Plan

__all__ = ["TimedCase"]


@dataclass(slots=True)
class _Samples:
    """What one implementation came to on one case so far: a tuple per process, empty where it took no part."""

    columns: dict[str, list[tuple[Any, ...]]] = field(
        default_factory=lambda: {name: [] for name in ("times_ns", *COUNTED)}
    )
    # How the processes took the times, and read the clock of a device; the same in all, but for accidents.
    methods: dict[str, None] = field(default_factory=dict)
    clocks: dict[str, None] = field(default_factory=dict)
    build_ns: list[int] = field(default_factory=list)
    first_call_ns: list[int] = field(default_factory=list)

    def add(self, process: int, taken: dict[str, Any]) -> None:
        """Samples of a process; those before in which it took no part stay empty."""
        for name, column in self.columns.items():
            column.extend([()] * (process - len(column)))
            column.append(tuple(taken[name]))
        self.methods[taken["method"]] = None
        self.clocks[taken["clock"]] = None
        self.build_ns.append(taken["build_ns"])
        self.first_call_ns.append(taken["first_call_ns"])

    def timing(self, processes: int, threads: int) -> Timing:
        """As it is stored."""
        whole: dict[str, Any] = {
            name: tuple(column + [()] * (processes - len(column))) for name, column in self.columns.items()
        }
        return Timing(
            samples_ns=whole["times_ns"],
            **{name: whole[name] for name in COUNTED if any(whole[name])},
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
    # Who takes turns, in the order asked for.
    names: list[str]
    # Whom they are compared with; None: the operator's reference.
    against: str | None = None
    samples: dict[str, _Samples] = field(default_factory=dict)
    twin: _Samples = field(default_factory=_Samples)
    threads: int = 0
    # Processes that have timed it, and the wall time that they took.
    processes: int = 0
    spent_s: float = 0.0
    # Why somebody is out, and the findings that say so.
    out: dict[str, tuple[str, tuple[Finding, ...]]] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """The baseline, where it takes part."""
        name = self.against or baseline(self.plan.case)
        return name if name in self.names else None

    def affords(self, limit_s: float | None) -> bool:
        """Whether one more process like those before fits into a time; the first always does."""
        return limit_s is None or not self.processes or self.spent_s * (1 + 1 / self.processes) <= limit_s

    def leave(self, name: str, reason: str, findings: tuple[Finding, ...] = ()) -> None:
        """Leave an implementation out, with what it had taken."""
        self.names.remove(name)
        self.samples.pop(name, None)
        self.out[name] = (reason, findings)

    def add(self, process: int, answer: dict[str, Any]) -> None:
        """Samples of one process."""
        for name, taken in answer["samples"].items():
            self.samples.setdefault(name, _Samples()).add(process, taken)
        if answer["twin"] is not None:
            self.twin.add(process, answer["twin"])
        self.threads, self.processes = answer["threads"], process + 1

    def timings(self) -> dict[str, Timing]:
        """Timing of everybody who has one."""
        found = {}
        for name in self.names:
            if name in self.samples:
                others = tuple(shown(other) for other in self.names if other != name)
                timing = self.samples[name].timing(self.processes, self.threads)
                found[name] = replace(timing, interleaved_with=others)
        if self.baseline in found and any(self.twin.columns["times_ns"]):
            twin = self.twin.timing(self.processes, self.threads)
            found[self.baseline] = replace(found[self.baseline], twin=twin)
        return found

    def undecided(self) -> list[str]:
        """Whose contest with the baseline more processes may decide, and the baseline; nobody where there is none."""
        timings = self.timings()
        base = timings.get(self.baseline or "")
        if base is None:
            return []
        others = [
            name
            for name, timing in timings.items()
            if name != self.baseline and judge_speed(timing, base).state == "unknown"
        ]
        return [name for name in self.names if name == self.baseline or name in others] if others else []

    def results(self, ready: dict[tuple[str, str], Result]) -> Iterator[Result]:
        """Those that were ready for it, with their timing, or with the reason why there is none."""
        for name, timing in self.timings().items():
            yield replace(ready[name, self.plan.case], timing=timing)
        for name, (reason, findings) in self.out.items():
            result = ready[name, self.plan.case]
            told = {finding.check: finding for finding in findings}
            yield replace(
                result,
                findings=tuple(told.get(finding.check, finding) for finding in result.findings),
                memory=None if told else result.memory,
                timing=None,
                untimed=reason,
            )
