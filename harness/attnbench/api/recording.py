"""A run while it is recorded: each result is appended to the run's file as soon as it is known."""

import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from attnbench.analysis.coverage import count_checked
from attnbench.cases import digest
from attnbench.jobs.command_lines import format_job
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import RecordedJob
from attnbench.jobs.stored import store_job
from attnbench.plugins.registry import display_name, find_distribution
from attnbench.records.environment import (
    check_torch_version,
    describe_machine,
    find_checkout,
    find_commit,
    find_node,
    find_versions,
)
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE, INTERRUPTED, USAGE
from attnbench.records.run_file import (
    ResultsError,
    RunFile,
    StoredRun,
    join_results,
    merge_runs,
    sort_results,
)
from attnbench.records.types import (
    FAILURES,
    Ceiling,
    Completion,
    End,
    Planned,
    Result,
    Resumption,
    Run,
    Samples,
    StoredJob,
)
from attnbench.runner import Session
from attnbench.words.coverage import describe_few

__all__ = ["Recording", "record"]

LOGGER = logging.getLogger(__name__)
# Distribution of attnbench itself.
OWN = "attnbench"


@dataclass(slots=True)
class Recording:
    """A run, the file that stores it, and the results so far by implementation and case."""

    run: Run
    file: RunFile
    results: dict[tuple[str, str], Result] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)
    # What each implementation declared about the suite, and its supplementary cases; the key is the display name.
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
        """Store a result, and join it to the earlier result of the same implementation and case, if there is one.

        Of a timing, the samples that are not in the file are stored.
        """
        key = (result.implementation, result.case)
        before = self.results.get(key)
        stored = before.timing if before else None
        if before is None or result.timing is None or replace(before, timing=None) != replace(result, timing=None):
            self.file.append(replace(result, timing=None))
            stored = None
        if result.timing is not None and result.timing != stored:
            first, new = result.timing.select_new(stored)
            self.file.append(
                Samples(
                    run=self.run.id, implementation=result.implementation, case=result.case, first=first, timing=new
                )
            )
        self.results[key] = join_results(before, result) if before else result

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


@contextlib.contextmanager
def record(
    session: Session,
    *,
    job: RecordedJob,
    suite: str,
    cases: Sequence[str],
    implementations: Sequence[str],
    resumed: StoredRun | None = None,
    whole: bool = False,
    planned: Mapping[str, Planned] | None = None,
    path: Path | None = None,
    command: str | None = None,
    stored: StoredJob | None = None,
) -> Iterator[Recording]:
    """Yield a ``Recording`` that stores to a new run file, or to the file of the run to resume.

    ``resumed`` is the run to resume; None: a new run. ``whole`` says whether the run is of a whole suite. ``planned``
    has the number of cases to check and to time for each implementation, by display name; None if the cases are chosen
    during the run. ``path`` is the file of a new run; None: it is named after the machine and the run. ``command`` and
    ``stored`` are what the run stores of its command line and of its job; None: those of ``job``. When the context
    ends, the end of the run is stored.

    Raises: JobError where the run to resume is of another suite or machine.
    """
    if warning := check_torch_version(session.libraries.torch):
        LOGGER.warning("warning: %s", warning)
    if resumed is not None:
        before = resumed
        if suite not in (before.run.suite, "") or before.run.machine.name != describe_machine().name:
            raise JobError(
                "resume", "{run} is a run of suite {suite} on {machine}; resume it with the same suite on the same "
                "machine", run=before.run.id, suite=before.run.suite, machine=before.run.machine.name,
            )  # fmt: skip
        changed = _find_changed(session, before.run, implementations)
        kept = {
            (r.implementation, r.case): replace(r, timing=None) if r.implementation in changed else r
            for r in merge_runs([before])
        }
        with RunFile.resume(before.path) as file:
            file.append(Resumption(run=before.run.id, time=_format_now()))
            made = Recording(
                run=before.run, file=file, results=kept, ceilings=list(before.ceilings),
                completions={one.implementation: one for one in before.completions}, whole=whole,
            )  # fmt: skip
            with _storing_end(made):
                yield made
        return
    # Among 1,000 tasks of a sweep that start in one second, two have the same 4 bytes with a probability of 0.01 %.
    stored = replace(stored or store_job(job), planned=dict(planned or {}))
    run = _describe_run(
        session, command or format_job(job), stored, suite, cases, implementations, id_bytes=2 if path is None else 4
    )
    with RunFile.create(job.results, run, path) as file:
        made = Recording(run=run, file=file, whole=whole)
        with _storing_end(made):
            yield made


def _describe_run(
    session: Session,
    command: str,
    job: StoredJob,
    suite: str,
    cases: Sequence[str],
    implementations: Sequence[str],
    *,
    id_bytes: int,
) -> Run:
    """Return the description of a run that begins now; its id ends in ``id_bytes`` random bytes."""
    now = datetime.now(UTC)
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(id_bytes)}",
        time=now.isoformat(timespec="seconds"),
        command=command,
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
        commits={
            display_name(name): _find_commit(session, name) for name in implementations if _is_foreign(session, name)
        },
        job=job,
        list_digest=digest(session.whole_lists) if session.whole_lists else "",
        node=find_node(),
    )


def _is_foreign(session: Session, name: str) -> bool:
    """Whether an implementation was loaded, and attnbench does not bring it."""
    return name in session.declared and find_distribution(name) != OWN


def _find_commit(session: Session, name: str) -> str:
    """Return the commit of an implementation's files, with ``+`` if they differ from it; empty outside a checkout."""
    sources = session.declared[name].sources
    commit, changed = find_checkout(Path(sources.folder), sources.files) or ("", False)
    return commit + ("+" if changed else "")


def _find_changed(session: Session, run: Run, implementations: Sequence[str]) -> frozenset[str]:
    """Return the implementations whose code, or whose libraries, changed since a run began, by display name.

    They are timed again, so that no timing is of two versions.
    """
    if run.versions != find_versions() | {"torch": session.libraries.torch}:
        return frozenset(map(display_name, implementations))
    loaded = {display_name(name): session.declared[name] for name in implementations if name in session.declared}
    return frozenset(name for name, own in loaded.items() if own.sources.digest != run.sources.get(name))


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
