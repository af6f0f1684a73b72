"""Timing: several fresh processes each time all implementations of a case with interleaved calls.

An implementation that makes a timing process fail is found by bisection and excluded; the other implementations are
then timed. Further processes time the cases on which they may decide what is open.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom

from attnbench.processes.candidate_requests import Defence, Outcome, TimedSamples
from attnbench.processes.oracle_requests import Evaluate
from attnbench.records.facts import Reason
from attnbench.records.outcome_facts import EndedProcesses, ExcludedFromTiming, TimingFault
from attnbench.records.types import DEADLY, Finding, Result, explain_untimed
from attnbench.records.value_facts import TimedCallChecked
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.progress import Progress
from attnbench.runner.session import Plan, Session
from attnbench.runner.timed_case import TimedCase
from attnbench.runner.timing_faults import FaultSearch, bisect
from attnbench.runner.timing_processes import STEP, Effort, TimingProcesses

__all__ = ["time_cases"]

# Checks of the result of a timed call: the checks of the output and of the gradients.
JUDGED = frozenset({"forward_parity", "input_gradients", "parameter_gradients", "mask_gradients"})
# EVALUATED: number of the planned processes, and of each group of added processes, whose judged calls are evaluated.
# They are chosen at random, and no process knows it. SMALL_FLOP: number of operations of a case up to which all
# processes are evaluated. In larger cases, the oracle would take longer than the timing.
EVALUATED, SMALL_FLOP = 3, 5 * 10**8
# Seconds for which one process times a group of cases; the remaining cases form further groups. A long group has a
# small overhead, since the start of a process takes about two seconds. With short groups, cases are complete early.
GROUP_S = 30.0
# Number of attempts to time a case in one process, if no implementation can be identified as the cause of a crash.
TRIES = 2
# Number of processes that an implementation may end before it is excluded from all remaining cases.
MOST_ENDED = 3


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
    """Time the cases; yield the results of a case after each process that timed it.

    Each result has the timing by all processes so far, or the reason why it has none. So what was measured before a run
    is stopped can be stored. If ``ready`` has timings, further processes are added to them.

    ``ready`` has the results of the implementations that passed their probe; its keys are (name, case). ``against`` is
    the baseline, by default the operator's reference. ``without`` names defences that are switched off.
    """
    cases = [
        TimedCase(plan=plan, names=[name for name, case in ready if case == plan.case], against=against)
        for plan in plans
    ]
    cases = [case for case in cases if case.names]
    for case in cases:
        case.restore({name: ready[name, case.plan.case].timing for name in case.names})
    size = max(1, int(GROUP_S / effort.budget_s))
    processes = TimingProcesses(session=session, effort=effort, without=without)
    search = FaultSearch(processes=processes, progress=progress)
    shared = _TimingRun(
        session=session, progress=progress, effort=effort, processes=processes, search=search, ready=ready
    )
    for first in range(0, len(cases), size):
        yield from shared.run(cases[first : first + size])


@dataclass(slots=True, kw_only=True)
class _TimingRun:
    """Runs the timing processes; one process times a group of cases."""

    session: Session
    progress: Progress
    effort: Effort
    processes: TimingProcesses
    search: FaultSearch
    # The results that get a timing.
    ready: Mapping[tuple[str, str], Result]
    # Chooses the processes that are evaluated.
    random: Random = field(default_factory=SystemRandom)
    # Number of timing processes that each implementation has ended by a crash or a time-out.
    deaths: Counter[str] = field(default_factory=Counter)

    def run(self, cases: Sequence[TimedCase]) -> Iterator[Result]:
        """Time all cases in the planned processes, then cases on which something is open in further processes.

        Yield the results of a case after each process that timed it.
        """
        try:
            yield from self._time_in_processes(
                "time", range(self.effort.processes), {case.plan.case: (case, case.names) for case in cases}
            )
            most = self.effort.most or 0
            for first in range(self.effort.processes, most, STEP):
                undecided = {case.plan.case: (case, names) for case in cases if (names := case.list_open(self.effort))}
                if not undecided:
                    return
                cases = [case for case, _ in undecided.values()]
                yield from self._time_in_processes("decide", range(first, min(first + STEP, most)), undecided)
        finally:
            self.processes.end_idle()
            self.search.end_alone()

    def _time_in_processes(
        self, title: str, numbers: range, cases: dict[str, tuple[TimedCase, list[str]]]
    ) -> Iterator[Result]:
        left = self._select_affordable(cases)
        # A resumed run has samples of the first processes of some cases.
        steps = sum(len(_find_remaining(numbers, case)) for case, _ in left.values())
        if steps:
            self.progress.begin(title, steps)
        evaluated = {name: self._choose_evaluated(numbers, case) for name, (case, _) in left.items()}
        for number in numbers:
            due = {name: one for name, one in left.items() if one[0].processes <= number}
            if due:
                judged = frozenset(name for name in due if number in evaluated[name])
                yield from self._time_in_process(number, numbers.stop - number, due, evaluated=judged)
            left = self._select_affordable(left)

    def _choose_evaluated(self, numbers: range, case: TimedCase) -> frozenset[int]:
        """Return the processes whose judged calls of a case are evaluated, of those that are still to time it."""
        if case.plan.flop <= SMALL_FLOP:
            return frozenset(numbers)
        remaining = _find_remaining(numbers, case)
        return frozenset(self.random.sample(remaining, min(EVALUATED, len(remaining))))

    def _select_affordable(
        self, cases: dict[str, tuple[TimedCase, list[str]]]
    ) -> dict[str, tuple[TimedCase, list[str]]]:
        """Return the cases whose time limit leaves time for one more process."""
        return {name: one for name, one in cases.items() if one[0].can_afford(self.effort.case_s)}

    def _time_in_process(
        self, number: int, left: int, cases: dict[str, tuple[TimedCase, list[str]]], *, evaluated: frozenset[str]
    ) -> Iterator[Result]:
        """Time the cases in one fresh process; ``left`` planned processes remain, this one included.

        Yield the results of each case, unless none of its timed calls has been evaluated yet: ``evaluated`` has the
        cases whose judged calls are evaluated in this process.
        """
        worker = self._start_process(cases, left)
        try:
            for case, names in cases.values():
                self.progress.now(f"timing process {number + 1}: {case.plan.case}")
                for name in [name for name in case.names if self.deaths[name] >= MOST_ENDED]:
                    case.exclude(name, EndedProcesses(count=MOST_ENDED))
                begin = time.monotonic()
                if worker is not None:
                    self._time_case(worker, number, case, names, evaluated=case.plan.case in evaluated)
                case.spent_s += time.monotonic() - begin
                self.progress.done(case.plan.case)
                if self._is_judged(case):
                    yield from case.make_results(self.ready)
                if not case.can_afford(self.effort.case_s):
                    # The remaining processes do not time this case, so their steps are reported as done.
                    for _ in range(left - 1):
                        self.progress.done()
        finally:
            if worker is not None:
                worker.close()

    def _is_judged(self, case: TimedCase) -> bool:
        """Whether a timed call of each implementation was evaluated, where the case has checks for it."""
        if not JUDGED & set(case.plan.checks) or "judging" in self.processes.without:
            return True
        return all(own.judged for name, own in case.samples.items() if name in case.names)

    def _start_process(self, cases: dict[str, tuple[TimedCase, list[str]]], left: int) -> Supervisor | None:
        """Start a process with all implementations; exclude the implementations that do not load."""
        while True:
            names = list(dict.fromkeys(n for case, wanted in cases.values() for n in wanted if n in case.names))
            if not names:
                return None
            fault = self.processes.take(names, left)
            if isinstance(fault, Supervisor):
                return fault
            causes = bisect(names, fault, self.search.find_loading_fault) or dict.fromkeys(names, fault)
            for case, _ in cases.values():
                for name in set(causes) & set(case.names):
                    case.exclude(name, _exclude_for(causes[name]))

    def _time_case(
        self, worker: Supervisor, number: int, case: TimedCase, wanted: Sequence[str], *, evaluated: bool
    ) -> None:
        """Time one case; exclude an implementation that causes a fault, and time the other implementations again.

        If the cause of a fault is not found, all are timed again; after ``TRIES`` such faults, all are excluded.
        ``evaluated`` says whether the judged calls are evaluated. The process does not know it.
        """
        checks = [check for check in case.plan.checks if check in JUDGED]
        tries = 0
        with ExitStack() as stack:
            while names := [name for name in wanted if name in case.names]:
                answer = self.processes.ask(
                    worker, number, case.plan.case, names, baseline=case.baseline, checks=checks
                )
                if isinstance(answer, TimedSamples):
                    causes = self.search.find_slowing(number, case, names, answer)
                    if not causes:
                        case.add(number, answer)
                        if evaluated:
                            self._judge(worker, case, checks, answer)
                        return
                else:
                    causes = self.search.find_causes(number, case, names, checks, answer)
                    tries += not causes
                for name, fault in causes.items():
                    case.exclude(name, _exclude_for(fault))
                    self.deaths[name] += fault.status in DEADLY
                if isinstance(answer, Outcome) and tries == TRIES:
                    for name in names:
                        case.exclude(name, _exclude_for(answer, attributed=False))
                worker = self._renew(worker, answer, [name for name in names if name in case.names], stack)

    def _renew(
        self, worker: Supervisor, answer: TimedSamples | Outcome, names: list[str], stack: ExitStack
    ) -> Supervisor:
        """Return a process to time ``names`` after an implementation was excluded.

        An implementation that raised an exception leaves the process as it was. One that changed the process, or the
        times of others, must not be in the process again.
        """
        raised = isinstance(answer, Outcome) and answer.culprit is not None and answer.status != "failed"
        if not names or raised:
            return worker
        loaded = self.processes.load(names)
        return worker if isinstance(loaded, Outcome) else stack.enter_context(loaded[0])

    def _judge(self, worker: Supervisor, case: TimedCase, checks: list[str], answer: TimedSamples) -> None:
        """Evaluate the result of a timed call of each implementation; exclude implementations whose result is wrong."""
        for name, file in answer.observations.items() if checks and "judging" not in self.processes.without else ():
            policies = worker.declared[name].policies
            evaluated = self.session.ask_oracle(
                Evaluate(
                    implementation=name, case=case.plan.case, checks=checks, observations=[file], policies=policies
                )
            )
            calls = len(answer.samples[name].samples_ns[0])
            findings = tuple(_describe_timed_call(evaluated[check], calls) for check in checks)
            failed = tuple(finding for finding in findings if finding.status != "passed")
            if failed:
                case.exclude(name, explain_untimed(failed[0]), failed)
            else:
                case.count_judged(name)


def _find_remaining(numbers: range, case: TimedCase) -> range:
    """Return which of these processes are still to time a case."""
    return range(max(numbers.start, case.processes), numbers.stop)


def _exclude_for(fault: Outcome, *, attributed: bool = True) -> Reason:
    """Return why an implementation is excluded from the timing after a fault in a timing process."""
    first = fault.facts[0]
    return ExcludedFromTiming(fault=first, attributed=attributed) if isinstance(first, TimingFault) else first


def _describe_timed_call(finding: Finding, calls: int) -> Finding:
    """Return the finding of a check of one of ``calls`` timed calls; a failure says that the call was timed."""
    if finding.status == "passed":
        return finding
    return replace(finding, facts=(*finding.facts, TimedCallChecked(calls=calls)))
