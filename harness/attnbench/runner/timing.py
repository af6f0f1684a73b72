"""Timing: several fresh processes, in each of which all implementations of a case are called in turns.

Whoever brings such a process down is found and left out, and the rest is measured. Where a contest against the baseline
is undecided, processes are added.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.checks.catalogue import checks as catalogue
from attnbench.plugins.registry import PluginError
from attnbench.records.environment import cores
from attnbench.records.types import Finding, Result
from attnbench.runner.check_outcomes import finding_of
from attnbench.runner.progress import Progress
from attnbench.runner.session import Outcome, Plan, Session, Supervisor
from attnbench.runner.timed_case import TimedCase

__all__ = ["STARTS", "Effort", "started_together", "timed"]

# Checks that are asked again after the last timed call: what comes out, and its gradients. They are asked in the first
# process and in the last of those that were planned; the calls are the same in all.
AGAIN = frozenset({"forward_parity", "input_gradients", "parameter_gradients", "mask_gradients"})
# Processes that are added at a time.
STEP = 5
# Time of one process beyond which cases are timed in several groups, in seconds: what is done is stored after each, and
# starting a process takes about two.
GROUP_S = 30.0
# Processes that start at the same time, before any of them is timed: a start keeps one core busy.
STARTS = min(4, cores())
# Share of one time-out that calls are planned for; the rest is for building, warming up and looking again, and as much
# again for each further implementation.
PLANNED = 0.4
# How often a case is tried in one process whose death is nobody's.
TRIES = 2
# Outcomes after which the process is gone; and such ends of one implementation after which it is timed nowhere else.
DEADLY = ("crashed", "timeout")
DEATHS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    # Fresh processes for every case; and how many there may be where a contest is undecided, None: no more.
    processes: int
    most: int | None = None
    # Time given to one case in one process; and in all processes together, None: as long as it takes.
    budget_s: float
    case_s: float | None = None


def timed(
    session: Session,
    plans: Sequence[Plan],
    ready: dict[tuple[str, str], Result],
    *,
    steps: Progress,
    effort: Effort,
    against: str | None = None,
) -> Iterator[Result]:
    """Results with their timing, or with the reason why there is none, as each group of cases is done.

    ``ready`` are the results of those that passed their probe, by name and case. ``against`` is the baseline, by
    default the operator's reference.
    """
    cases = [
        TimedCase(plan=plan, names=[name for name, case in ready if case == plan.case], against=against)
        for plan in plans
    ]
    cases = [case for case in cases if case.names]
    size = max(1, int(GROUP_S / effort.budget_s))
    shared = _Shared(session=session, steps=steps, effort=effort)
    for first in range(0, len(cases), size):
        group = cases[first : first + size]
        shared.run(group)
        for case in group:
            yield from case.results(ready)


def started_together(session: Session, names: list[str], count: int) -> list[Supervisor]:
    """So many processes that hold these implementations, started at the same time: all of them, or none.

    Raises: PluginError; OSError where the system starts no process now.
    """
    with ThreadPoolExecutor(count) as together:
        coming = [together.submit(session.supervise_together, names) for _ in range(count)]
    if any(one.exception() for one in coming):
        for one in coming:
            if one.exception() is None:
                one.result().close()
    return [one.result() for one in coming]


@dataclass(slots=True, kw_only=True)
class _Shared:
    """Processes that a group of cases shares."""

    session: Session
    steps: Progress
    effort: Effort
    # Processes that each implementation has ended.
    deaths: Counter[str] = field(default_factory=Counter)
    # Processes that were started beside another one, and have not been used.
    idle: list[Supervisor] = field(default_factory=list)

    def run(self, cases: Sequence[TimedCase]) -> None:
        """Time all cases in every process, then those that are undecided in more."""
        try:
            self._processes(
                "time", range(self.effort.processes), {case.plan.case: (case, case.names) for case in cases}
            )
            most = self.effort.most or 0
            for first in range(self.effort.processes, most, STEP):
                open_ones = {case.plan.case: (case, names) for case in cases if (names := case.undecided())}
                if not open_ones:
                    return
                self._processes("decide", range(first, min(first + STEP, most)), open_ones)
        finally:
            self._end_idle()

    def _processes(self, title: str, numbers: range, cases: dict[str, tuple[TimedCase, list[str]]]) -> None:
        left = self._affordable(cases)
        if left:
            self.steps.begin(title, len(numbers) * len(left))
        for number in numbers:
            if left:
                self._process(number, numbers.stop - number, left)
            left = self._affordable(left)

    def _affordable(self, cases: dict[str, tuple[TimedCase, list[str]]]) -> dict[str, tuple[TimedCase, list[str]]]:
        """Those that have time left."""
        return {name: one for name, one in cases.items() if one[0].affords(self.effort.case_s)}

    def _process(self, number: int, left: int, cases: dict[str, tuple[TimedCase, list[str]]]) -> None:
        """Time cases, each with those of its names that are not out, in one fresh process, the first of those left."""
        worker = self._started(cases, left)
        again = number == 0 or left == 1
        try:
            for case, names in cases.values():
                self.steps.now(f"process {number + 1} {case.plan.case}")
                for name in [name for name in case.names if self.deaths[name] >= DEATHS]:
                    case.leave(name, f"crashed: it ended {DEATHS} timing processes")
                begin = time.monotonic()
                if worker is not None:
                    self._case(worker, number, case, names, again=again)
                case.spent_s += time.monotonic() - begin
                self.steps.done(case.plan.case)
                if not case.affords(self.effort.case_s):
                    # Nor is it timed in those that are still to come.
                    for _ in range(left - 1):
                        self.steps.done()
        finally:
            if worker is not None:
                worker.close()

    def _started(self, cases: dict[str, tuple[TimedCase, list[str]]], left: int) -> Supervisor | None:
        """Process that holds everybody; who keeps it from starting is out of all these cases."""
        while True:
            names = list(dict.fromkeys(n for case, wanted in cases.values() for n in wanted if n in case.names))
            if not names:
                return None
            fault = self._next(names, left)
            if isinstance(fault, Supervisor):
                return fault
            guilty = _culprit(names, fault, self._loading_fault) or dict.fromkeys(names, fault)
            for case, _ in cases.values():
                for name in set(guilty) & set(case.names):
                    case.leave(name, _told(guilty[name]))

    def _next(self, names: list[str], left: int) -> "Supervisor | Outcome":
        """An idle process that holds these, or a new one; as many more as are left start beside it."""
        while self.idle:
            worker = self.idle.pop()
            if set(names) <= worker.declared.keys():
                return worker
            worker.close()
        started = self._loading(names, min(STARTS, left))
        if not isinstance(started, list):
            return started
        self.idle = started
        return self.idle.pop()

    def _end_idle(self) -> None:
        while self.idle:
            self.idle.pop().close()

    def _loading(self, names: list[str], count: int = 1) -> "list[Supervisor] | Outcome":
        try:
            return started_together(self.session, names, count)
        except (PluginError, OSError) as error:
            return {"status": "crashed", "reason": str(error)}

    def _loading_fault(self, names: list[str]) -> Outcome | None:
        loaded = self._loading(names)
        if not isinstance(loaded, list):
            return loaded
        loaded[0].close()
        return None

    def _case(self, worker: Supervisor, number: int, case: TimedCase, wanted: Sequence[str], *, again: bool) -> None:
        """Time one case; whoever is to blame for a fault is out of it, and the others are timed once more.

        ``again`` says whether the checks are asked again.
        """
        checks = [check for check in case.plan.checks if again and check in AGAIN]
        tries = 0
        while names := [name for name in wanted if name in case.names]:
            answer = self._ask(worker, number, case, names, checks)
            if "status" not in answer:
                if checks:
                    self._check_again(worker, case, checks, answer)
                case.add(number, _of(answer, case.names))
                return
            guilty = self._blamed(number, case, names, checks, answer)
            for name, fault in guilty.items():
                case.leave(name, _told(fault))
                self.deaths[name] += fault["status"] in DEADLY
            tries += not guilty
            if tries == TRIES:
                for name in names:
                    case.leave(name, f"{_told(answer)}; no part of its implementations did that again")

    def _blamed(
        self, number: int, case: TimedCase, names: list[str], checks: list[str], fault: Outcome
    ) -> dict[str, Outcome]:
        """Whose fault it was: who raised, or who does it again in fresh processes without the others."""
        culprit = fault.get("culprit")
        if culprit in names:
            return {culprit: fault}

        def again(some: list[str]) -> Outcome | None:
            self.steps.now(f"looking for who ended the process {case.plan.case}")
            loaded = self._loading(some)
            if not isinstance(loaded, list):
                return loaded
            with loaded[0] as worker:
                answer = self._ask(worker, number, case, some, checks)
            return answer if "status" in answer else None

        return _culprit(names, fault, again)

    def _ask(self, worker: Supervisor, number: int, case: TimedCase, names: list[str], checks: list[str]) -> Outcome:
        return worker.ask(
            "time",
            counts=False,
            shared_by=len(names),
            implementations=names,
            baseline=case.baseline if case.baseline in names else None,
            case=case.plan.case,
            inputs=self.session.judge("inputs", case=case.plan.case),
            budget_s=self.effort.budget_s,
            limit_s=min(PLANNED * self.session.limits.timeout_s, self.effort.case_s or math.inf),
            seed=number,
            checks=checks,
            observation=f"{worker.place}-timed",
        )

    def _check_again(self, worker: Supervisor, case: TimedCase, checks: list[str], answer: dict[str, Any]) -> None:
        """Leave out who no longer computes what it did when it was probed."""
        for name, file in answer["observations"].items():
            policies = worker.declared[name]["policies"]
            judged = self.session.judge(
                "judge", case=case.plan.case, checks=checks, observations=[file], policies=policies
            )
            calls = len(answer["samples"][name]["times_ns"])
            findings = tuple(_later(judged[check], check, calls) for check in checks)
            failed = tuple(finding for finding in findings if finding.status != "passed")
            if failed:
                case.leave(name, f"{failed[0].status}: {failed[0].reason}", failed)


def _culprit(names: Sequence[str], fault: Outcome, again: Callable[[list[str]], Outcome | None]) -> dict[str, Outcome]:
    """Who of several causes a fault, with the fault, found by halves; nobody where whoever is left does not show it.

    ``again`` tries some of them; of several that cause it one is found.
    """
    some, shows = list(names), fault if len(names) == 1 else None
    while len(some) > 1:
        half = some[: len(some) // 2]
        shows = again(half)
        some = half if shows is not None else some[len(half) :]
    shows = shows or again(some)
    return {some[0]: shows} if shows is not None else {}


def _told(fault: Outcome) -> str:
    return f"{fault['status']}: in a timing process: {fault['reason']}"


def _of(answer: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The answer without those that are out by now."""
    samples = {name: taken for name, taken in answer["samples"].items() if name in names}
    return answer | {"samples": samples}


def _later(told: Outcome, check: str, calls: int) -> Finding:
    """A finding after so many timed calls."""
    finding = finding_of(check, told)
    if finding.status == "passed":
        return finding
    requirement = catalogue()[check].requirement
    reason = finding.reason.removeprefix(requirement).strip().removeprefix("But ")
    return replace(finding, reason=f"{requirement} After {calls} timed calls, on new values: {reason}")
