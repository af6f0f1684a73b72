"""The two jobs that commands combine: checking a suite, and profiling across sequence lengths."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import click

from attnbench.analysis.coverage import VERDICT_SUITES
from attnbench.api.axes import Axes
from attnbench.api.before_timing import demand_memory
from attnbench.api.defaults import EFFORTS, QUICK_WORK_S
from attnbench.api.progress import ShownProgress, show_progress
from attnbench.api.recording import Recording
from attnbench.api.subjects import find_operators, plan_cases
from attnbench.api.usage import UsageError
from attnbench.cases import Level
from attnbench.oracle.disk_cache import find_folder
from attnbench.plugins.registry import display_name, list_operators
from attnbench.processes.oracle_requests import ListSuite
from attnbench.records.run_file import find_runs, read_run
from attnbench.records.types import Completion, Pass, Planned
from attnbench.runner import (
    Effort,
    Expectation,
    Limits,
    Plan,
    Session,
    audit,
    conform,
    list_gating_checks,
    list_profile_cases,
    list_shape_cases,
    measure_ceilings,
    profile,
    read_expectations,
    read_expectations_beside,
)
from attnbench.runner.supplement import Supplement, choose_supplements, settle_supplements

__all__ = [
    "Choice",
    "choose_effort",
    "conform_into",
    "count_planned",
    "load_expectations",
    "make_session",
    "plan_conformance",
    "plan_profile",
    "print_stored_path",
    "profile_into",
    "profile_with_ceilings",
    "supplement_plans",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options that select cases and checks, both for checking a suite and for profiling."""

    suite: Level = "quick"
    patterns: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    shard: tuple[int, int] | None = None
    expected: tuple[Path, ...] = ()
    no_completion: bool = False

    @property
    def whole(self) -> bool:
        """Whether every case of the suite is run with every check, in its own dtype or in others."""
        return not (self.patterns or self.checks or self.shard)

    @property
    def completes(self) -> bool:
        """Whether implementations are asked before the run which cases they support, to add supplementary cases.

        They are asked if the suite is in ``VERDICT_SUITES``, unless options select cases or checks, or replace the
        dtypes. With --shard, a part of the supplementary cases is added; with --no-completion, none.
        """
        filtered = self.patterns or self.checks or self.dtypes
        return self.suite in VERDICT_SUITES and not filtered

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Take the fields from a command's options; fields without an option get defaults."""
        return cls(**{one.name: options[one.name] for one in fields(cls) if one.name in options})


def make_session(options: Mapping[str, Any], kind: type[Session] = Session) -> Session:
    """Return a session of a kind with the limits that the options give.

    The default of --work-limit is lower for the suite quick than for other suites.
    """
    default_s = QUICK_WORK_S if options.get("suite") == "quick" and not options.get("frontier") else Limits().work_s
    return kind(
        limits=Limits(
            timeout_s=options["timeout"],
            memory_bytes=options["memory_limit"],
            work_s=options["work_limit"] or default_s,
            threads=options["threads"],
        ),
        cache_folder=None if options.get("no_cache") else find_folder(),
        report_cache_fault=lambda fault: click.echo(f"warning: {fault}", err=True),
    )


def plan_conformance(session: Session, choice: Choice, operators: Sequence[str], *, here: bool = True) -> list[Plan]:
    """Return the plans for checking the suite's cases of these operators; ``here``: they will run on this machine."""
    cases = [
        case for operator in operators for case in session.ask_oracle(ListSuite(operator=operator, level=choice.suite))
    ]
    return plan_cases(
        session,
        cases,
        patterns=choice.patterns,
        checks=choice.checks,
        dtypes=choice.dtypes,
        device=choice.device,
        shard=choice.shard,
        here=here,
    )


def supplement_plans(
    session: Session, choice: Choice, implementations: Sequence[str], plans: Sequence[Plan], given: Mapping[str, Any]
) -> dict[str, Supplement]:
    """Return the supplementary cases and the declarations of each implementation; none if they are not asked.

    A resumed run uses the supplementary cases and declarations of the stored run again.
    """
    if not choice.completes:
        return {}
    stored: Sequence[Completion] = ()
    if given["resume"] is not None:
        (path,) = find_runs(given["results"], [given["resume"]])
        stored = read_run(path).completions
    whole = plans
    if choice.shard:
        whole = plan_conformance(session, replace(choice, shard=None), find_operators(session, implementations))
    return choose_supplements(
        session, implementations, whole, suite=choice.suite, part=choice.shard,
        adds=not choice.no_completion, stored={one.implementation: one for one in stored},
    )  # fmt: skip


def load_expectations(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    choice: Choice,
    supplements: Mapping[str, Supplement],
) -> list[Expectation]:
    """Return the expected failures from the files beside the implementations and from the files given as options.

    Raises: ExpectationError if a file cannot be read, or if an expected failure of an implementation of the run can
        match no finding.
    """
    expectations = read_expectations_beside(implementations)
    for path in choice.expected:
        expectations += read_expectations(path)
    further = [plan.case for one in supplements.values() for plan in one.plans]
    audit(session, expectations, implementations, [*(plan.case for plan in plans), *further])
    return expectations


def count_planned(
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan] = (),
    timed: Sequence[Plan] = (),
    supplements: Mapping[str, Supplement] | None = None,
) -> dict[str, Planned]:
    """Return the numbers of cases to check and to time for each loaded implementation, by display name."""
    found: dict[str, Planned] = {}
    for name in implementations:
        operator = session.declared[name].operator
        further = supplements[name].plans if supplements and name in supplements else ()
        checked = {plan.case for plan in (*plans, *further) if plan.operator == operator}
        profiled = {plan.case for plan in timed if plan.operator == operator}
        found[display_name(name)] = Planned(cases=len(checked), timed=len(profiled))
    return found


def conform_into(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    choice: Choice,
    expectations: Sequence[Expectation],
    supplements: Mapping[str, Supplement],
    *,
    done: frozenset[tuple[str, str]] = frozenset(),
) -> None:
    """Check every implementation on the planned cases and on its supplementary cases; add the results to ``recorded``.

    ``supplements`` has the supplementary cases of each implementation. ``done`` has the implementation and the case of
    each result that another run has; these are left out, as are those that ``recorded`` has.
    """
    for one in supplements.values():
        if one.completion.implementation not in recorded.completions:
            recorded.add_completion(one.completion)
    with show_progress() as progress:
        for result in conform(
            session,
            implementations,
            plans,
            run=recorded.run.id,
            progress=progress,
            suite=choice.suite,
            expectations=expectations,
            done=done.union(recorded.results),
            supplements=supplements,
        ):
            recorded.add(result)
    for settled in settle_supplements(session, supplements, recorded.results.values()).values():
        recorded.add_completion(settled)


def plan_profile(
    session: Session,
    choice: Choice,
    operators: Sequence[str] | None = None,
    *,
    axes: Axes,
    passes: Sequence[Pass],
) -> list[Plan]:
    """Return the plans of the profile cases of these operators (default: all operators).

    The checks of a plan are those that an implementation must pass before it is timed on the case.

    Raises: UsageError where an operator does not have a size or a mask that the options choose.
    """
    if axes.options and any(not set("*?[") & set(pattern) for pattern in choice.patterns):
        raise UsageError(f"--case: a complete case id has its own sizes: leave out {', '.join(axes.options)}")
    if axes.chosen:
        try:
            cases = list_shape_cases(session, axes.make_shapes(), passes, of=operators or list_operators())
        except ValueError as error:
            raise UsageError(str(error)) from None
    else:
        lengths = [length for length in axes.lengths if isinstance(length, int)]
        cases = list_profile_cases(session, lengths, passes, of=operators)
    plans = plan_cases(
        session,
        cases,
        patterns=choice.patterns,
        checks=sorted(list_gating_checks()),
        dtypes=choice.dtypes,
        device=choice.device,
        shard=choice.shard,
    )
    if axes.options:
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


def choose_effort(default: Effort, given: Mapping[str, Any]) -> Effort:
    """Return the timing effort: ``default``, changed by --case-budget and --processes.

    With --processes, exactly that many processes run. Without it, further processes are added while they may decide a
    speed verdict.
    """
    effort = replace(default, case_s=given.get("case_budget"))
    return replace(effort, processes=given["processes"], most=None) if given["processes"] else effort


def profile_with_ceilings(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    given: Mapping[str, Any],
    *,
    show: Callable[[], ShownProgress] = show_progress,
) -> None:
    """Measure the machine's ceilings (highest rates), then time the conforming implementations."""
    for ceiling in measure_ceilings(session, plans, run=recorded.run.id, done=recorded.ceilings):
        recorded.add_ceiling(ceiling)
    effort = choose_effort(EFFORTS[given["suite"]], given)
    profile_into(recorded, session, implementations, plans, effort=effort, show=show)


def print_stored_path(recorded: Recording) -> None:
    """Print the path of the run's file to standard error."""
    click.echo(f"stored in {recorded.file.path}", err=True)
