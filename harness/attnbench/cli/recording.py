"""A run being written: its file grows by one line as each result is known."""

import contextlib
import secrets
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from attnbench.cases import digest
from attnbench.plugins.registry import shown
from attnbench.records.environment import commit, machine, torch_warning, versions
from attnbench.records.run_file import ResultsError, RunFile, find, in_order, joined, merged, read
from attnbench.records.types import FAILURES, SCHEMA, Ceiling, Result, Run, reproduce_line
from attnbench.runner import Session

__all__ = ["Recording", "recording", "write_json"]

FAILED, INCONCLUSIVE = 1, 3


@dataclass(slots=True)
class Recording:
    """A run, its file, and its results so far by implementation and case."""

    run: Run
    file: RunFile
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)

    def keep(self, ceiling: Ceiling) -> None:
        """Store a ceiling."""
        self.file.append(ceiling)
        self.ceilings.append(ceiling)

    def add(self, result: Result) -> None:
        """Store a result; it joins an earlier one of the same implementation and case."""
        self.file.append(result)
        key = (result.implementation, result.case)
        self.results[key] = joined(self.results[key], result) if key in self.results else result

    def told(self) -> list[Result]:
        """Results in the order in which the implementations were asked for."""
        return in_order(self.run, self.results.values())

    def exit_code(self, asked: Sequence[str]) -> int:
        """0 if everything held, 1 after a failure, 3 where nothing of an implementation asked for was checked."""
        statuses: dict[str, set[str]] = {shown(name): set() for name in asked}
        for result in self.results.values():
            statuses.setdefault(result.implementation, set()).update(f.status for f in result.findings)
        if any(found & FAILURES for found in statuses.values()):
            return FAILED
        held = {"passed", "expected_failure"}
        return 0 if all(statuses[shown(name)] & held for name in asked) else INCONCLUSIVE


@contextlib.contextmanager
def recording(
    session: Session,
    *,
    results: Path,
    suite: str,
    cases: Sequence[str],
    implementations: Sequence[str],
    resume: str | None,
) -> Iterator[Recording]:
    """A new run file, or one that is gone on with."""
    if warning := torch_warning(session.libraries["torch"]):
        click.echo(f"warning: {warning}", err=True)
    if resume is not None:
        (path,) = find(results, [resume])
        before = read(path)
        if suite not in (before.run.suite, "") or before.run.machine.name != machine().name:
            raise ResultsError(
                f"--resume: {resume} is a run of suite {before.run.suite} on {before.run.machine.name}; "
                "go on with the same suite on the same machine"
            )
        kept = {(r.implementation, r.case): r for r in merged([before])}
        with RunFile.resume(path) as file, _named(resume):
            yield Recording(run=before.run, file=file, results=kept, ceilings=list(before.ceilings))
        return
    now = datetime.now(UTC)
    run = Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        time=now.isoformat(timespec="seconds"),
        command=_command(),
        machine=machine(),
        versions=versions() | {"torch": session.libraries["torch"]},
        threads=session.limits.threads or session.libraries["threads"],
        commit=commit(Path(__file__).parent),
        suite=suite,
        suite_digest=digest(cases),
        implementations=tuple(shown(name) for name in implementations),
    )
    with RunFile.create(results, run) as file, _named(run.id):
        yield Recording(run=run, file=file)


@contextlib.contextmanager
def _named(run: str) -> Iterator[None]:
    """Let an interruption say which run it was."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort(run) from None


def write_json(recorded: Recording, file: IO[str]) -> None:
    """All findings as one JSON object."""
    findings: list[dict[str, Any]] = [
        {
            "implementation": result.implementation,
            "case": result.case,
            "check": finding.check,
            "status": finding.status,
            "reason": finding.reason,
            "measured": finding.measured,
            "allowed": finding.allowed,
            "warnings": list(finding.warnings),
            "reproduce": reproduce_line(result.implementation, result.case, finding.check),
        }
        for result in recorded.told()
        for finding in result.findings
    ]
    # msgspec writes NaN and infinity, which JSON has no words for, as null.
    encoded = msgspec.json.encode({"schema": SCHEMA, "run": recorded.run, "findings": findings})
    file.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def _command() -> str:
    """What was typed, without folders that could tell a host or a user."""
    return shlex.join(["attnbench", *(_without_folder(word) for word in sys.argv[1:])])


def _without_folder(word: str) -> str:
    option, equals, value = word.partition("=")
    value = value or option
    if value.rpartition(":")[0].endswith(".py"):
        return shown(value)
    if not Path(value).is_absolute() and ".." not in Path(value).parts:
        return word
    return f"{option}={Path(value).name}" if equals else Path(value).name
