"""``attnbench conform --suite fuzz``: cases that are drawn, for as long as one has time."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from attnbench.cli.conform_markdown import write_markdown
from attnbench.cli.jobs import say_stored, session_for
from attnbench.cli.progress import progress
from attnbench.cli.recording import Recording, recording, write_json
from attnbench.cli.selection import chosen_checks, chosen_implementations, loadable
from attnbench.cli.terminal import print_findings
from attnbench.runner import Session, expectations_beside, read_expectations
from attnbench.runner.fuzz import SUITE, Found, SearchEffort, fuzz

__all__ = ["effort", "fuzz_all", "keep"]

# Time of a search, in seconds, and the number of cases of one that is to be the same each time.
BUDGET_S = 60.0
EXAMPLES = 200
# Options that choose among the cases of a list.
OF_LISTS = {"patterns": "--case", "dtypes": "--dtype", "shard": "--shard"}


def fuzz_all(implementations: tuple[str, ...], given: dict[str, Any]) -> int:
    """Search each implementation for failures, print and keep them; the exit code of the command."""
    for name, option in OF_LISTS.items():
        if given[name]:
            raise click.UsageError(f"{option} chooses among listed cases, and --suite fuzz draws its own: leave it out")
    chosen, effort_each = chosen_implementations(implementations), effort(given)
    found: list[Found] = []
    with session_for(given) as session:
        # Hypothesis notes down what it reads of sources; the folder that one works in is no place for that.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(session.folder / "hypothesis"))
        chosen = loadable(session, chosen, asked=bool(implementations))
        with recording(
            session, results=given["results"], suite=SUITE, cases=(), implementations=chosen, resume=given["resume"]
        ) as recorded:
            try:
                _search(session, chosen, recorded, effort_each, found, given)
            except KeyboardInterrupt:
                _print_found(found, err=True)
                raise
    if given["json_file"]:
        write_json(recorded, given["json_file"])
    if given["markdown_file"]:
        write_markdown(recorded.run, recorded.told(), given["markdown_file"])
    to_stderr = any(file is not None and file.name == "-" for file in (given["json_file"], given["markdown_file"]))
    print_findings(recorded.told(), err=to_stderr)
    _print_found(found, err=to_stderr)
    click.echo(f"{len(recorded.results)} results; the same cases come with --seed {effort_each.seed}", err=True)
    say_stored(recorded)
    return recorded.exit_code(implementations)


def effort(given: dict[str, Any]) -> SearchEffort:
    """What was asked for; in CI, or from a given seed, the same cases each time unless a time is given."""
    ci = bool(os.environ.get("CI"))
    budget_s, examples, seed = given["budget"], given["examples"], given["seed"]
    if budget_s is None and examples is None:
        repeats = ci or seed is not None
        budget_s, examples = (None, EXAMPLES) if repeats else (BUDGET_S, None)
    if seed is None:
        seed = 0 if ci else secrets.randbelow(10**6)
    return SearchEffort(seed=seed, budget_s=budget_s, examples=examples)


def _search(
    session: Session,
    chosen: list[str],
    recorded: Recording,
    each: SearchEffort,
    found: list[Found],
    given: dict[str, Any],
) -> None:
    expectations = expectations_beside(chosen)
    for path in given["expected"]:
        expectations += read_expectations(path)
    with progress() as steps:
        for one in fuzz(
            session,
            chosen,
            run=recorded.run.id,
            steps=steps,
            effort=each,
            add=recorded.add,
            checks=chosen_checks(given["checks"]),
            device=given["device"],
            expectations=expectations,
        ):
            found.append(one)
            if given["keep_found"]:
                keep(one.case, given["keep_found"])


def keep(case: str, path: Path) -> None:
    """Append an id to a list of cases that lacks it."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if case not in text.splitlines():
        gap = "" if text.endswith("\n") or not text else "\n"
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{gap}{case}\n")


def _print_found(found: Sequence[Found], *, err: bool) -> None:
    """Smallest failing cases, as lines of a list of cases."""
    ids = dict.fromkeys(one.case for one in found)
    if ids:
        click.echo(
            "\nsmallest failing cases, a line each as in a list of cases (--keep-found FILE appends them):", err=err
        )
        click.echo("\n".join(ids), err=err)
