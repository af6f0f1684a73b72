"""``attnbench conform``: the checks over a suite."""

import sys
from typing import Any

import click

from attnbench.cli.certifying import refuse_part, write_certificate
from attnbench.cli.conform_markdown import write_markdown
from attnbench.cli.jobs import Choice, audited_expectations, conform_into, conform_plans, say_stored, session_for
from attnbench.cli.options import options
from attnbench.cli.recording import recording, write_json
from attnbench.cli.selection import chosen_implementations, loadable, operators_of
from attnbench.cli.terminal import print_findings


@click.command("conform")
@click.argument("implementations", nargs=-1)
@options(
    "suite_or_fuzz", "case", "check", "device", "dtype", "shard", "expected", "timeout", "memory_limit", "work_limit"
)
@options(
    "threads",
    "results",
    "resume",
    "json",
    "markdown",
    "certificate",
    "mutants",
    "matrix",
    "budget",
    "examples",
    "seed",
    "keep_found",
)
def command(implementations: tuple[str, ...], **given: Any) -> int:
    """Check implementations against the reference over a suite of cases.

    Each IMPLEMENTATION is a registered name, package.module:attribute or path/to/file.py:attribute; all registered
    ones if none is named. Exit code 0: everything held; 1: a failure; 2: usage; 3: nothing of one was checked.
    """
    if given["certificate_file"]:
        refuse_part(given)
    if given["matrix"] and not given["mutants"]:
        raise click.UsageError("--matrix is for the shipped mutants: add --mutants")
    if given["mutants"] and given["suite"] != "fuzz":
        from attnbench.cli.mutants import try_mutants

        return try_mutants(implementations, given)
    if given["suite"] == "fuzz":
        # Imported here: Hypothesis takes a while.
        from attnbench.cli.fuzzing import fuzz_all

        return fuzz_all(implementations, given)
    if unused := [name for name in ("budget", "examples", "seed", "keep_found") if given[name] is not None]:
        raise click.UsageError(f"--{unused[0].replace('_', '-')} is for drawn cases: add --suite fuzz")
    choice = Choice.of(given)
    chosen = chosen_implementations(implementations)
    with session_for(given) as session:
        chosen = loadable(session, chosen, asked=bool(implementations))
        plans = conform_plans(session, choice, operators_of(session, chosen))
        expectations = audited_expectations(session, chosen, plans, choice)
        cases = [plan.case for plan in plans]
        with recording(
            session, results=given["results"], suite=choice.suite, cases=cases, implementations=chosen,
            resume=given["resume"],
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, plans, choice, expectations)
        if given["certificate_file"]:
            write_certificate(session, recorded, chosen, plans, choice, given["certificate_file"])
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    if given["markdown_file"]:
        write_markdown(recorded.run, recorded.told(), given["markdown_file"])
    files = (given[f"{kind}_file"] for kind in ("json", "markdown", "certificate"))
    to_stderr = any(file is not None and file.name == "-" for file in files)
    print_findings(recorded.told(), err=to_stderr)
    say_stored(recorded)
    sys.stdout.flush()
    return recorded.exit_code(implementations)
