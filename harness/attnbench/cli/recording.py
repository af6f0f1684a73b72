"""A run while it is recorded: each result is appended to the run's file as soon as it is known."""

import contextlib
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import click
import msgspec

from attnbench.analysis.coverage import count_checked, describe_few, list_coverage_lines
from attnbench.cases import digest
from attnbench.cli.errors import INTERRUPTED, USAGE
from attnbench.plugins.registry import display_name
from attnbench.records.environment import check_torch_version, describe_machine, find_commit, find_versions
from attnbench.records.run_file import (
    ResultsError,
    RunFile,
    find_runs,
    join_results,
    merge_runs,
    read_run,
    sort_results,
)
from attnbench.records.types import (
    FAILURES,
    SCHEMA,
    Ceiling,
    Completion,
    End,
    Planned,
    Result,
    Resumption,
    Run,
    format_reproduce_line,
)
from attnbench.runner import Session

__all__ = ["INCONCLUSIVE", "Recording", "list_coverage", "recording", "strip_folder", "write_json"]

FAILED, INCONCLUSIVE = 1, 3


@dataclass(slots=True)
class Recording:
    """A run, the file that stores it, and the results so far by implementation and case."""

    run: Run
    file: RunFile
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)
    # What each implementation declared about the suite, and its further cases; the key is the display name.
    completions: dict[str, Completion] = field(default_factory=dict)
    # Whether the run is of a whole suite. The verdict on an implementation then needs ``FEWEST_CHECKED`` checked cases.
    whole: bool = False
    # Exit code that follows from the results, which the command sets when all results are there.
    exit_code: int = 0

    def add_completion(self, completion: Completion) -> None:
        """Store a completion, unless the same completion is stored already."""
        own = replace(completion, run=self.run.id)
        if self.completions.get(own.implementation) != own:
            self.file.append(own)
            self.completions[own.implementation] = own

    def add_ceiling(self, ceiling: Ceiling) -> None:
        """Store a ceiling: the highest rates measured on this machine."""
        self.file.append(ceiling)
        self.ceilings.append(ceiling)

    def add(self, result: Result) -> None:
        """Store a result, and join it to the earlier result of the same implementation and case, if there is one."""
        self.file.append(result)
        key = (result.implementation, result.case)
        self.results[key] = join_results(self.results[key], result) if key in self.results else result

    def end(self, outcome: Literal["finished", "interrupted", "error"], exit_code: int) -> None:
        """Store how and when the run ended, as its last record."""
        self.file.append(End(run=self.run.id, time=_format_now(), outcome=outcome, exit_code=exit_code))

    def list_results(self) -> list[Result]:
        """Return the results in the order of the run's implementations."""
        return sort_results(self.run, self.results.values())

    def find_undecided(self) -> dict[str, str]:
        """Return the reason for each implementation on which too few cases were checked for a verdict, by display name.

        The mapping is empty if the run is not of a whole suite.
        """
        if not self.whole:
            return {}
        own = [result for result in self.results.values() if result.suite == self.run.suite]
        names = dict.fromkeys((*self.run.implementations, *(result.implementation for result in own)))
        reasons = {name: describe_few(count_checked(r for r in own if r.implementation == name)) for name in names}
        return {name: reason for name, reason in reasons.items() if reason}

    def choose_exit_code(self, asked: Sequence[str]) -> int:
        """Return 1 after a failure, 3 if there is no verdict on an implementation, else 0.

        There is no verdict if no finding passed or failed as expected, or if too few cases of a whole suite were
        checked. Only the implementations in ``asked`` can cause a 3.
        """
        statuses: dict[str, set[str]] = {display_name(name): set() for name in asked}
        for result in self.results.values():
            statuses.setdefault(result.implementation, set()).update(f.status for f in result.findings)
        if any(found & FAILURES for found in statuses.values()):
            return FAILED
        held, undecided = {"passed", "expected_failure"}, self.find_undecided()
        decided = (statuses[name] & held and name not in undecided for name in map(display_name, asked))
        return 0 if all(decided) else INCONCLUSIVE


def list_coverage(recorded: Recording) -> list[str]:
    """Return lines about what the suite's checks covered on each implementation; timed cases do not count."""
    own = [result for result in recorded.list_results() if result.suite == recorded.run.suite]
    return list(list_coverage_lines(own, recorded.completions))


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
    """Yield a ``Recording`` that stores to a new run file, or to the file of the run to resume.

    ``resume`` is the id or the file of the run to resume, or None for a new run. ``whole`` says
    whether the run is of a whole suite. ``planned`` has the number of cases to check and to time for each
    implementation, by display name; None if the cases are chosen during the run. When the context ends, the end of the
    run is stored.

    Raises: ResultsError where the run to resume is of another suite or machine.
    """
    if warning := check_torch_version(session.libraries.torch):
        click.echo(f"warning: {warning}", err=True)
    if resume is not None:
        (path,) = find_runs(results, [resume])
        before = read_run(path)
        if suite not in (before.run.suite, "") or before.run.machine.name != describe_machine().name:
            raise ResultsError(
                f"--resume: {resume} is a run of suite {before.run.suite} on {before.run.machine.name}; "
                "resume it with the same suite on the same machine"
            )
        kept = {(r.implementation, r.case): r for r in merge_runs([before])}
        with RunFile.resume(path) as file, _name_interrupted_run(resume):
            file.append(Resumption(run=before.run.id, time=_format_now()))
            made = Recording(
                run=before.run, file=file, results=kept, ceilings=list(before.ceilings),
                completions={one.implementation: one for one in before.completions}, whole=whole,
            )  # fmt: skip
            with _storing_end(made):
                yield made
        return
    now = datetime.now(UTC)
    run = Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        time=now.isoformat(timespec="seconds"),
        command=_format_command(session.limits.threads),
        machine=describe_machine(),
        versions=find_versions() | {"torch": session.libraries.torch},
        threads=session.limits.threads or session.libraries.threads,
        commit=find_commit(Path(__file__).parent),
        suite=suite,
        suite_digest=digest(cases),
        implementations=tuple(display_name(name) for name in implementations),
        sources={
            display_name(name): session.declared[name].sources.digest
            for name in implementations
            if name in session.declared
        },
        planned=dict(planned or {}),
    )
    with RunFile.create(results, run) as file, _name_interrupted_run(run.id):
        made = Recording(run=run, file=file, whole=whole)
        with _storing_end(made):
            yield made


@contextlib.contextmanager
def _storing_end(recorded: Recording) -> Iterator[None]:
    """Store the end of the run when the context ends, whatever ended it."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        # The error that ended the run is what the user must see, rather than that the run's end could not be stored.
        with contextlib.suppress(ResultsError):
            recorded.end(*(("interrupted", INTERRUPTED) if interrupted else ("error", USAGE)))
        raise
    recorded.end("finished", recorded.exit_code)


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _name_interrupted_run(run: str) -> Iterator[None]:
    """Turn KeyboardInterrupt into an Abort that carries the id of the run."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.Abort(run) from None


def write_json(recorded: Recording, file: IO[str]) -> None:
    """Write all findings as one JSON object."""
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


def _format_command(threads: int | None) -> str:
    """Return the command line without the folders of paths: a folder could reveal a user name.

    If the command line has several numbers of threads, it gets the number of this run only.
    """
    words = [strip_folder(word) for word in sys.argv[1:]]
    if threads is not None:
        lists = [i for i, (option, _) in enumerate(pairwise(words), start=1) if option == "--threads"]
        words = [str(threads) if i in lists else word for i, word in enumerate(words)]
        words = [f"--threads={threads}" if word.startswith("--threads=") else word for word in words]
    return shlex.join(["attnbench", *words])


def strip_folder(word: str) -> str:
    """Return a word of a command line; a path outside the working directory loses its folders."""
    option, equals, value = word.partition("=")
    value = value or option
    if value.rpartition(":")[0].endswith(".py"):
        return display_name(value)
    if not Path(value).is_absolute() and ".." not in Path(value).parts:
        return word
    return f"{option}={Path(value).name}" if equals else Path(value).name
