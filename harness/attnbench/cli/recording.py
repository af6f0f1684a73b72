"""A command's run: recorded with its command line, and written as JSON."""

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import click
import msgspec

from attnbench.api.recording import Recording, record
from attnbench.cli.job_options import list_outputs
from attnbench.jobs.command_lines import format_reporting, format_resuming
from attnbench.jobs.job import RecordedJob
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE
from attnbench.records.run_file import StoredRun
from attnbench.records.types import SCHEMA, Result, format_reproduce_line
from attnbench.runner import Session
from attnbench.words.coverage import describe_asking, describe_changes, list_coverage_lines
from attnbench.words.findings import describe_finding, describe_reason

__all__ = [
    "FAILED",
    "INCONCLUSIVE",
    "Recording",
    "list_coverage",
    "list_notes",
    "print_stored_path",
    "recording",
    "write_json",
]


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
    session: Session, *, job: RecordedJob, resumed: StoredRun | None = None, **settings: Any
) -> Iterator[Recording]:
    """Yield a ``Recording`` as ``record`` does, of a command that can be resumed.

    Raises: JobError where the run to resume is of another suite or machine; Abort after an interrupt, with the command
    lines that resume the run and that report on it.
    """
    made = None
    try:
        with record(session, job=job, resumed=resumed, **settings) as made:
            yield made
    except KeyboardInterrupt:
        if made is None:
            raise
        run = str(click.get_current_context().params.get("resume") or made.run.id)
        raise click.Abort(format_resuming(job, run, list_outputs()), format_reporting(job, run)) from None


def print_stored_path(recorded: Recording) -> None:
    """Print the path of the run's file to standard error."""
    click.echo(f"stored in {recorded.file.path}", err=True)


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
