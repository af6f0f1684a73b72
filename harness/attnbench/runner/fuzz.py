"""Fuzzing: Hypothesis draws cases, and shrinks a failing case to the smallest one that fails the same check.

Every case runs once, and its result is kept, so that Hypothesis gets consistent answers from a flaky implementation.
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
from attnbench.plugins.registry import display_name, load_operator
from attnbench.records.outcome_facts import FailsAfterOthersOnly, Flaky
from attnbench.records.types import FAILURES, Finding, Result, Status
from attnbench.runner.candidate_pool import Supervisor
from attnbench.runner.conform import check_case
from attnbench.runner.expected_failures import Expectation, apply_expectations
from attnbench.runner.progress import Progress
from attnbench.runner.refusal import PARITY
from attnbench.runner.session import Session

__all__ = ["SUITE", "Found", "SearchEffort", "draw_cases", "fuzz"]

SUITE = "fuzz"
# Number of cases in a round. The cases of a round are drawn from one seed, small cases first. The search ends between
# two rounds if its time or its number of cases is used up.
ROUND = 100
# Largest number of shrinking attempts per failing case.
TRIES = 200
# Seconds of shrinking per failing case. This limit applies only if the search has a time budget.
SHRINK_S = 60.0
# If a shrinking attempt ends its process with one of these statuses, this attempt counts as the given number of
# attempts: a restart takes seconds, and a time-out takes minutes.
TRIES_OF_A_DEATH: dict[Status, int] = {"crashed": 20, "timeout": 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEffort:
    """Limits of the search for each implementation: a time, a number of cases, or both.

    The search ends at the first limit that is reached.
    """

    seed: int
    budget_s: float | None = None
    examples: int | None = None

    @property
    def steps(self) -> int:
        """Number of progress steps of one implementation: ``examples`` if given, otherwise the seconds ``budget_s``."""
        return self.examples or round(self.budget_s or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A failure and the smallest case that reproduces it."""

    implementation: str
    finding: Finding
    case: str
    # ``drawn``: the failing case before shrinking. ``tries``: number of smaller cases that were tried.
    drawn: str
    tries: int


def draw_cases(operator: Operator, *, seed: int, count: int) -> list[Case]:
    """Draw ``count`` different cases as ``fuzz`` does, without running them; the seed determines the cases."""
    cases: dict[str, Case] = {}

    def keep(case: Case) -> bool:
        if len(cases) < count:
            cases[case.id] = case
        return False

    for number in numbers():
        if len(cases) >= count:
            break
        _find_smallest(operator, keep, seed=f"{seed}/{number}")
    return list(cases.values())


def fuzz(
    session: Session,
    implementations: Sequence[str],
    *,
    run: str,
    progress: Progress,
    effort: SearchEffort,
    add: Callable[[Result], None],
    checks: frozenset[str] | None = None,
    device: str = "cpu",
    expectations: Sequence[Expectation] = (),
) -> Iterator[Found]:
    """Yield each failure as it is found, one implementation after the other.

    Once a failure is found, every check that fails on its smallest case is known: the search looks for no further
    failures of the known checks.

    ``add`` receives the result of each case that was drawn. Of the smaller cases that were tried to shrink a failure,
    ``add`` receives only the result of the smallest failing case.

    Raises: PluginError where an implementation cannot be loaded.
    """
    progress.begin(SUITE, len(implementations) * effort.steps)
    for name in implementations:
        search = _Search(
            session=session, name=name, run=run, progress=progress, effort=effort, add=add, checks=checks,
            device=device, expectations=expectations, worker=session.workers.get([name]),
        )  # fmt: skip
        try:
            yield from search.find_failures()
        finally:
            search.worker.close()


def _find_smallest(operator: Operator, fails: Callable[[Case], bool], *, seed: str) -> Case | None:
    """Return the smallest failing case of one round, or None if no case fails; ``fails`` must be deterministic."""
    one_round = settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        # Each round has its own seed, in the argument ``random`` below, so that rounds differ.
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    drawn = st.composite(operator.draw_case)()
    try:
        return find(drawn, fails, settings=one_round, random=Random(seed))  # noqa: S311  # repeatable, not secret
    except NoSuchExample:
        return None


@dataclass(slots=True, kw_only=True)
class _Failure:
    """A failing case while it is shrunk."""

    check: str
    drawn: Result
    # Whether the check also fails in a fresh process that runs only this case, and only this check and ``PARITY``.
    alone: bool
    begin_s: float = field(default_factory=time.monotonic)
    # For each case id, the result if the case fails ``check``, else None.
    verdicts: dict[str, Result | None] = field(default_factory=dict)
    # Number of shrinking attempts so far.
    tries: int = 0
    # Number of shrinking attempts so far, where an attempt that ended its process counts ``TRIES_OF_A_DEATH`` times.
    spent: int = 0

    @property
    def latest(self) -> Result:
        """Result of the smallest failing case so far: the case that failed last, since only smaller cases are tried."""
        return [result for result in self.verdicts.values() if result is not None][-1]


@dataclass(slots=True, kw_only=True)
class _Search:
    """The search for failures of one implementation."""

    session: Session
    name: str
    run: str
    progress: Progress
    effort: SearchEffort
    add: Callable[[Result], None]
    checks: frozenset[str] | None
    device: str
    expectations: Sequence[Expectation]
    worker: Supervisor
    begin_s: float = field(default_factory=time.monotonic)
    # Ids of the cases that were drawn and run with all checks.
    drawn: set[str] = field(default_factory=set)
    # Checks that fail on the smallest case of an earlier failure.
    known: set[str] = field(default_factory=set)
    failure: _Failure | None = None
    # Exception of the search itself, kept here because Hypothesis would take the exception for a failing case.
    error: Exception | None = None
    steps_done: int = 0

    def find_failures(self) -> Iterator[Found]:
        """Yield each failure as it is found."""
        operator = load_operator(self.worker.operator)
        for number in numbers():
            if self._is_spent():
                self._advance(self.effort.steps)
                return
            try:
                case = self._run_round(operator, number)
            except BaseException:
                # If the search is interrupted while a failure is shrunk, the smallest failing case so far is stored.
                if self.failure is not None:
                    self._store(self.failure.latest)
                raise
            if case is not None:
                yield self._finish_failure(case)

    def _run_round(self, operator: Operator, number: int) -> Case | None:
        case = _find_smallest(operator, self._fails, seed=f"{self.effort.seed}/{number}")
        if self.error is not None:
            raise self.error
        return case

    def _fails(self, case: Case) -> bool:
        if self.error is not None:
            return False
        try:
            case = case.with_fields(device=self.device)
            return self._fails_new_check(case) if self.failure is None else self._fails_same_check(case, self.failure)
        except Exception as error:  # noqa: BLE001  # see ``self.error``; raised again when Hypothesis has returned
            self.error = error
            return False

    def _fails_new_check(self, case: Case) -> bool:
        """Whether a drawn case fails a check that is not in ``known``."""
        if case.id in self.drawn or self._is_spent():
            return False
        self.drawn.add(case.id)
        self._advance(len(self.drawn) if self.effort.examples else int(time.monotonic() - self.begin_s))
        self.progress.now(f"{self.name} {case.id}")
        result = self._run_case(case.id)
        if result is None:
            return False
        new = next((f.check for f in result.findings if _is_failure(f) and f.check not in self.known), None)
        if new is None:
            self.add(result)
            return False
        # The check runs again in a fresh process, as in ``attnbench reproduce``.
        self._restart_worker()
        alone = _get_finding(self._run_case(case.id, new), new)
        self.failure = _Failure(check=new, drawn=result, alone=_is_failure(alone), verdicts={case.id: result})
        return True

    def _fails_same_check(self, case: Case, failure: _Failure) -> bool:
        """Whether a smaller case fails the check of the failure that is being shrunk."""
        if case.id not in failure.verdicts:
            late = self.effort.budget_s is not None and time.monotonic() - failure.begin_s > SHRINK_S
            if failure.spent >= TRIES or late:
                return False
            failure.tries += 1
            self.progress.now(f"{self.name} {failure.check}, smaller: {case.id}")
            result = self._run_case(case.id, failure.check if failure.alone else "")
            finding = _get_finding(result, failure.check)
            failure.spent += TRIES_OF_A_DEATH.get(finding.status, 1) if finding else 1
            failure.verdicts[case.id] = result if _is_failure(finding) else None
        return failure.verdicts[case.id] is not None

    def _finish_failure(self, case: Case) -> Found:
        """Run all checks on the smallest failing case, store the results and return the failure."""
        failure = self.failure
        assert failure is not None
        smallest = failure.verdicts[case.with_fields(device=self.device).id]
        assert smallest is not None
        result = smallest if smallest is failure.drawn else self._run_case(smallest.case) or smallest
        finding = _get_finding(result, failure.check)
        if finding is None or not _is_failure(finding):
            finding = _get_finding(smallest, failure.check)
            assert finding is not None
            finding = replace(finding, facts=(*finding.facts, Flaky()))
        elif not failure.alone:
            finding = replace(finding, facts=(*finding.facts, FailsAfterOthersOnly()))
        others = (f for f in result.findings if f.check != failure.check)
        result = replace(result, findings=(finding, *others))
        self._store(result)
        self.known.update(f.check for f in result.findings if _is_failure(f))
        self.failure = None
        return Found(
            implementation=result.implementation,
            finding=finding,
            case=result.case,
            drawn=failure.drawn.case,
            tries=failure.tries,
        )

    def _store(self, smallest: Result) -> None:
        """Pass the results of the smallest case and of the drawn case to ``add``.

        The smallest case comes first, since reports show the first failure of a check.
        """
        assert self.failure is not None
        self.add(smallest)
        if self.failure.drawn.case != smallest.case:
            self.add(self.failure.drawn)

    def _run_case(self, case: str, check: str = "") -> Result | None:
        """Run all checks of a case, or only ``check`` and the checks that compare outputs; None if no check applies."""
        plans = self.session.plan([case], self.checks)
        if not plans:
            return None
        plan = plans[0]
        if check:
            plan = replace(plan, checks=tuple(name for name in plan.checks if name == check or name in PARITY))
        findings = check_case(self.session, self.worker, self.name, plan)
        found = tuple(self._apply_expectations(finding, case) for finding in findings)
        if any(finding.status in TRIES_OF_A_DEATH for finding in found):
            # A new worker counts its crashes and time-outs from zero, so that three crashes do not end the search.
            self._restart_worker()
        return Result(
            run=self.run, implementation=display_name(self.name), case=case, findings=found, flop=plan.flop, suite=SUITE
        )

    def _restart_worker(self) -> None:
        self.worker.close()
        self.worker = self.session.workers.get([self.name])

    def _apply_expectations(self, finding: Finding, case: str) -> Finding:
        """Return a finding with the status ``expected_failure`` if it is an expected failure.

        A pass stays a pass, even where a failure is expected: the patterns of expected failures are written for the
        cases of the suites, and not for drawn cases.
        """
        if finding.status not in FAILURES:
            return finding
        return apply_expectations(finding, self.expectations, display_name(self.name), case)

    def _is_spent(self) -> bool:
        effort = self.effort
        late = effort.budget_s is not None and time.monotonic() - self.begin_s >= effort.budget_s
        return late or (effort.examples is not None and len(self.drawn) >= effort.examples)

    def _advance(self, done: int) -> None:
        """Report progress up to ``done`` steps."""
        for _ in range(min(done, self.effort.steps) - self.steps_done):
            self.progress.done(self.name)
            self.steps_done += 1


def _get_finding(result: Result | None, check: str) -> Finding | None:
    """Return the finding of a check; None if there is no result, or if the check did not run."""
    return next((f for f in result.findings if f.check == check), None) if result else None


def _is_failure(finding: Finding | None) -> bool:
    return finding is not None and finding.status in FAILURES
