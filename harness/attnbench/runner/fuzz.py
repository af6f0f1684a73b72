"""Fuzzing: Hypothesis draws cases, and shrinks one that fails to the smallest that fails alike.

Every case is asked once, and its verdict is kept: an implementation that answers now so, now so spoils no search.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from random import Random

from hypothesis import Phase, Verbosity, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from attnbench.cases import Case
from attnbench.interface import Operator
from attnbench.plugins.registry import load_operator, shown
from attnbench.records.types import FAILURES, Finding, Result, Status
from attnbench.runner.conform import findings
from attnbench.runner.expected_failures import Expectation, applied
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import PARITY
from attnbench.runner.session import Session, Supervisor

__all__ = ["SUITE", "Found", "SearchEffort", "drawn_cases", "fuzz"]

SUITE = "fuzz"
# Cases drawn from one seed; each begins with small ones, and the clock is looked at in between.
ROUND = 100
# Tries to make one failing case smaller, and the time that they may take beyond the budget where that is a time.
# A try that ended its process counts as more: starting another takes seconds, and waiting for one that hangs minutes.
TRIES = 200
SHRINK_S = 60.0
TRIES_OF_A_DEATH: dict[Status, int] = {"crashed": 20, "timeout": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """How long the search goes on for each implementation: a time, a number of cases, or what ends first."""

    seed: int
    budget_s: float | None = None
    examples: int | None = None

    @property
    def steps(self) -> int:
        """Cases, or seconds where there is no number of cases."""
        return self.examples or round(self.budget_s or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A failure and the smallest case that shows it."""

    implementation: str
    finding: Finding
    case: str
    # Case that was drawn, and the number of smaller ones that were tried.
    drawn: str
    tries: int


def drawn_cases(operator: Operator, *, seed: int, count: int) -> list[Case]:
    """Different cases, as fuzzing would draw them; the same ones from the same seed, and nothing is run."""
    cases: dict[str, Case] = {}

    def kept(case: Case) -> bool:
        if len(cases) < count:
            cases[case.id] = case
        return False

    for number in numbers():
        if len(cases) >= count:
            break
        _smallest(operator, kept, seed=f"{seed}/{number}")
    return list(cases.values())


def fuzz(
    session: Session,
    implementations: Sequence[str],
    *,
    run: str,
    steps: Progress,
    effort: SearchEffort,
    add: Callable[[Result], None],
    checks: frozenset[str] | None = None,
    device: str = "cpu",
    expectations: Sequence[Expectation] = (),
) -> Iterator[Found]:
    """Each failure as it is found, for one implementation after the other; ``add`` takes the result of every case.

    A failure is one of a check that the cases found before do not fail. Of the tries to make a case smaller, only the
    last one that failed is added.

    Raises: PluginError where an implementation cannot be loaded.
    """
    steps.begin(SUITE, len(implementations) * effort.steps)
    for name in implementations:
        search = _Search(
            session=session, name=name, run=run, steps=steps, effort=effort, add=add, checks=checks, device=device,
            expectations=expectations, worker=session.supervise(name),
        )  # fmt: skip
        try:
            yield from search.failures()
        finally:
            search.worker.close()


def _smallest(operator: Operator, fails: Callable[[Case], bool], *, seed: str) -> Case | None:
    """Smallest case that fails, of those that one round draws, or None; ``fails`` must not change its mind."""
    one_round = settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        # The seed is ours, so that a round differs from the one before.
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    drawn = st.composite(operator.drawn)()
    try:
        return find(drawn, fails, settings=one_round, random=Random(seed))  # noqa: S311  # repeatable, not secret
    except NoSuchExample:
        return None


@dataclass(slots=True, kw_only=True)
class _Failure:
    """A failing case while it is made smaller."""

    check: str
    drawn: Result
    # Whether the check fails without other checks and cases before it.
    alone: bool
    begin_s: float = field(default_factory=time.monotonic)
    # Result of every smaller case that was tried, where it failed alike.
    verdicts: dict[str, Result | None] = field(default_factory=dict)
    # Tries so far, and what they count as.
    tries: int = 0
    spent: int = 0

    @property
    def latest(self) -> Result:
        """Result of the case that failed last; all were tried because they are smaller than one that failed."""
        return [result for result in self.verdicts.values() if result is not None][-1]


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search for failures of one implementation."""

    session: Session
    name: str
    run: str
    steps: Progress
    effort: SearchEffort
    add: Callable[[Result], None]
    checks: frozenset[str] | None
    device: str
    expectations: Sequence[Expectation]
    worker: Supervisor
    begin_s: float = field(default_factory=time.monotonic)
    # Cases drawn and checked in full.
    asked: set[str] = field(default_factory=set)
    # Checks that a case found fails.
    known: set[str] = field(default_factory=set)
    failure: _Failure | None = None
    # What went wrong with the search itself. Hypothesis would take it for a failing case.
    trouble: Exception | None = None
    steps_done: int = 0

    def failures(self) -> Iterator[Found]:
        """Each failure, as it is found."""
        operator = load_operator(self.worker.operator)
        for number in numbers():
            if self._spent():
                self._step(self.effort.steps)
                return
            try:
                case = self._round(operator, number)
            except BaseException:
                # Interrupted while a failure was made smaller: what is known of it is kept.
                if self.failure is not None:
                    self._store(self.failure.latest)
                raise
            if case is not None:
                yield self._found(case)

    def _round(self, operator: Operator, number: int) -> Case | None:
        case = _smallest(operator, self._fails, seed=f"{self.effort.seed}/{number}")
        if self.trouble is not None:
            raise self.trouble
        return case

    def _fails(self, case: Case) -> bool:
        if self.trouble is not None:
            return False
        try:
            case = case.with_fields(device=self.device)
            return self._fails_anew(case) if self.failure is None else self._fails_alike(case, self.failure)
        except Exception as error:  # noqa: BLE001  # see ``trouble``; raised again when Hypothesis has returned
            self.trouble = error
            return False

    def _fails_anew(self, case: Case) -> bool:
        """Whether a case that was drawn fails a check that no case found fails."""
        if case.id in self.asked or self._spent():
            return False
        self.asked.add(case.id)
        self._step(len(self.asked) if self.effort.examples else int(time.monotonic() - self.begin_s))
        self.steps.now(f"{self.name} {case.id}")
        result = self._result(case.id)
        if result is None:
            return False
        new = next((f.check for f in result.findings if _failed(f) and f.check not in self.known), None)
        if new is None:
            self.add(result)
            return False
        # As ``attnbench reproduce`` asks it: in a process of its own.
        self._renew()
        alone = _of(self._result(case.id, new), new)
        self.failure = _Failure(check=new, drawn=result, alone=_failed(alone), verdicts={case.id: result})
        return True

    def _fails_alike(self, case: Case, failure: _Failure) -> bool:
        """Whether a smaller case fails the same check."""
        if case.id not in failure.verdicts:
            late = self.effort.budget_s is not None and time.monotonic() - failure.begin_s > SHRINK_S
            if failure.spent >= TRIES or late:
                return False
            failure.tries += 1
            self.steps.now(f"{self.name} {failure.check}, smaller: {case.id}")
            result = self._result(case.id, failure.check if failure.alone else "")
            finding = _of(result, failure.check)
            failure.spent += TRIES_OF_A_DEATH.get(finding.status, 1) if finding else 1
            failure.verdicts[case.id] = result if _failed(finding) else None
        return failure.verdicts[case.id] is not None

    def _found(self, case: Case) -> Found:
        """The failure, once it is as small as it gets: its case is checked in full."""
        failure = self.failure
        assert failure is not None
        smallest = failure.verdicts[case.with_fields(device=self.device).id]
        assert smallest is not None
        result = smallest if smallest is failure.drawn else self._result(smallest.case) or smallest
        finding = _of(result, failure.check)
        if finding is None or not _failed(finding):
            finding = _of(smallest, failure.check)
            assert finding is not None
            finding = replace(finding, reason=f"{finding.reason} Not each time: asked again, it was otherwise.")
        elif not failure.alone:
            finding = replace(finding, reason=f"{finding.reason} Not alone: it takes checks or cases that come before.")
        others = (f for f in result.findings if f.check != failure.check)
        result = replace(result, findings=(finding, *others))
        self._store(result)
        self.known.update(f.check for f in result.findings if _failed(f))
        self.failure = None
        return Found(
            implementation=result.implementation,
            finding=finding,
            case=result.case,
            drawn=failure.drawn.case,
            tries=failure.tries,
        )

    def _store(self, smallest: Result) -> None:
        """Add the smallest case first: it is what is told of the check."""
        assert self.failure is not None
        self.add(smallest)
        if self.failure.drawn.case != smallest.case:
            self.add(self.failure.drawn)

    def _result(self, case: str, check: str = "") -> Result | None:
        """What all checks find, or one and those that show whether the case is refused; None where none applies."""
        plans = self.session.plan([case], self.checks)
        if not plans:
            return None
        plan = plans[0]
        if check:
            plan = replace(plan, checks=tuple(name for name in plan.checks if name == check or name in PARITY))
        found = tuple(self._counted(finding, case) for finding in findings(self.session, self.worker, self.name, plan))
        if any(finding.status in TRIES_OF_A_DEATH for finding in found):
            # Deaths are not added up: none of the rest is left out for them.
            self._renew()
        return Result(
            run=self.run, implementation=shown(self.name), case=case, findings=found, flop=plan.flop, suite=SUITE
        )

    def _renew(self) -> None:
        self.worker.close()
        self.worker = self.session.supervise(self.name)

    def _counted(self, finding: Finding, case: str) -> Finding:
        """A failure that is expected is none; a pass that is not stands, for patterns are made for the lists."""
        if finding.status not in FAILURES:
            return finding
        return applied(finding, self.expectations, shown(self.name), case)

    def _spent(self) -> bool:
        effort = self.effort
        late = effort.budget_s is not None and time.monotonic() - self.begin_s >= effort.budget_s
        return late or (effort.examples is not None and len(self.asked) >= effort.examples)

    def _step(self, done: int) -> None:
        for _ in range(min(done, self.effort.steps) - self.steps_done):
            self.steps.done(self.name)
            self.steps_done += 1


def _of(result: Result | None, check: str) -> Finding | None:
    """Finding of a check."""
    return next((f for f in result.findings if f.check == check), None) if result else None


def _failed(finding: Finding | None) -> bool:
    return finding is not None and finding.status in FAILURES
