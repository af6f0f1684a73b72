"""``attnbench conform --mutants`` and ``--matrix``: how well the checks catch wrong implementations."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from attnbench.api.execution import make_session, plan_conformance
from attnbench.api.progress import show_progress
from attnbench.cases import NESTED, Level, digest
from attnbench.checks.catalogue import list_chapters, read_checks, read_operator_checks
from attnbench.cli.output_files import OutputFiles
from attnbench.jobs.job import ConformJob, require_listed
from attnbench.plugins.registry import OPERATORS, PluginError, list_names, load_operator
from attnbench.processes.oracle_requests import GetListVersion, ListSuite
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnbench.runner import Plan, Session
from attnbench.runner.mutation import FEW, Matrix, run_mutants

__all__ = ["print_matrix", "to_json", "try_mutants"]

SCHEMA = 1


def try_mutants(job: ConformJob, operators: Sequence[str], files: OutputFiles, *, whole: bool) -> int:
    """Run all mutants of these operators on a suite, and print and store the results.

    Without operators, the mutants of all are run; ``whole``: each of them on every case.

    Return 1 if a mutant survives, or if a check fails on a correct variant or an equivalent mutant, else 0.
    """
    if job.implementations:
        raise click.UsageError(f"--mutants runs the shipped mutants: leave out {' '.join(job.implementations)}")
    suite = require_listed(job.suite)
    operators = _choose_operators(operators)
    with make_session(job) as session:
        plans = plan_conformance(session, job, operators)
        lists = {operator: _list_cases(session, operator, suite) for operator in operators}
        versions = {operator: session.ask_oracle(GetListVersion(operator=operator)) for operator in operators}
    # Every mutant runs on the cases in ``first`` that are not compiled. ``first`` has the cases of core, or of quick if
    # that is the suite, and the cases that --case names but the suite lacks.
    listed = {case for own in lists.values() for case in own[suite]}
    first = {case for own in lists.values() for case in own.get("core", own[suite])}
    first |= {plan.case for plan in plans if plan.case not in listed}
    with show_progress() as progress:
        matrix = run_mutants(plans, first, progress=progress, whole=whole)
    asked = [check for check in read_checks() if any(check in plan.checks for plan in plans)]
    scored = {} if job.filters else lists
    scores = {
        digest(cases): _compute_score(matrix, plans, operator, level, cases, versions[operator])
        for operator, own in scored.items()
        for level, cases in own.items()
        if matrix.find_mutants_of(operator)
    }
    if files.json_file:
        json.dump(to_json(matrix, asked, scores, lists), files.json_file, indent=1)
        files.json_file.write("\n")
    print_matrix(matrix, asked, err=files.to_stderr)
    return 1 if matrix.find_survivors() or matrix.find_false_alarms() else 0


def _choose_operators(asked: Sequence[str]) -> list[str]:
    """Return the operators in ``asked``; if ``asked`` is empty, all operators that can be loaded.

    Raises: PluginError where an operator in ``asked`` cannot be loaded.
    """
    chosen = []
    for name in asked or list_names(OPERATORS):
        try:
            read_operator_checks(load_operator(name))
        except PluginError as error:
            if asked:
                raise
            click.echo(f"left out: {error}", err=True)
        else:
            chosen.append(name)
    return chosen


def _list_cases(session: Session, operator: str, suite: Level) -> dict[str, list[str]]:
    """Return the case ids of an operator for each nested suite up to ``suite``, smallest suite first.

    Each nested suite contains the suite before it: quick ⊂ core ⊂ full ⊂ slow. If ``suite`` is not nested, return only
    the case ids of ``suite``.
    """
    levels = NESTED[: NESTED.index(suite) + 1] if suite in NESTED else (suite,)
    return {level: session.ask_oracle(ListSuite(operator=operator, level=level)) for level in levels}


def _compute_score(
    matrix: Matrix, plans: Sequence[Plan], operator: str, level: str, cases: Collection[str], version: str
) -> dict[str, Any]:
    """Return the score of a list; a mutant is left out if it passes, and the check that it names applies to no case."""
    own, killed = set(matrix.find_mutants_of(operator)), set(matrix.find_killed_on(set(cases)))
    listed = set(cases)
    asked = {check for plan in plans if plan.case in listed for check in plan.checks}
    counted = [name for name in own if name in killed or matrix.mutants[name] in asked]
    return {
        "level": level,
        "list_versions": {operator: version},
        "mutants": len(counted),
        "killed": len(own & killed),
        "score": round(len(own & killed) / len(counted), 4),
    }


def to_json(
    matrix: Matrix,
    asked: Sequence[str],
    scores: Mapping[str, Any],
    lists: Mapping[str, Mapping[str, Collection[str]]],
) -> dict[str, Any]:
    """Return the results as JSON values.

    ``scores`` maps the hash of a case list to the mutation score on that list. ``lists`` has the case lists of each
    operator by suite, smallest suite first.
    """
    killed = {
        (operator, level): set(matrix.find_killed_on(set(cases)))
        for operator, own in lists.items()
        for level, cases in own.items()
    }

    def find_level(name: str) -> str | None:
        operator = matrix.operators[name]
        return next((level for level in lists[operator] if name in killed[operator, level]), None)

    return {
        "schema": SCHEMA,
        "scores": dict(scores),
        "survivors": matrix.find_survivors(),
        "beyond": matrix.find_unasked(),
        "false_alarms": matrix.find_false_alarms(),
        "not_by_the_named_check": matrix.find_killed_elsewhere(),
        "alike": matrix.group_indistinguishable(),
        "caught_by_few": matrix.find_caught_by_few(),
        "whole": matrix.whole,
        "checks": {
            check: {"kills": len(matrix.find_killed_by(check)), "alone": matrix.find_killed_only_by(check)}
            for check in asked
        },
        "mutants": {
            name: {"named": named, "level": find_level(name), "cases": dict(matrix.count_failures(name))}
            for name, named in matrix.mutants.items()
        },
    }


def print_matrix(matrix: Matrix, asked: Sequence[str], *, err: bool = False) -> None:
    """Print a line for each check, then lists of mutants by outcome, and the mutation score."""
    further = ("kills", "alone") if matrix.whole else ()
    rows: list[tuple[str, ...]] = []
    before = ""
    for check in sorted(asked, key=lambda name: list_chapters().index(read_checks()[name].chapter)):
        chapter = read_checks()[check].chapter
        naming, caught = sum(named == check for named in matrix.mutants.values()), len(matrix.find_caught_by(check))
        numbers = [naming, caught if naming else 0]
        if matrix.whole:
            numbers += [len(matrix.find_killed_by(check)), len(matrix.find_killed_only_by(check))]
        rows.append((chapter if chapter != before else "", check, *(str(number or "") for number in numbers)))
        before = chapter
    head = ("chapter", "check", "named by", "caught", *further)
    print_tables([TextTable(head=head, rows=tuple(rows))], Console.of(err=err))

    def print_list(title: str, names: Sequence[str]) -> None:
        if names:
            click.echo(f"{title} ({len(names)}): {', '.join(names)}", err=err)

    print_list("\nchecks that catch no mutant", [check for check in asked if not matrix.find_killed_by(check)])
    print_list("\nmutants that survive", matrix.find_survivors())
    unasked = matrix.find_unasked()
    print_list(
        "\nmutants that need a larger suite: the check that should catch the mutant applies to no case here", unasked
    )
    print_list("\nmutants that other checks catch, but not the check that should", matrix.find_killed_elsewhere())
    total = len(matrix.mutants) - len(unasked)
    killed = total - len(matrix.find_survivors())
    if matrix.whole:
        alike, false_alarms = matrix.group_indistinguishable(), matrix.find_false_alarms()
        print_list("\nmutants that fail the same checks on the same cases", [" = ".join(group) for group in alike])
        print_list(
            "\ncorrect variants and equivalent mutants that a check fails",
            [f"{name} by {', '.join(by)}" for name, by in false_alarms.items()],
        )
        click.echo(f"\n{len(matrix.find_caught_by_few())} mutants fail at most {FEW} checks", err=err)
        correct = len(matrix.variants) + len(matrix.equivalents)
        click.echo(f"{correct - len(false_alarms)} of {correct} correct variants and equivalent mutants pass", err=err)
    click.echo(f"mutation score: {killed} of {total} caught ({killed / total:.1%})", err=err)
