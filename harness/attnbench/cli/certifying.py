"""From a run to its certificate."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import IO, Any

import click

from attnbench.analysis.certificate import Declared, Suite, certificate
from attnbench.cases import digest
from attnbench.cli.jobs import Choice
from attnbench.cli.recording import Recording
from attnbench.cli.selection import operators_of
from attnbench.plugins.registry import load_operator, shown
from attnbench.runner import Plan, Session

__all__ = ["refuse_part", "write_certificate"]

# Options that leave something out, or change what is run.
FILTERS = {"patterns": "--case", "checks": "--check", "dtypes": "--dtype", "shard": "--shard"}


def refuse_part(given: Mapping[str, Any]) -> None:
    """Refuse a certificate of less than a whole suite, before anything is run.

    Raises: click.UsageError.
    """
    if given["suite"] == "fuzz":
        raise click.UsageError("--certificate: drawn cases are no suite; name one with --suite")
    used = [option for name, option in FILTERS.items() if given[name]]
    if used:
        raise click.UsageError(f"--certificate is of a whole suite: leave out {', '.join(used)}")


def write_certificate(
    session: Session,
    recorded: Recording,
    implementations: Sequence[str],
    plans: Sequence[Plan],
    choice: Choice,
    file: IO[str],
) -> None:
    """Write the certificate of a run that is complete.

    Raises: CertificateError.
    """
    operators = operators_of(session, implementations)
    listed = [case for operator in operators for case in session.judge("suite", operator=operator, level=choice.suite)]
    list_hash = digest(listed)
    suite = Suite(
        level=choice.suite,
        list_versions={operator: session.judge("version", operator=operator) for operator in operators},
        list_hash=list_hash,
        cases=len(listed),
        mutation_score=_scores(operators).get(list_hash),
    )
    declared = {
        shown(name): Declared(**{key: session.declared[name][key] for key in ("operator", "source", "policies")})
        for name in implementations
    }
    made = certificate(recorded.run, suite, [plan.case for plan in plans], declared, recorded.results.values())
    file.write(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _scores(operators: Sequence[str]) -> dict[str, Any]:
    """Mutation scores by the hash of the case list, as ``conform --mutants --json`` stored them for these operators."""
    found: dict[str, Any] = {}
    for operator in operators:
        package, _, file = load_operator(operator).mutation_scores.partition(":")
        if file:
            found |= json.loads(files(package).joinpath(file).read_text(encoding="utf-8"))["scores"]
    return found
