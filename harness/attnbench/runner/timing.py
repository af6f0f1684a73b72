"""Timing: several fresh processes, in each of which all implementations of a case are called in turns.

Whoever brings such a process down is found and left out, and the rest is measured. Where a contest against the baseline
is undecided, processes are added.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.checks.catalogue import checks as catalogue
from attnbench.contest import contest
from attnbench.records import Finding, Result, Timing
from attnbench.registry import PluginError, baseline, shown
from attnbench.runner.observation import finding_of
from attnbench.runner.session import Outcome, Plan, Session, Steps, Supervisor

__all__ = ["Effort", "timed"]

# Checks that are asked again in every timing process, after its last call: what comes out, and its gradients.
AGAIN = frozenset({"forward_parity", "input_gradients", "parameter_gradients", "mask_gradients"})
# Processes that are added at a time.
STEP = 5
# Time of one process beyond which cases are timed in several groups, in seconds: what is done is stored after each, and
# starting a process takes about two.
GROUP_S = 30.0
# Share of the time-out that calls are planned for; the rest is for building, warming up and looking again.
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
    # Time given to one case in one process.
    budget_s: float


@dataclass(slots=True)
class _Samples:
    """What one implementation came to on one case so far: a tuple per process, empty where it took no part."""

    columns: dict[str, list[tuple[int, ...]]] = field(
        default_factory=lambda: {"times_ns": [], "waited_ns": [], "switches": []}
    )
    build_ns: list[int] = field(default_factory=list)
    first_call_ns: list[int] = field(default_factory=list)

    def add(self, process: int, taken: dict[str, Any]) -> None:
        """Samples of a process; those before in which it took no part stay empty."""
        for name, column in self.columns.items():
            column.extend([()] * (process - len(column)))
            column.append(tuple(taken[name]))
        self.build_ns.append(taken["build_ns"])
        self.first_call_ns.append(taken["first_call_ns"])

    def timing(self, processes: int, threads: int) -> Timing:
        """As it is stored."""
        whole = {name: tuple(column + [()] * (processes - len(column))) for name, column in self.columns.items()}
        return Timing(
            samples_ns=whole["times_ns"],
            waited_ns=whole["waited_ns"] if any(whole["waited_ns"]) else (),
            switches=whole["switches"] if any(whole["switches"]) else (),
            threads=threads,
            build_ns=tuple(self.build_ns),
            first_call_ns=tuple(self.first_call_ns),
        )


@dataclass(slots=True)
class _Case:
    """One case that is being timed."""

    plan: Plan
    # Who takes turns, in the order asked for.
    names: list[str]
    # Whom they are compared with; None: the operator's reference.
    against: str | None = None
    samples: dict[str, _Samples] = field(default_factory=dict)
    twin: _Samples = field(default_factory=_Samples)
    threads: int = 0
    # Processes that have timed it.
    processes: int = 0
    # Why somebody is out, and the findings that say so.
    out: dict[str, tuple[str, tuple[Finding, ...]]] = field(default_factory=dict)

    @property
    def baseline(self) -> str | None:
        """The baseline, where it takes part."""
        name = self.against or baseline(self.plan.case)
        return name if name in self.names else None

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
            if name != self.baseline and contest(timing, base).state == "unknown"
        ]
        return [name for name in self.names if name == self.baseline or name in others] if others else []


def timed(
    session: Session,
    plans: Sequence[Plan],
    ready: dict[tuple[str, str], Result],
    *,
    steps: Steps,
    effort: Effort,
    against: str | None = None,
) -> Iterator[Result]:
    """Results with their timing, or with the reason why there is none, as each group of cases is done.

    ``ready`` are the results of those that passed their probe, by name and case. ``against`` is the baseline, by
    default the operator's reference.
    """
    cases = [
        _Case(plan=plan, names=[name for name, case in ready if case == plan.case], against=against) for plan in plans
    ]
    cases = [case for case in cases if case.names]
    size = max(1, int(GROUP_S / effort.budget_s))
    shared = _Shared(session=session, steps=steps, effort=effort)
    for first in range(0, len(cases), size):
        group = cases[first : first + size]
        shared.run(group)
        for case in group:
            yield from _results(case, ready)


def _results(case: _Case, ready: dict[tuple[str, str], Result]) -> Iterator[Result]:
    for name, timing in case.timings().items():
        yield replace(ready[name, case.plan.case], timing=timing)
    for name, (reason, findings) in case.out.items():
        result = ready[name, case.plan.case]
        told = {finding.check: finding for finding in findings}
        yield replace(
            result,
            findings=tuple(told.get(finding.check, finding) for finding in result.findings),
            memory=None if told else result.memory,
            timing=None,
            untimed=reason,
        )


@dataclass(slots=True, kw_only=True)
class _Shared:
    """Processes that a group of cases shares."""

    session: Session
    steps: Steps
    effort: Effort
    # Processes that each implementation has ended.
    deaths: Counter[str] = field(default_factory=Counter)

    def run(self, cases: Sequence[_Case]) -> None:
        """Time all cases in every process, then those that are undecided in more."""
        self.steps.begin("time", self.effort.processes * len(cases))
        for number in range(self.effort.processes):
            self._process(number, {case.plan.case: (case, case.names) for case in cases})
        most = self.effort.most or 0
        number = self.effort.processes
        while number < most:
            open_ones = {case.plan.case: (case, names) for case in cases if (names := case.undecided())}
            if not open_ones:
                return
            further = min(STEP, most - number)
            self.steps.begin("decide", further * len(open_ones))
            for _ in range(further):
                self._process(number, open_ones)
                number += 1

    def _process(self, number: int, cases: dict[str, tuple[_Case, list[str]]]) -> None:
        """Time cases, each with those of its names that are not out, in one fresh process."""
        worker = self._started(cases)
        try:
            for case, names in cases.values():
                self.steps.now(f"process {number + 1} {case.plan.case}")
                for name in [name for name in case.names if self.deaths[name] >= DEATHS]:
                    case.leave(name, f"crashed: it ended {DEATHS} timing processes")
                if worker is not None:
                    self._case(worker, number, case, names)
                self.steps.done()
        finally:
            if worker is not None:
                worker.close()

    def _started(self, cases: dict[str, tuple[_Case, list[str]]]) -> Supervisor | None:
        """Process that holds everybody; who keeps it from starting is out of all these cases."""
        while True:
            names = list(dict.fromkeys(n for case, wanted in cases.values() for n in wanted if n in case.names))
            if not names:
                return None
            fault = self._loading(names)
            if isinstance(fault, Supervisor):
                return fault
            guilty = _culprit(names, fault, self._loading_fault) or dict.fromkeys(names, fault)
            for case, _ in cases.values():
                for name in set(guilty) & set(case.names):
                    case.leave(name, _told(guilty[name]))

    def _loading(self, names: list[str]) -> "Supervisor | Outcome":
        try:
            return self.session.supervise_together(names)
        except (PluginError, OSError) as error:  # OSError: the system starts no process now
            return {"status": "crashed", "reason": str(error)}

    def _loading_fault(self, names: list[str]) -> Outcome | None:
        loaded = self._loading(names)
        if isinstance(loaded, Supervisor):
            loaded.close()
            return None
        return loaded

    def _case(self, worker: Supervisor, number: int, case: _Case, wanted: Sequence[str]) -> None:
        """Time one case; whoever is to blame for a fault is out of it, and the others are timed again."""
        tries = 0
        while names := [name for name in wanted if name in case.names]:
            answer = self._ask(worker, number, case, names)
            if "status" not in answer:
                self._check_again(worker, case, answer)
                case.add(number, _of(answer, case.names))
                return
            guilty = self._blamed(number, case, names, answer)
            for name, fault in guilty.items():
                case.leave(name, _told(fault))
                self.deaths[name] += fault["status"] in DEADLY
            tries += not guilty
            if tries == TRIES:
                for name in names:
                    case.leave(name, f"{_told(answer)}; no part of its implementations did that again")

    def _blamed(self, number: int, case: _Case, names: list[str], fault: Outcome) -> dict[str, Outcome]:
        """Whose fault it was: who raised, or who does it again in fresh processes without the others."""
        culprit = fault.get("culprit")
        if culprit in names:
            return {culprit: fault}

        def again(some: list[str]) -> Outcome | None:
            self.steps.now(f"looking for who ended the process {case.plan.case}")
            worker = self._loading(some)
            if not isinstance(worker, Supervisor):
                return worker
            with worker:
                answer = self._ask(worker, number, case, some)
            return answer if "status" in answer else None

        return _culprit(names, fault, again)

    def _ask(self, worker: Supervisor, number: int, case: _Case, names: list[str]) -> Outcome:
        return worker.ask(
            "time",
            counts=False,
            implementations=names,
            baseline=case.baseline if case.baseline in names else None,
            case=case.plan.case,
            inputs=self.session.judge("inputs", case=case.plan.case),
            budget_s=self.effort.budget_s,
            limit_s=PLANNED * self.session.limits.timeout_s,
            seed=number,
            checks=self._checks(case),
            observation=str(self.session.folder / "timed"),
        )

    def _checks(self, case: _Case) -> list[str]:
        return [check for check in case.plan.checks if check in AGAIN]

    def _check_again(self, worker: Supervisor, case: _Case, answer: dict[str, Any]) -> None:
        """Leave out who no longer computes what it did when it was probed."""
        checks = self._checks(case)
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
