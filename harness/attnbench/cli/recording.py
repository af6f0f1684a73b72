"""A command's run: recorded with its command line, and written as JSON."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.api.command_line import format_command
from attnbench.api.recording import Recording, record
from attnbench.api.stored_job import make_job
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE
from attnbench.records.types import SCHEMA, Job, Planned, Result, format_reproduce_line
from attnbench.runner import Session
from attnbench.words.coverage import describe_asking, describe_changes, list_coverage_lines
from attnbench.words.findings import describe_finding, describe_reason

__all__ = ["FAILED", "INCONCLUSIVE", "Recording", "list_coverage", "list_notes", "recording", "write_json"]


def list_coverage(recorded: Recording) -> list[str]:
    """Return lines about what the suite's checks covered on each implementation; timed cases do not count."""
    own = [result for result in recorded.list_results() if result.suite == recorded.run.suite]
    return list(list_coverage_lines(own, recorded.completions))


def list_notes(recorded: Recording) -> list[str]:
    """Return what went wrong when implementations were asked which cases they support, one line each."""
    own: dict[str, list[Result]] = {}
    for result in recorded.list_results():
        own.setdefault(result.implementation, []).append(result)
    asked = ((name, line) for name, one in recorded.completions.items() for line in describe_asking(one))
    changed = ((name, line) for name, results in own.items() for line in describe_changes(results))
    return [f"{name}: {line}" for name, line in (*asked, *changed)]


@contextlib.contextmanager
def recording(
    session: Session,
    *,
    results: Path,
    suite: str,
    cases: Sequence[str],
    implementations: Sequence[str],
    resume: str | None,
    whole: bool = False,
    planned: Mapping[str, Planned] | None = None,
) -> Iterator[Recording]:
    """Yield a ``Recording`` as ``record`` does, with this process's command line.

    Raises: ResultsError where the run to resume is of another suite or machine; Abort after an interrupt, with the run
    that can be resumed.
    """
    made = None
    try:
        with record(
            session, command=_format_command(session.limits.threads), job=_make_job(session.limits.threads),
            results=results, suite=suite, cases=cases, implementations=implementations, resume=resume, whole=whole,
            planned=planned,
        ) as made:  # fmt: skip
            yield made
    except KeyboardInterrupt:
        if made is None:
            raise
        raise click.Abort(resume or made.run.id) from None


def write_json(recorded: Recording, file: IO[str]) -> None:
    """Write all findings as one JSON object."""
    findings: list[dict[str, Any]] = [
        {
            "implementation": result.implementation,
            "case": result.case,
            "check": finding.check,
            "status": finding.status,
            "reason": describe_finding(finding),
            "measured": finding.measured,
            "allowed": finding.allowed,
            "warnings": list(map(describe_reason, finding.warnings)),
            "reproduce": format_reproduce_line(result.implementation, result.case, finding.check),
        }
        for result in recorded.list_results()
        for finding in result.findings
    ]
    # Implementations whose timed calls all had the same input values, so that they may have kept results.
    fixed = sorted(
        {one.implementation for one in recorded.list_results() if one.timing and one.timing.values == "fixed"}
    )
    # msgspec writes NaN and infinity, which JSON cannot represent, as null.
    encoded = msgspec.json.encode({"schema": SCHEMA, "run": recorded.run, "fixed_values": fixed, "findings": findings})
    file.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def _make_job(threads: int | None) -> Job:
    """Return the job of the command that runs, with the number of threads of this run; an empty one if none runs."""
    context = click.get_current_context(silent=True)
    if context is None:
        return Job()
    return make_job(context.command.name or "", context.params | {"threads": threads})


def _format_command(threads: int | None) -> str:
    """Return the command line without the folders of paths: a folder could reveal a user name.

    If the command line has several numbers of threads, it gets the number of this run only.
    """
    words = sys.argv[1:]
    if threads is not None:
        lists = [i for i, (option, _) in enumerate(pairwise(words), start=1) if option == "--threads"]
        words = [str(threads) if i in lists else word for i, word in enumerate(words)]
        words = [f"--threads={threads}" if word.startswith("--threads=") else word for word in words]
    return format_command(words)
