"""Carrying out a job: its session, its plans, its checks and its timings."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.analysis.root_causes import find_root_causes
from attnbench.api.before_timing import demand_memory, describe_timing
from attnbench.api.progress import ShownProgress, show_progress
from attnbench.api.recording import Recording
from attnbench.api.selection import (
    Expected,
    choose_implementations,
    choose_timed_implementations,
    collect_expectations,
    find_operators,
    list_suite,
    plan_cases,
)
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import QUICK_WORK_S, ConformJob, Job, ProfileJob, TimedJob, require_listed
from attnbench.oracle.disk_cache import find_folder
from attnbench.plugins.registry import PluginError, display_name, list_operators
from attnbench.records.environment import find_older_torch
from attnbench.records.run_file import StoredRun
from attnbench.records.types import PERF, Planned, Result
from attnbench.runner import (
    Effort,
    Expectation,
    Limits,
    Plan,
    Session,
    conform,
    list_gating_checks,
    list_profile_cases,
    list_shape_cases,
    measure_ceilings,
    profile,
)
from attnbench.runner.supplement import Supplement, choose_supplements, settle_supplements
from attnbench.words.causes import announce_cause

__all__ = [
    "EFFORTS",
    "Checks",
    "choose_effort",
    "conform_into",
    "count_planned",
    "make_session",
    "plan_checks",
    "plan_conformance",
    "plan_profile",
    "profile_into",
    "profile_with_ceilings",
    "record_profile",
]

# Timing effort by suite. A speed verdict needs at least seven processes, or eight if any is disturbed.
EFFORTS = {
    "quick": Effort(processes=7, most=12, budget_s=0.3),
    "core": Effort(processes=10, most=30, budget_s=1.0),
    "full": Effort(processes=10, most=30, budget_s=2.0),
} | dict.fromkeys(("slow", "gpu", "huge"), Effort(processes=10, most=30, budget_s=4.0))
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The cases to check, and what is expected of them."""

    plans: Sequence[Plan]
    # Supplementary cases and declarations of each implementation.
    supplements: Mapping[str, Supplement] = field(default_factory=dict)
    expectations: Sequence[Expectation] = ()

    def list_plans(self, implementation: str) -> list[Plan]:
        """Return the plans of an implementation, its supplementary ones last."""
        own = self.supplements.get(implementation)
        return [*self.plans, *(own.plans if own else ())]


def make_session(job: Job, kind: type[Session] = Session) -> Session:
    """Return a session of a kind with the limits of a job.

    The default work limit is lower for the suite quick than for other suites.

    Raises: PluginError if torch is too old.
    """
    if older := find_older_torch():
        raise PluginError(older)
    is_quick = isinstance(job, ConformJob | ProfileJob) and job.suite == "quick"
    default_s = QUICK_WORK_S if is_quick and not getattr(job, "frontier", False) else Limits().work_s
    return kind(
        limits=Limits(
            timeout_s=job.timeout_s,
            memory_bytes=job.memory_bytes,
            work_s=job.work_limit_s or default_s,
            threads=job.threads,
        ),
        cache_folder=None if job.no_cache else find_folder(),
        report_cache_fault=lambda fault: LOGGER.warning("warning: %s", fault),
    )


def plan_conformance(session: Session, job: ConformJob, operators: Sequence[str], *, here: bool = True) -> list[Plan]:
    """Return the plans for checking the suite's cases of these operators; ``here``: they will run on this machine."""
    return plan_cases(session, list_suite(session, job, operators), job, checks=job.checks, here=here)


def plan_checks(
    session: Session,
    job: ConformJob,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    expected: Expected | None = None,
    resumed: StoredRun | None = None,
) -> Checks:
    """Return the checks of a job: the planned cases, supplementary cases, and expected failures.

    ``expected`` are the expected failures; None: those of the job. ``resumed`` is the stored run that is resumed, whose
    supplementary cases and declarations are used again.

    Raises: ExpectationError if expected failures cannot be read, or can match no finding; ValueError if ``expected`` is
    a mapping with an invalid key or value.
    """
    supplements = _supplement(session, job, implementations, plans, resumed)
    further = [plan for one in supplements.values() for plan in one.plans]
    expected = job.expected_failures if expected is None else expected
    expectations = collect_expectations(session, implementations, expected, [*plans, *further])
    return Checks(plans=plans, supplements=supplements, expectations=expectations)


def _supplement(
    session: Session, job: ConformJob, implementations: Sequence[str], plans: Sequence[Plan], resumed: StoredRun | None
) -> dict[str, Supplement]:
    """Return the supplementary cases and the declarations of each implementation.

    The implementations are asked before the run which cases they support, if the suite is in ``VERDICT_SUITES``, unless
    the job selects cases or checks, or replaces the dtypes; otherwise there are none. With a shard, a part of the
    supplementary cases is added.
    """
    if job.suite not in VERDICT_SUITES or set(job.filters) - {"shard"}:
        return {}
    whole = plans
    if job.shard:
        whole = plan_conformance(session, replace(job, shard=None), find_operators(session, implementations))
    return choose_supplements(
        session, implementations, whole, suite=require_listed(job.suite), part=job.shard, adds=not job.no_completion,
        stored={one.implementation: one for one in resumed.completions} if resumed else {},
    )  # fmt: skip


def count_planned(
    session: Session,
    implementations: Sequence[str],
    checks: Checks | None = None,
    timed: Sequence[Plan] = (),
    *,
    effort: Effort | None = None,
) -> dict[str, Planned]:
    """Return the numbers of cases to check and to time for each loaded implementation, by display name."""
    found: dict[str, Planned] = {}
    for name in implementations:
        operator = session.declared[name].operator
        plans = checks.list_plans(name) if checks else ()
        checked = {plan.case for plan in plans if plan.operator == operator}
        profiled = {plan.case for plan in timed if plan.operator == operator}
        processes = effort.processes if effort and profiled else 0
        found[display_name(name)] = Planned(cases=len(checked), timed=len(profiled), processes=processes)
    return found


def conform_into(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    checks: Checks,
    suite: str,
    *,
    done: frozenset[tuple[str, str]] = frozenset(),
) -> None:
    """Check every implementation on the planned cases and on its supplementary cases; add the results to ``recorded``.

    ``done`` has the implementation and the case of each result that another run has; these are left out, as are those
    that ``recorded`` has.
    """
    for one in checks.supplements.values():
        if one.completion.implementation not in recorded.completions:
            recorded.add_completion(one.completion)
    announced: dict[str, bool] = {}
    with show_progress() as progress:
        for result in conform(
            session,
            implementations,
            checks.plans,
            run=recorded.run.id,
            progress=progress,
            suite=suite,
            expectations=checks.expectations,
            done=done.union(recorded.results),
            supplements=checks.supplements,
        ):
            recorded.add(result)
            _announce_cause(result, announced)
    for settled in settle_supplements(session, checks.supplements, recorded.results.values()).values():
        recorded.add_completion(settled)


def _announce_cause(result: Result, announced: dict[str, bool]) -> None:
    """Tell an implementation's first failure while the run goes on, and the first cause that says what to mend.

    ``announced`` has the implementations with a failure, and whether a cause that says what to mend was told.
    """
    if announced.get(result.implementation):
        return
    for cause in find_root_causes([result]):
        if cause.says_what_to_mend or result.implementation not in announced:
            LOGGER.warning("%s", announce_cause(cause))
            announced[result.implementation] = cause.says_what_to_mend
            return


def plan_profile(session: Session, job: TimedJob, operators: Sequence[str] | None = None) -> list[Plan]:
    """Return the plans of the profile cases of these operators (default: all operators).

    The checks of a plan are those that an implementation must pass before it is timed on the case.

    Raises: JobError where an operator does not have a size or a mask that the job chooses.
    """
    if job.chooses_shapes:
        try:
            cases = list_shape_cases(session, job.make_shapes(), job.passes, of=operators or list_operators())
        except ValueError as error:
            raise JobError(None, "{fault}", fault=error) from None
    else:
        lengths = [length for length in job.lengths or job.default_lengths if isinstance(length, int)]
        cases = list_profile_cases(session, lengths, job.passes, of=operators)
    plans = plan_cases(session, cases, job, checks=sorted(list_gating_checks()))
    if job.chosen_axes:
        demand_memory(session, plans)
    return plans


def profile_into(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    effort: Effort,
    baseline: str | None = None,
    show: Callable[[], ShownProgress] = show_progress,
) -> None:
    """Time every implementation that conforms, with interleaved calls; record the results."""
    with show() as progress:
        for result in profile(
            session,
            implementations,
            plans,
            run=recorded.run.id,
            progress=progress,
            effort=effort,
            baseline=baseline,
            done=recorded.results,
        ):
            recorded.add(result)


def choose_effort(default: Effort, job: TimedJob) -> Effort:
    """Return the timing effort: ``default``, changed by the time for a case and the number of processes of a job.

    If the job has a number of processes, exactly that many run. Otherwise, further processes are added while they may
    decide a speed verdict.
    """
    effort = replace(default, case_s=job.case_budget_s)
    return replace(effort, processes=job.processes, most=None) if job.processes else effort


def profile_with_ceilings(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    effort: Effort,
    *,
    show: Callable[[], ShownProgress] = show_progress,
) -> None:
    """Measure the machine's ceilings (highest rates), then time the conforming implementations."""
    for ceiling in measure_ceilings(session, plans, run=recorded.run.id, done=recorded.ceilings):
        recorded.add_ceiling(ceiling)
    profile_into(recorded, session, implementations, plans, effort=effort, show=show)


def record_profile(
    job: ProfileJob,
    *,
    start_recording: Callable[..., AbstractContextManager[Recording]],
    show: Callable[[], ShownProgress] = show_progress,
    announce: Callable[[str], None] | None = None,
    kind: type[Session] = Session,
) -> Recording:
    """Measure speed and memory of implementations and of their references, and return the stored run.

    ``start_recording`` opens the run file with the arguments of ``record`` but ``resume``, ``show`` the progress, and
    ``kind`` the session. ``announce`` gets a line on what will be timed.

    Raises: JobError for what an operator does not have; PluginError where an implementation cannot be loaded.
    """
    chosen = choose_implementations(job.implementations)
    with make_session(job, kind) as session:
        chosen = choose_timed_implementations(
            session, chosen, asked=bool(job.implementations), operators=job.operators, keeps=bool(announce)
        )
        plans = plan_profile(session, job, find_operators(session, chosen))
        effort = choose_effort(EFFORTS[job.suite], job)
        if announce:
            announce(describe_timing(session, chosen, plans, effort, job))
        with start_recording(
            session, job=job, suite=PERF, cases=[plan.case for plan in plans], implementations=chosen,
            planned=count_planned(session, chosen, timed=plans, effort=effort),
        ) as recorded:  # fmt: skip
            profile_with_ceilings(recorded, session, chosen, plans, effort, show=show)
            recorded.exit_code = recorded.choose_exit_code(job.implementations)
    return recorded
