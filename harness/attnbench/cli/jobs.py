"""The two jobs that commands are made of: checking over a suite, and profiling over lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import click

from attnbench.cli.options import BUDGETS, QUICK_WORK_S
from attnbench.cli.progress import progress
from attnbench.cli.recording import Recording
from attnbench.cli.selection import planned
from attnbench.records import Pass
from attnbench.runner import (
    Expectation,
    Limits,
    Plan,
    Session,
    audit,
    ceilings,
    conform,
    expectations_beside,
    gating_checks,
    profile,
    profile_cases,
    read_expectations,
)

__all__ = [
    "Choice",
    "audited_expectations",
    "conform_into",
    "conform_plans",
    "profile_into",
    "profile_plans",
    "say_stored",
    "session_for",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Options that both jobs share."""

    suite: str = "quick"
    patterns: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    device: str = "cpu"
    shard: tuple[int, int] | None = None
    expected: tuple[Path, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Those of a command's options that it has."""
        return cls(**{one.name: options[one.name] for one in fields(cls) if one.name in options})


def session_for(options: dict[str, Any]) -> Session:
    """Session with the limits that were asked for."""
    return Session(
        limits=Limits(
            timeout_s=options["timeout"],
            memory_bytes=options["memory_limit"],
            work_s=options["work_limit"] or Limits().work_s,
            threads=options["threads"],
        )
    )


def conform_plans(session: Session, choice: Choice, operators: Sequence[str]) -> list[Plan]:
    """Cases of the suite of these operators, as they will be checked."""
    cases = [case for operator in operators for case in session.judge("suite", operator=operator, level=choice.suite)]
    return planned(
        session,
        cases,
        patterns=choice.patterns,
        checks=choice.checks,
        dtypes=choice.dtypes,
        device=choice.device,
        shard=choice.shard,
    )


def audited_expectations(
    session: Session, implementations: Sequence[str], plans: Sequence[Plan], choice: Choice
) -> list[Expectation]:
    """Expected failures beside the implementations and in the files that were named.

    Raises: ExpectationError where one of them can match nothing.
    """
    expectations = expectations_beside(implementations)
    for path in choice.expected:
        expectations += read_expectations(path)
    audit(session, expectations, implementations, [plan.case for plan in plans])
    return expectations


def conform_into(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    choice: Choice,
    expectations: Sequence[Expectation],
) -> None:
    """Check every implementation on every case."""
    with progress() as steps:
        for result in conform(
            session,
            implementations,
            plans,
            run=recorded.run.id,
            steps=steps,
            suite=choice.suite,
            expectations=expectations,
            done=frozenset(recorded.results),
        ):
            recorded.add(result)


def profile_plans(
    session: Session,
    choice: Choice,
    operators: Sequence[str] | None = None,
    *,
    lengths: Sequence[int],
    passes: Sequence[Pass],
) -> list[Plan]:
    """Cases of the profile of these operators, or of all, with the checks that guard their timing."""
    cases = profile_cases(session, lengths, passes)
    return planned(
        session,
        [case for case in cases if operators is None or case.partition("/")[0] in operators],
        checks=sorted(gating_checks()),
        dtypes=choice.dtypes,
        device=choice.device,
        shard=choice.shard,
    )


def profile_into(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    *,
    level: str,
    processes: int | None,
    work_limit: float | None,
) -> None:
    """Time every implementation that conforms, in turns; in ``processes`` where a number was asked for, no more."""
    if level == "quick" and work_limit is None:
        session.limits = replace(session.limits, work_s=QUICK_WORK_S)
    usual, most, budget_s = BUDGETS[level]
    for ceiling in ceilings(session, plans, run=recorded.run.id, done=recorded.ceilings):
        recorded.keep(ceiling)
    with progress() as steps:
        for result in profile(
            session,
            implementations,
            plans,
            run=recorded.run.id,
            steps=steps,
            processes=processes or usual,
            most=None if processes else most,
            budget_s=budget_s,
            done=recorded.results,
        ):
            recorded.add(result)


def say_stored(recorded: Recording) -> None:
    """Where the run went."""
    click.echo(f"stored in {recorded.file.path}", err=True)
