"""The two jobs that commands are made of: checking over a suite, and profiling over lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import click

from attnbench.cli.options import EFFORTS, QUICK_WORK_S
from attnbench.cli.progress import progress
from attnbench.cli.recording import Recording
from attnbench.cli.selection import planned
from attnbench.records.types import Pass
from attnbench.runner import (
    Effort,
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
    "asked_effort",
    "audited_expectations",
    "conform_into",
    "conform_plans",
    "profile_into",
    "profile_plans",
    "profile_with_ceilings",
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
    """Session with the limits that were asked for, or with those of a quick suite."""
    usual_s = QUICK_WORK_S if options.get("suite") == "quick" and not options.get("frontier") else Limits().work_s
    return Session(
        limits=Limits(
            timeout_s=options["timeout"],
            memory_bytes=options["memory_limit"],
            work_s=options["work_limit"] or usual_s,
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
    return planned(
        session,
        profile_cases(session, lengths, passes, of=operators),
        patterns=choice.patterns,
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
    effort: Effort,
    baseline: str | None = None,
) -> None:
    """Time every implementation that conforms, in turns."""
    with progress() as steps:
        for result in profile(
            session,
            implementations,
            plans,
            run=recorded.run.id,
            steps=steps,
            effort=effort,
            baseline=baseline,
            done=recorded.results,
        ):
            recorded.add(result)


def asked_effort(usual: Effort, given: Mapping[str, Any]) -> Effort:
    """The usual effort, or as many processes as were asked for, and no more; within the time for a case."""
    effort = replace(usual, case_s=given.get("case_budget"))
    return replace(effort, processes=given["processes"], most=None) if given["processes"] else effort


def profile_with_ceilings(
    recorded: Recording,
    session: Session,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    given: Mapping[str, Any],
) -> None:
    """What the machine reaches at most, and then every implementation that conforms, as options ask for it."""
    for ceiling in ceilings(session, plans, run=recorded.run.id, done=recorded.ceilings):
        recorded.keep(ceiling)
    effort = asked_effort(EFFORTS[given["suite"]], given)
    profile_into(recorded, session, implementations, plans, effort=effort)


def say_stored(recorded: Recording) -> None:
    """Where the run went."""
    click.echo(f"stored in {recorded.file.path}", err=True)
