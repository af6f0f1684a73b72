"""``attnbench conform --suite fuzz``: generated cases, for a given time or a given number of cases."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from attnbench.api.execution import make_session
from attnbench.api.progress import show_progress
from attnbench.api.selection import choose_checks, choose_implementations, drop_unloadable
from attnbench.cli.output_files import OutputFiles
from attnbench.cli.recording import Recording, print_stored_path, recording, write_json
from attnbench.cli.terminal import print_outcome, read_made
from attnbench.jobs.job import ConformJob
from attnbench.records.run_file import StoredRun
from attnbench.report.markdown import render
from attnbench.runner import Session, read_expectations, read_expectations_beside
from attnbench.runner.fuzz import SUITE, Found, SearchEffort, fuzz

__all__ = ["append_case", "choose_effort", "fuzz_all"]

# Default time of a search for failures, in seconds.
BUDGET_S = 60.0
# Default number of cases of a search that must be reproducible.
EXAMPLES = 200


def fuzz_all(job: ConformJob, resumed: StoredRun | None, files: OutputFiles, keep_found: Path | None) -> int:
    """Fuzz each implementation, print and store the findings, and return the exit code."""
    chosen, effort_each = choose_implementations(job.implementations), choose_effort(job)
    found: list[Found] = []
    # Do not use the cache of expected values: nearly every case of a search is new, and would only
    # displace the expected values of suite cases.
    with make_session(replace(job, no_cache=True)) as session:
        # Hypothesis writes files with constants that it finds in source code; keep them out of the working directory.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(session.folder / "hypothesis"))
        chosen = drop_unloadable(session, chosen, asked=bool(job.implementations), keeps=len(chosen) == 1)
        with recording(session, job=job, resumed=resumed, suite=SUITE, cases=(), implementations=chosen) as recorded:
            try:
                _search(session, chosen, recorded, effort_each, found, job, keep_found)
                recorded.exit_code = recorded.choose_exit_code(job.implementations)
            except KeyboardInterrupt:
                _print_found(found, err=True)
                raise
    if files.json_file:
        write_json(recorded, files.json_file)
    runs, summary = read_made([recorded])
    if files.markdown_file:
        files.markdown_file.write(render(summary))
    print_outcome(summary, runs, err=files.to_stderr)
    _print_found(found, err=files.to_stderr)
    click.echo(f"{len(recorded.results)} results; --seed {effort_each.seed} repeats the same cases", err=True)
    print_stored_path(recorded)
    return recorded.exit_code


def choose_effort(job: ConformJob) -> SearchEffort:
    """Return the seed and the limit of a search; the limit is a time or a number of cases.

    If the options give no limit, the default is a time. In CI or with --seed the default is a
    number of cases instead, because a search that ends after a given time cannot be repeated
    exactly. Without --seed, the seed is 0 in CI and random elsewhere.
    """
    ci = bool(os.environ.get("CI"))
    budget_s, examples, seed = job.budget_s, job.examples, job.seed
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
    job: ConformJob,
    keep_found: Path | None,
) -> None:
    expectations = read_expectations_beside(chosen)
    for path in job.expected_failures:
        expectations += read_expectations(path)
    with show_progress() as progress:
        for one in fuzz(
            session,
            chosen,
            run=recorded.run.id,
            progress=progress,
            effort=each,
            add=recorded.add,
            checks=choose_checks(job.checks),
            device=job.device,
            expectations=expectations,
        ):
            found.append(one)
            if keep_found:
                append_case(one.case, keep_found)


def append_case(case: str, path: Path) -> None:
    """Append a case id to a file of one id a line, unless the file already contains the id."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if case not in text.splitlines():
        gap = "" if text.endswith("\n") or not text else "\n"
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{gap}{case}\n")


def _print_found(found: Sequence[Found], *, err: bool) -> None:
    """Print the ids of the smallest failing cases, one id a line."""
    ids = dict.fromkeys(one.case for one in found)
    if ids:
        click.echo("\nsmallest failing cases, one id a line (--keep-found FILE appends these ids to FILE):", err=err)
        click.echo("\n".join(ids), err=err)
