"""Finds the implementation that disturbs a timing process: one that ends it, changes it, or slows the baseline."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from attnbench.analysis.clean_calls import select_clean
from attnbench.processes.candidate_requests import Outcome, TimedSamples
from attnbench.records.outcome_facts import SlowsOthers
from attnbench.records.types import Timing
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.progress import Progress
from attnbench.runner.timed_case import TimedCase
from attnbench.runner.timing_processes import TimingProcesses

__all__ = ["FaultSearch", "bisect"]

# The baseline counts as slowed if the median of its calls beside the other implementations exceeds the median of its
# calls alone by more than this factor and this time. Beside others, its code and data leave the processor's caches. On
# a machine with twice as much other work as cores, the median of calls of 0.2 ms beside others was up to 2.0 times
# that alone, and of calls of 1.1 ms up to 1.7 times.
SLOWED, SLOWED_NS = 1.5, 300_000
# Number of times that a run looks for the cause of a slowed baseline. On a busy machine most of the suspicions are
# not confirmed, and each costs two to four processes.
MOST_SUSPICIONS = 3


@dataclass(slots=True, kw_only=True)
class FaultSearch:
    """Searches for the causes of faults in fresh processes, and knows the times of baselines that run alone."""

    processes: TimingProcesses
    progress: Progress
    # Median time of a call of the baseline in a process of its own, in nanoseconds, by case and baseline.
    alone_ns: dict[tuple[str, str], float] = field(default_factory=dict)
    suspicions: int = 0
    # Processes that hold a baseline alone, by the baseline's name. One process times the baseline on all cases of a
    # group, because the start of a process takes about two seconds.
    _alone: dict[str, Supervisor] = field(init=False, default_factory=dict)

    def end_alone(self) -> None:
        """End the processes that hold a baseline alone; later comparisons start new ones."""
        while self._alone:
            self._alone.popitem()[1].close()

    def find_causes(
        self, number: int, case: TimedCase, names: Sequence[str], checks: Sequence[str], fault: Outcome
    ) -> dict[str, Outcome]:
        """Return the implementation that caused a fault, with its fault; an empty mapping if none is identified.

        The cause is the implementation that raised an exception, or one that reproduces the fault in a fresh process.
        """
        if fault.culprit is not None and fault.culprit in names:
            return {fault.culprit: fault}

        # Some faults are found by comparison with the baseline, so it is beside every half, unless it has the fault.
        beside = [name for name in names if name == case.baseline and len(names) > 1]

        def retry(some: Sequence[str]) -> Outcome | None:
            answer = self._ask_fresh(number, case, [*beside, *some], checks)
            return answer if isinstance(answer, Outcome) else None

        if beside and (own := retry([])) is not None:
            return {beside[0]: own}
        return bisect([name for name in names if name not in beside], None if beside else fault, retry)

    def find_loading_fault(self, names: Sequence[str]) -> Outcome | None:
        """Return the reason if no process with these implementations can be started."""
        loaded = self.processes.load(list(names))
        if isinstance(loaded, Outcome):
            return loaded
        loaded[0].close()
        return None

    def find_slowing(
        self, number: int, case: TimedCase, names: Sequence[str], answer: TimedSamples
    ) -> dict[str, Outcome]:
        """Return the implementation beside which the baseline is slower than alone, if there is one.

        A slower baseline may be due to a change of the machine's speed. It is therefore timed again alone and beside
        the others before a cause is searched.
        """
        others = [name for name in names if name != case.baseline]
        if "alone" in self.processes.without or not others or self.suspicions >= MOST_SUSPICIONS:
            return {}
        if case.baseline not in names or self._find_slowdown(number, case, answer) is None:
            return {}
        self.suspicions += 1

        def retry(some: Sequence[str]) -> Outcome | None:
            # Timed again alone, in a fresh process, because a machine's speed changes, and processes differ.
            self.alone_ns.pop((case.plan.case, case.baseline or ""), None)
            self.end_alone()
            beside = self._ask_fresh(number, case, [case.baseline or "", *some], ())
            return beside if isinstance(beside, Outcome) else self._find_slowdown(number, case, beside)

        return {} if retry(others) is None else bisect(others, None, retry)

    def _find_slowdown(self, number: int, case: TimedCase, answer: TimedSamples) -> Outcome | None:
        """Return a fault if the calls of the baseline were slower than in a process of its own."""
        beside_ns = _find_median_ns(answer.samples[case.baseline or ""], answer.twin)
        alone_ns = self._time_alone(number, case)
        if beside_ns is None or alone_ns is None or beside_ns <= SLOWED * alone_ns + SLOWED_NS:
            return None
        slows = SlowsOthers(baseline=case.baseline or "", beside_ns=beside_ns, alone_ns=alone_ns)
        return Outcome(status="failed", facts=(slows,))

    def _time_alone(self, number: int, case: TimedCase) -> float | None:
        """Return the median time of a call of the baseline in a process of its own; None if it cannot be timed."""
        key = (case.plan.case, case.baseline or "")
        if key not in self.alone_ns:
            answer = self._ask_alone(number, case, key[1])
            found = None if isinstance(answer, Outcome) else _find_median_ns(answer.samples[key[1]], None)
            if found is None:
                return None
            self.alone_ns[key] = found
        return self.alone_ns[key]

    def _ask_alone(self, number: int, case: TimedCase, baseline: str) -> TimedSamples | Outcome:
        """Time the baseline in the process that holds it alone; start this process if there is none."""
        self.progress.now(f"timing {baseline} alone: {case.plan.case}")
        if baseline not in self._alone:
            loaded = self.processes.load([baseline])
            if isinstance(loaded, Outcome):
                return loaded
            self._alone[baseline] = loaded[0]
        share = 1 / len(case.names)
        answer = self.processes.ask(
            self._alone[baseline], number, case.plan.case, [baseline], baseline=None, share=share
        )
        if isinstance(answer, Outcome):
            self._alone.pop(baseline).close()
        return answer

    def _ask_fresh(
        self, number: int, case: TimedCase, names: Sequence[str], checks: Sequence[str]
    ) -> TimedSamples | Outcome:
        """Time implementations in a fresh process, which has no others."""
        self.progress.now(f"comparing timing processes: {case.plan.case}")
        loaded = self.processes.load(list(names))
        if isinstance(loaded, Outcome):
            return loaded
        baseline = case.baseline if len(names) > 1 else None
        with loaded[0] as worker:
            return self.processes.ask(worker, number, case.plan.case, names, baseline=baseline, checks=checks)


def _find_median_ns(samples: Timing, twin: Timing | None) -> float | None:
    """Return the median time of the clean calls of an implementation and of its copy; None if there is none."""
    calls: list[int] = []
    for own in (samples, twin):
        if own is not None:
            (times_ns,) = own.samples_ns
            waited_ns, switches = (column[0] if column else None for column in (own.waited_ns, own.switches))
            calls += [times_ns[call] for call in select_clean(times_ns, waited_ns, switches)]
    return statistics.median(calls) if calls else None


def bisect(
    names: Sequence[str], fault: Outcome | None, retry: Callable[[Sequence[str]], Outcome | None]
) -> dict[str, Outcome]:
    """Find, by bisection, an implementation that reproduces the fault; return it with its fault, or an empty mapping.

    A single implementation causes ``fault``, if given, and is tried otherwise.

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
