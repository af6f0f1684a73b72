"""The processes that time implementations: starting them, asking them for samples, and checking that times add up."""

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from attnbench.analysis.answers import choose, list_possible
from attnbench.analysis.pairs import bound_pairs
from attnbench.analysis.speed_verdict import EFFECT, ENOUGH, LEVEL, SpeedVerdict, decide_speed, find_slowdown
from attnbench.analysis.stats import CleanCalls, choose_measure, estimate_time
from attnbench.plugins.registry import PluginError
from attnbench.processes.candidate_requests import Defence, Outcome, TakeSamples, TimedSamples
from attnbench.processes.oracle_requests import DrawInputs
from attnbench.records.environment import count_cores
from attnbench.records.outcome_facts import CannotLoad, ClockChanged, SamplesChanged
from attnbench.records.types import Timing
from attnbench.runner.candidate_pool import TIMING, Supervisor
from attnbench.runner.session import Session

__all__ = ["STARTS", "STEP", "Effort", "TimingProcesses", "start_together"]

# Number of processes that start at the same time. None of these processes times a case before all have started,
# since a starting process keeps one core busy.
STARTS = min(4, count_cores())
# Number of processes that are added at a time while something is open.
STEP = 5
# Fraction of one time-out (``Limits.timeout_s``) that is planned for timed calls; the rest is for building, warming up
# and re-running checks. The time limit of the whole request is one time-out for each implementation.
PLANNED = 0.4
# Largest difference between the time of a request by the worker's clock and by this process's clock: a fraction of the
# time, and seconds, because a busy machine delays a reply.
CLOCK_SHARE, CLOCK_S = 0.05, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many processes time each case, and for how long."""

    # Number of fresh processes that time each case.
    processes: int
    # Largest number of processes that time a case. Processes are added while they may decide what is open: which
    # implementation to use, or, in a comparison with a baseline, a speed verdict. None: no processes are added.
    most: int | None = None
    # Planned time of the timed calls of one case in one process, in seconds.
    budget_s: float
    # Time limit of one case in all processes together, in seconds; None: no limit.
    case_s: float | None = None
    # What the verdicts of a comparison with a baseline are about (``decide_speed``). With ``slower``, open is only
    # whether an implementation is slower by this fraction (``find_slowdown``).
    effect: float = EFFECT
    level: float = LEVEL
    slower: float | None = None

    @property
    def looks(self) -> int:
        """Largest number of times that a verdict is asked for: after the first processes, and after each addition."""
        return 1 + math.ceil(max(0, (self.most or 0) - self.processes) / STEP)

    def list_open(self, timings: Mapping[str, Timing], baseline: str | None, *, verdicts: bool) -> list[str]:
        """Return the implementations that further processes must time to decide what is open on a case.

        Empty if nothing is open, or if no further process is allowed, or likely to decide it. ``verdicts``: what is
        open are the speed verdicts against the baseline, and not which implementation to use.
        """
        processes = max((len(timing.samples_ns) for timing in timings.values()), default=0)
        base = timings.get(baseline or "")
        if processes >= (self.most or 0) or base is None:
            return []
        found = {
            name: decide_speed(timing, base, effect=self.effect, level=self.level)
            for name, timing in timings.items()
            if name != baseline
        }
        if verdicts:
            left = {name for name, verdict in found.items() if self._may_decide(verdict)}
        else:
            # If calls were so disturbed that further processes are of no use, the verdicts tell.
            kept = {name for name, one in found.items() if one.state != "inconclusive" or self._may_decide(one)}
            left = _list_undecided({name: timings[name] for name in timings if name in {*kept, baseline}}, baseline)
        return [name for name in timings if name == baseline or name in left] if left - {baseline} else []

    def _may_decide(self, verdict: SpeedVerdict) -> bool:
        """Whether further processes may give a verdict in place of this one.

        They may if the verdict is ``unknown``, or a slowdown is open. They may also if processes were disturbed, and
        enough of the largest number of processes would be undisturbed at the share of undisturbed ones so far.
        """
        if verdict.state != "inconclusive" and self.slower is not None:
            return find_slowdown(verdict, self.slower) is None
        if verdict.state == "unknown":
            return True
        return verdict.disturbed and verdict.counted * (self.most or 0) >= ENOUGH * verdict.of


def _list_undecided(timings: Mapping[str, Timing], baseline: str | None) -> set[str]:
    """Return the implementations that may be the fastest if it is not decided which one to use; else none."""
    bounds = bound_pairs(timings, baseline, timings)
    times_ns = {name: estimate_time(CleanCalls(own, choose_measure(own))).value for name, own in timings.items()}
    answer = choose(bounds, times_ns, timings)
    return set(list_possible(bounds)) if answer is not None and answer.more_would_help else set()


def start_together(
    session: Session, names: list[str], count: int, *, without: frozenset[Defence] = frozenset()
) -> list[Supervisor]:
    """Start ``count`` processes at once, each with all these implementations; if one process fails, end all others.

    Raises: PluginError where an implementation cannot be loaded; OSError where the system cannot start a process.
    """
    kind = replace(TIMING, timed_without=without)
    with ThreadPoolExecutor(count) as together:
        coming = [together.submit(session.workers.get, names, kind) for _ in range(count)]
    if any(one.exception() for one in coming):
        for one in coming:
            if one.exception() is None:
                one.result().close()
    return [one.result() for one in coming]


@dataclass(slots=True, kw_only=True)
class TimingProcesses:
    """Starts timing processes, and asks them for samples; a process has all implementations that it will time."""

    session: Session
    effort: Effort
    # Defences that are switched off, to measure what they find.
    without: frozenset[Defence] = frozenset()
    # Processes that were started in advance, and have not been used yet.
    idle: list[Supervisor] = field(default_factory=list)

    def take(self, names: list[str], left: int) -> Supervisor | Outcome:
        """Return an idle process with these implementations, or a new one; up to ``STARTS`` start at the same time.

        Return the reason if no process with these implementations can be started.
        """
        while self.idle:
            worker = self.idle.pop()
            if set(names) <= worker.declared.keys():
                return worker
            worker.close()
        started = self.load(names, min(STARTS, left))
        if not isinstance(started, list):
            return started
        self.idle = started
        return self.idle.pop()

    def end_idle(self) -> None:
        """End the processes that were started in advance and not used."""
        while self.idle:
            self.idle.pop().close()

    def load(self, names: list[str], count: int = 1) -> list[Supervisor] | Outcome:
        """Start ``count`` processes; return the reason if they cannot be started."""
        try:
            return start_together(self.session, names, count, without=self.without)
        except (PluginError, OSError) as error:
            return Outcome(status="crashed", facts=(CannotLoad(message=str(error)),))

    def ask(
        self,
        worker: Supervisor,
        number: int,
        case: str,
        names: Sequence[str],
        *,
        baseline: str | None,
        checks: Sequence[str] = (),
        share: float = 1.0,
    ) -> TimedSamples | Outcome:
        """Ask a process for samples of implementations on a case; ``share`` is the fraction of the effort to spend.

        The answer is a fault if the times do not add up. ``checks`` get observations of a timed call.
        """
        request = TakeSamples(
            implementations=list(names),
            baseline=baseline if baseline in names else None,
            case=case,
            inputs=self.session.ask_oracle(DrawInputs(case=case)),
            budget_s=share * self.effort.budget_s,
            limit_s=min(PLANNED * self.session.limits.timeout_s, self.effort.case_s or math.inf),
            until_s=(self.effort.case_s or math.inf) / self.effort.processes,
            seed=number,
            checks=list(checks),
            observation=f"{worker.path_prefix}-timed",
            without=self.without,
        )
        begin = time.perf_counter_ns()
        answer = worker.ask(request, counts=False, shared_by=len(names))
        elapsed_ns = time.perf_counter_ns() - begin
        if isinstance(answer, TimedSamples) and "totals" not in self.without:
            return _find_wrong_total(answer, elapsed_ns) or answer
        return answer


def _find_wrong_total(answer: TimedSamples, elapsed_ns: int) -> Outcome | None:
    """Return a fault if samples and times do not add up to the time ``elapsed_ns`` that this process measured."""
    samples = [*answer.samples.values(), *([] if answer.twin is None else [answer.twin])]
    total_ns = sum(sum(own.samples_ns[0]) for own in samples) + answer.between_ns
    if total_ns != answer.elapsed_ns:
        changed = SamplesChanged(total_ns=total_ns, elapsed_ns=answer.elapsed_ns)
        return Outcome(status="failed", facts=(changed,))
    if abs(elapsed_ns - answer.elapsed_ns) > CLOCK_SHARE * elapsed_ns + CLOCK_S * 1e9:
        clock = ClockChanged(counted_ns=answer.elapsed_ns, passed_ns=elapsed_ns)
        return Outcome(status="failed", facts=(clock,))
    return None
