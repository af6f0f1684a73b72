"""``attnbench conform --mutants`` and ``--matrix``: how well the checks catch what is wrong."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from attnbench.cases import NESTED, digest
from attnbench.checks.catalogue import chapters, checks
from attnbench.cli.jobs import Choice, conform_plans, session_for
from attnbench.cli.progress import progress
from attnbench.cli.terminal import console
from attnbench.plugins.registry import operators
from attnbench.runner import Session
from attnbench.runner.mutation import FEW, Matrix, mutation_matrix

__all__ = ["print_matrix", "told", "try_mutants"]

SCHEMA = 1
FILTERS = ("patterns", "checks", "dtypes", "shard")
# Options that say nothing here.
STRANGE = {"markdown_file": "--markdown", "certificate_file": "--certificate", "resume": "--resume"}


def try_mutants(implementations: Sequence[str], given: Mapping[str, Any]) -> int:
    """Try all mutants on a suite; exit code 0 where every one is caught and nothing right is."""
    if implementations:
        raise click.UsageError("--mutants tries the shipped mutants: name no implementation")
    if strange := [option for name, option in STRANGE.items() if given[name]]:
        raise click.UsageError(f"--mutants: leave out {', '.join(strange)}; --json stores what came out")
    choice = Choice.of(given)
    with session_for(dict(given)) as session:
        plans = conform_plans(session, choice, operators())
        lists = {operator: _lists(session, operator, choice.suite) for operator in operators()}
        versions = {operator: session.judge("version", operator=operator) for operator in operators()}
    # Filters keep cases that are in no list: they are met by every mutant.
    listed = {case for own in lists.values() for case in own[choice.suite]}
    first = {case for own in lists.values() for case in next(iter(own.values()))}
    first |= {plan.case for plan in plans if plan.case not in listed}
    with progress() as steps:
        matrix = mutation_matrix(plans, first, steps=steps, whole=given["matrix"])
    asked = [check for check in checks() if any(check in plan.checks for plan in plans)]
    whole = {} if any(given[name] for name in FILTERS) else lists
    scores = {
        digest(cases): _score(matrix, operator, level, cases, versions[operator])
        for operator, own in whole.items()
        for level, cases in own.items()
        if matrix.of(operator)
    }
    if given["json_file"]:
        json.dump(told(matrix, asked, scores), given["json_file"], indent=1)
        given["json_file"].write("\n")
    print_matrix(matrix, asked, err=given["json_file"] is not None and given["json_file"].name == "-")
    return 1 if matrix.survivors() or matrix.false_alarms() else 0


def _lists(session: Session, operator: str, suite: str) -> dict[str, list[str]]:
    """An operator's case ids by level: of the suite, and of the smaller ones from ``core`` on, the smallest first."""
    places = {level: number for number, level in enumerate(NESTED)}
    levels: list[str] = [level for level in NESTED[1:] if suite in places and places[level] <= places[suite]]
    return {level: session.judge("suite", operator=operator, level=level) for level in levels or [suite]}


def _score(matrix: Matrix, operator: str, level: str, cases: Collection[str], version: str) -> dict[str, Any]:
    own = set(matrix.of(operator))
    killed, total = len(own & set(matrix.killed_on(set(cases)))), len(own - set(matrix.beyond()))
    return {
        "level": level,
        "list_versions": {operator: version},
        "mutants": total,
        "killed": killed,
        "score": round(killed / total, 4),
    }


def told(matrix: Matrix, asked: Sequence[str], scores: Mapping[str, Any]) -> dict[str, Any]:
    """What came out, in plain containers; ``scores`` are by the hash of the case list."""
    return {
        "schema": SCHEMA,
        "scores": dict(scores),
        "survivors": matrix.survivors(),
        "beyond": matrix.beyond(),
        "false_alarms": matrix.false_alarms(),
        "not_by_the_named_check": matrix.elsewhere(),
        "alike": matrix.alike(),
        "caught_by_few": matrix.caught_by_few(),
        "whole": matrix.whole,
        "checks": {check: {"kills": len(matrix.killed_by(check)), "alone": matrix.needing(check)} for check in asked},
        "mutants": {
            name: {"named": named, "cases": dict(matrix.checks_of(name))} for name, named in matrix.mutants.items()
        },
    }


def print_matrix(matrix: Matrix, asked: Sequence[str], *, err: bool = False) -> None:
    """A line for each check, then what survived, what cannot be told apart, and the score."""
    further = ("kills", "alone") if matrix.whole else ()
    table = Table("chapter", "check", "named by", "caught", *further, box=None, pad_edge=False)
    before = ""
    for check in sorted(asked, key=lambda name: chapters().index(checks()[name].chapter)):
        chapter = checks()[check].chapter
        naming, caught = sum(named == check for named in matrix.mutants.values()), len(matrix.caught_by(check))
        numbers = [naming, caught if naming else 0]
        if matrix.whole:
            numbers += [len(matrix.killed_by(check)), len(matrix.needing(check))]
        table.add_row(chapter if chapter != before else "", check, *(str(number or "") for number in numbers))
        before = chapter
    console(err=err).print(table)

    def say(words: str, found: Sequence[str]) -> None:
        if found:
            click.echo(f"{words} ({len(found)}): {', '.join(found)}", err=err)

    say("\nchecks that catch nothing", [check for check in asked if not matrix.killed_by(check)])
    say("\nmutants that survive", matrix.survivors())
    say("\nmutants that need a longer list: none of these cases asks the check that they name", matrix.beyond())
    say("\nmutants not caught by the check that they name", matrix.elsewhere())
    total = len(matrix.mutants) - len(matrix.beyond())
    killed = total - len(matrix.survivors())
    if matrix.whole:
        say("\nmutants that fail the same checks on the same cases", [" = ".join(group) for group in matrix.alike()])
        say("\nright, and all the same caught", [f"{n} by {', '.join(c)}" for n, c in matrix.false_alarms().items()])
        click.echo(f"\n{len(matrix.caught_by_few())} mutants fail at most {FEW} checks", err=err)
        right = len(matrix.variants) + len(matrix.equivalents)
        click.echo(f"{right - len(matrix.false_alarms())} of {right} implementations that are right pass", err=err)
    click.echo(f"mutation score: {killed} of {total} caught ({killed / total:.1%})", err=err)
