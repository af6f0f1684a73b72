"""Timing: several fresh processes each time all implementations of a case with interleaved calls.

An implementation that makes a timing process fail is found by bisection and excluded; the other implementations are
then timed. Further processes time the cases on which a speed verdict against the baseline is still ``unknown``.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from attnbench.checks.catalogue import read_checks
from attnbench.plugins.registry import PluginError
from attnbench.processes.candidate_requests import Defence, Outcome, TakeSamples, TimedSamples
from attnbench.processes.oracle_requests import DrawInputs, Evaluate
from attnbench.records.environment import count_cores
from attnbench.records.types import Finding, Result
from attnbench.runner.check_outcomes import DEADLY
from attnbench.runner.progress import Progress
from attnbench.runner.session import Plan, Session, Supervisor
from attnbench.runner.timed_case import TimedCase

__all__ = ["STARTS", "Effort", "start_together", "time_cases"]

# Checks of the result of a timed call: the checks of the output and of the gradients. A call of each implementation is
# judged in the first and in the last of the planned processes. In the others, the oracle would take longer than the
# timing; no implementation can tell these processes from the others.
JUDGED = frozenset({"forward_parity", "input_gradients", "parameter_gradients", "mask_gradients"})
# Number of processes that are added at a time while a speed verdict is unknown.
STEP = 5
# Seconds for which one process times a group of cases; the remaining cases form further groups. A short group loses
# little if the run is killed, since the results of a group are stored after its last planned process. A long group has
# a small overhead, since the start of a process takes about two seconds.
GROUP_S = 30.0
# Number of processes that start at the same time. None of these processes times a case before all have started,
# since a starting process keeps one core busy.
STARTS = min(4, count_cores())
# Fraction of one time-out (``Limits.timeout_s``) that is planned for timed calls; the rest is for building, warming up
# and re-running checks. The time limit of the whole request is one time-out for each implementation.
PLANNED = 0.4
# Largest difference between the time of a request by the worker's clock and by this process's clock: a fraction of the
# time, and seconds, because a busy machine delays a reply.
CLOCK_SHARE, CLOCK_S = 0.05, 0.5
# Number of attempts to time a case in one process, if no implementation can be identified as the cause of a crash.
TRIES = 2
# Number of processes that an implementation may end before it is excluded from all remaining cases.
MOST_ENDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How many processes time each case, and for how long."""

    # Number of fresh processes that time each case.
    processes: int
    # Largest number of processes that time a case. Processes are added while a speed verdict of the case is unknown.
    # None: no processes are added.
    most: int | None = None
    # Planned time of the timed calls of one case in one process, in seconds.
    budget_s: float
    # Time limit of one case in all processes together, in seconds; None: no limit.
    case_s: float | None = None


def time_cases(
    session: Session,
    plans: Sequence[Plan],
    ready: dict[tuple[str, str], Result],
    *,
    progress: Progress,
    effort: Effort,
    against: str | None = None,
    without: frozenset[Defence] = frozenset(),
) -> Iterator[Result]:
    """Time the cases; yield the results of a case as soon as no further process will time it.

    Each result has a timing, or the reason why it has none.

    After an interrupt, the results of unfinished cases are yielded with the samples taken so far. With the time limit
    ``effort.case_s``, however, a resumed run takes every stored timing for a complete one. An unfinished case is then
    yielded only if its time limit leaves no time for another process.

    ``ready`` has the results of the implementations that passed their probe; its keys are (name, case). ``against`` is
    the baseline, by default the operator's reference. ``without`` names defences that are switched off.
    """
    cases = [
        TimedCase(plan=plan, names=[name for name, case in ready if case == plan.case], against=against)
        for plan in plans
    ]
    cases = [case for case in cases if case.names]
    size = max(1, int(GROUP_S / effort.budget_s))
    shared = _TimingRun(session=session, progress=progress, effort=effort, without=without)
    for first in range(0, len(cases), size):
        left = {case.plan.case: case for case in cases[first : first + size]}
        try:
            for case in shared.run(list(left.values())):
                yield from left.pop(case.plan.case).make_results(ready)
        except KeyboardInterrupt:
            for case in left.values():
                if effort.case_s is None or not case.can_afford(effort.case_s):
                    yield from case.make_results(ready)
            raise


def start_together(session: Session, names: list[str], count: int) -> list[Supervisor]:
    """Start ``count`` processes at once, each with all these implementations; if one process fails, end all others.

    Raises: PluginError where an implementation cannot be loaded; OSError where the system cannot start a process.
    """
    with ThreadPoolExecutor(count) as together:
        coming = [together.submit(session.supervise_together, names) for _ in range(count)]
    if any(one.exception() for one in coming):
        for one in coming:
            if one.exception() is None:
                one.result().close()
    return [one.result() for one in coming]


@dataclass(slots=True, kw_only=True)
class _TimingRun:
    """Runs the timing processes; one process times a group of cases."""

    session: Session
    progress: Progress
    effort: Effort
    # Defences that are switched off, to measure what they find.
    without: frozenset[Defence] = frozenset()
    # Number of timing processes that each implementation has ended by a crash or a time-out.
    deaths: Counter[str] = field(default_factory=Counter)
    # Processes that were started in advance, and have not been used yet.
    idle: list[Supervisor] = field(default_factory=list)

    def run(self, cases: Sequence[TimedCase]) -> Iterator[TimedCase]:
        """Time all cases in the planned processes, then cases with an unknown speed verdict in further processes.

        Yield each case when no further process times it.
        """
        try:
            self._time_in_processes(
                "time", range(self.effort.processes), {case.plan.case: (case, case.names) for case in cases}
            )
            most = self.effort.most or 0
            for first in range(self.effort.processes, most, STEP):
                undecided = {case.plan.case: (case, names) for case in cases if (names := case.find_undecided())}
                yield from (case for case in cases if case.plan.case not in undecided)
                if not undecided:
                    return
                cases = [case for case, _ in undecided.values()]
                self._time_in_processes("decide", range(first, min(first + STEP, most)), undecided)
            yield from cases
        finally:
            self._end_idle()

    def _time_in_processes(self, title: str, numbers: range, cases: dict[str, tuple[TimedCase, list[str]]]) -> None:
        left = self._select_affordable(cases)
        if left:
            self.progress.begin(title, len(numbers) * len(left))
        for number in numbers:
            if left:
                self._time_in_process(number, numbers.stop - number, left)
            left = self._select_affordable(left)

    def _select_affordable(
        self, cases: dict[str, tuple[TimedCase, list[str]]]
    ) -> dict[str, tuple[TimedCase, list[str]]]:
        """Return the cases whose time limit leaves time for one more process."""
        return {name: one for name, one in cases.items() if one[0].can_afford(self.effort.case_s)}

    def _time_in_process(self, number: int, left: int, cases: dict[str, tuple[TimedCase, list[str]]]) -> None:
        """Time the cases in one fresh process; ``left`` planned processes remain, this one included."""
        worker = self._start_process(cases, left)
        judged = number == 0 or left == 1
        try:
            for case, names in cases.values():
                self.progress.now(f"timing process {number + 1}: {case.plan.case}")
                for name in [name for name in case.names if self.deaths[name] >= MOST_ENDED]:
                    case.exclude(name, f"crashed: the implementation ended {MOST_ENDED} timing processes")
                begin = time.monotonic()
                if worker is not None:
                    self._time_case(worker, number, case, names, judged=judged)
                case.spent_s += time.monotonic() - begin
                self.progress.done(case.plan.case)
                if not case.can_afford(self.effort.case_s):
                    # The remaining processes do not time this case, so their steps are reported as done.
                    for _ in range(left - 1):
                        self.progress.done()
        finally:
            if worker is not None:
                worker.close()

    def _start_process(self, cases: dict[str, tuple[TimedCase, list[str]]], left: int) -> Supervisor | None:
        """Start a process with all implementations; exclude the implementations that do not load."""
        while True:
            names = list(dict.fromkeys(n for case, wanted in cases.values() for n in wanted if n in case.names))
            if not names:
                return None
            fault = self._take_process(names, left)
            if isinstance(fault, Supervisor):
                return fault
            causes = _bisect(names, fault, self._find_loading_fault) or dict.fromkeys(names, fault)
            for case, _ in cases.values():
                for name in set(causes) & set(case.names):
                    case.exclude(name, _format_fault(causes[name]))

    def _take_process(self, names: list[str], left: int) -> "Supervisor | Outcome":
        """Return an idle process with these implementations, or a new one; up to ``STARTS`` start at the same time.

        Return the reason if no process with these implementations can be started.
        """
        while self.idle:
            worker = self.idle.pop()
            if set(names) <= worker.declared.keys():
                return worker
            worker.close()
        started = self._load(names, min(STARTS, left))
        if not isinstance(started, list):
            return started
        self.idle = started
        return self.idle.pop()

    def _end_idle(self) -> None:
        while self.idle:
            self.idle.pop().close()

    def _load(self, names: list[str], count: int = 1) -> "list[Supervisor] | Outcome":
        try:
            return start_together(self.session, names, count)
        except (PluginError, OSError) as error:
            return Outcome(status="crashed", reason=str(error))

    def _find_loading_fault(self, names: list[str]) -> Outcome | None:
        loaded = self._load(names)
        if not isinstance(loaded, list):
            return loaded
        loaded[0].close()
        return None

    def _time_case(
        self, worker: Supervisor, number: int, case: TimedCase, wanted: Sequence[str], *, judged: bool
    ) -> None:
        """Time one case; exclude an implementation that causes a fault, and time the other implementations again.

        If the cause of a fault is not found, all are timed again; after ``TRIES`` such faults, all are excluded.
        ``judged`` says whether a timed call of each implementation is evaluated.
        """
        checks = [check for check in case.plan.checks if judged and check in JUDGED]
        tries = 0
        while names := [name for name in wanted if name in case.names]:
            answer = self._ask(worker, number, case, names, checks)
            if isinstance(answer, TimedSamples):
                self._judge(worker, case, checks, answer)
                case.add(number, answer)
                return
            causes = self._find_causes(number, case, names, checks, answer)
            for name, fault in causes.items():
                case.exclude(name, _format_fault(fault))
                self.deaths[name] += fault.status in DEADLY
            tries += not causes
            if tries == TRIES:
                for name in names:
                    case.exclude(name, f"{_format_fault(answer)}; no subset of the implementations reproduced it")

    def _find_causes(
        self, number: int, case: TimedCase, names: list[str], checks: list[str], fault: Outcome
    ) -> dict[str, Outcome]:
        """Return the implementation that caused a fault, with its fault; an empty mapping if none is identified.

        The cause is the implementation that raised an exception, or one that reproduces the fault in a fresh process.
        """
        if fault.culprit in names:
            return {fault.culprit: fault}

        def retry(some: list[str]) -> Outcome | None:
            self.progress.now(f"searching for the cause of a failed timing process: {case.plan.case}")
            loaded = self._load(some)
            if not isinstance(loaded, list):
                return loaded
            with loaded[0] as worker:
                answer = self._ask(worker, number, case, some, checks)
            return answer if isinstance(answer, Outcome) else None

        return _bisect(names, fault, retry)

    def _ask(
        self, worker: Supervisor, number: int, case: TimedCase, names: list[str], checks: list[str]
    ) -> TimedSamples | Outcome:
        request = TakeSamples(
            implementations=names,
            baseline=case.baseline if case.baseline in names else None,
            case=case.plan.case,
            inputs=self.session.ask_oracle(DrawInputs(case=case.plan.case)),
            budget_s=self.effort.budget_s,
            limit_s=min(PLANNED * self.session.limits.timeout_s, self.effort.case_s or math.inf),
            seed=number,
            checks=checks,
            observation=f"{worker.path_prefix}-timed",
            without=self.without,
        )
        begin = time.perf_counter_ns()
        answer = worker.ask(request, counts=False, shared_by=len(names))
        elapsed_ns = time.perf_counter_ns() - begin
        if isinstance(answer, TimedSamples) and "totals" not in self.without:
            return _find_wrong_total(answer, elapsed_ns) or answer
        return answer

    def _judge(self, worker: Supervisor, case: TimedCase, checks: list[str], answer: TimedSamples) -> None:
        """Evaluate the result of a timed call of each implementation; exclude implementations whose result is wrong."""
        for name, file in answer.observations.items() if checks and "judging" not in self.without else ():
            policies = worker.declared[name].policies
            evaluated = self.session.ask_oracle(
                Evaluate(case=case.plan.case, checks=checks, observations=[file], policies=policies)
            )
            calls = len(answer.samples[name].times_ns)
            findings = tuple(_describe_timed_call(evaluated[check], calls) for check in checks)
            failed = tuple(finding for finding in findings if finding.status != "passed")
            if failed:
                case.exclude(name, f"{failed[0].status}: {failed[0].reason}", failed)


def _find_wrong_total(answer: TimedSamples, elapsed_ns: int) -> Outcome | None:
    """Return a fault if samples and times do not add up to the time ``elapsed_ns`` that this process measured."""
    samples = [*answer.samples.values(), *([] if answer.twin is None else [answer.twin])]
    total_ns = sum(sum(own.times_ns) for own in samples) + answer.between_ns
    if total_ns != answer.elapsed_ns:
        reason = (
            f"the samples and the time between them add up to {total_ns / 1e6:.3f} ms, but "
            f"{answer.elapsed_ns / 1e6:.3f} ms passed: samples were changed after they were taken"
        )
        return Outcome(status="failed", reason=reason)
    if abs(elapsed_ns - answer.elapsed_ns) > CLOCK_SHARE * elapsed_ns + CLOCK_S * 1e9:
        reason = (
            f"the process counted {answer.elapsed_ns / 1e9:.3f} s while {elapsed_ns / 1e9:.3f} s passed: "
            "its clock was changed"
        )
        return Outcome(status="failed", reason=reason)
    return None


def _bisect(names: Sequence[str], fault: Outcome, retry: Callable[[list[str]], Outcome | None]) -> dict[str, Outcome]:
    """Find, by bisection, an implementation that reproduces the fault; return it with its fault, or an empty mapping.

    ``retry`` runs some of the implementations and returns the fault that they cause; None if they cause none. If
    several implementations cause the fault, only one of these is found.
    """
    some, reproduced = list(names), fault if len(names) == 1 else None
    while len(some) > 1:
        half = some[: len(some) // 2]
        reproduced = retry(half)
        some = half if reproduced is not None else some[len(half) :]
    reproduced = reproduced or retry(some)
    return {some[0]: reproduced} if reproduced is not None else {}


def _format_fault(fault: Outcome) -> str:
    return f"{fault.status} in a timing process: {fault.reason}"


def _describe_timed_call(finding: Finding, calls: int) -> Finding:
    """Return the finding of a check of one of ``calls`` timed calls; a failure says that the call was timed."""
    if finding.status == "passed":
        return finding
    requirement = read_checks()[finding.check].requirement
    reason = finding.reason.removeprefix(requirement).strip().removeprefix("But ")
    return replace(
        finding,
        reason=f"{requirement} Checked in one of {calls} timed calls, on input values of its own: {reason}",
    )
