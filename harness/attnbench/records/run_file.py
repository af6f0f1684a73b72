"""Run files: JSON lines, append-only. Only this module knows the format.

``<results>/<machine>/<run>.jsonl`` has a Run on its first line, and a Result, Samples, a Ceiling, a Completion, a
Resumption or an End on each further line. Every line is an object whose first field is ``"record"`` ("run", "result",
"samples", "ceiling", "completion", "resumption" or "end"). A killed process loses at most the line that it was writing,
and the End.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from attnbench.cases import CaseId
from attnbench.records.types import (
    FAILURES,
    PERF,
    SCHEMA,
    WITHOUT_CASES,
    Ceiling,
    Completion,
    End,
    Finding,
    Planned,
    Record,
    Result,
    Resumption,
    Run,
    Samples,
    StoredJob,
    Timing,
    explain_untimed,
)
from attnbench.records.unknown_facts import decode_tolerantly

__all__ = [
    "PARSED",
    "ResultsError",
    "RunFile",
    "StoredRun",
    "find_empty_runs",
    "find_runs",
    "find_runs_since",
    "format_line",
    "has_failure",
    "identify_code",
    "join_results",
    "merge_runs",
    "read_first_line",
    "read_lines",
    "read_run",
    "read_runs_of",
    "sort_results",
]

# The records after the first line of a file, and those that have measurements.
Further = Result | Samples | Ceiling | Completion | Resumption | End
Measured = Result | Samples
# Returns the record that is kept in place of one that was read from a line: its first byte and number of bytes.
Change = Callable[[Measured, tuple[int, int]], Measured]
_OfRun = TypeVar("_OfRun", bound=Further)


class ResultsError(Exception):
    """Raised where a run cannot be stored, found or read; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run that was read from its file, and messages about lines that could not be read."""

    run: Run
    results: tuple[Result, ...]
    path: Path
    ceilings: tuple[Ceiling, ...] = ()
    # The last completion of each implementation.
    completions: tuple[Completion, ...] = ()
    # One message for each line of the file that could not be read, or that was left out.
    problems: tuple[str, ...] = ()
    # Number of such lines after the last resumption; results that were lost before the resumption were made again.
    lost_lines: int = 0
    # Whether the last line was being written when the process ended.
    ends_in_line: bool = False
    # The end of the run, if it is the last record of the file; None in older runs, and if the run was cut.
    end: End | None = None
    # Whether the run was read by ``compact_reading``: findings that passed have no measured and no allowed error.
    compact: bool = False
    # Number of the last line of the file with a timing, by implementation and case.
    timed_lines: Mapping[tuple[str, str], int] = field(default_factory=dict)


class RunFile:
    """A run file, open for appending."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self._stream = stream

    @classmethod
    def create(cls, results: Path, run: Run, path: Path | None = None) -> Self:
        """Create the file of a run below the folder ``results``, and write the run to its first line.

        ``path`` is the path of the file; None: it is named after the machine and the run.

        Raises: ResultsError where the folder cannot be written.
        """
        path = path or results / run.machine.name / f"{run.id}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = cls(path, path.open("xb"))
        except OSError as error:
            raise ResultsError(
                f"cannot write results to {results}: {error.strerror}; name another folder with --results DIR"
            ) from error
        made._lock()
        made._write(run)
        return made

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open an existing file; a truncated last line gets a line break, so that new records start on new lines.

        Raises: ResultsError where the file cannot be written.
        """
        try:
            whole = path.read_bytes().endswith(b"\n")
            made = cls(path, path.open("ab"))
        except OSError as error:
            raise ResultsError(f"cannot append to {path}: {error.strerror}") from error
        made._lock()
        if not whole:
            made._stream.write(b"\n")
        return made

    def _lock(self) -> None:
        """Lock the file, so that no other process writes to it while it is open.

        Raises: ResultsError where another process holds the lock.
        """
        try:
            import fcntl
        except ImportError:  # Windows has no fcntl; runs are only read there, never written
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stream.close()
            raise ResultsError(f"{self.path} is being written by another process: wait until it is done") from error
        except OSError:  # the file system has no locks: go on without a lock
            pass

    def append(self, record: Further) -> None:
        """Write a record as a line of the file; return when the line is on disk."""
        self._write(record)

    def _write(self, record: Record) -> None:
        try:
            self._stream.write(format_line(record))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise ResultsError(
                f"cannot write to {self.path}: {error.strerror}; the records written so far are kept"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing the file writes again what could not be written before, and may raise an OSError again. The error is
        # ignored here, because ``append`` has already raised it.
        with contextlib.suppress(OSError):
            self._stream.close()


def format_line(record: Record) -> bytes:
    """Return the line of a run file that stores this record, with its line break."""
    kind = type(record).__name__.lower()
    plain = _shorten(record) if isinstance(record, Samples) else record
    # An encoded record is an object with at least one field, so the kind is put after its opening brace.
    return f'{{"record":"{kind}",'.encode() + msgspec.json.encode(plain)[1:] + b"\n"


def _shorten(samples: Samples) -> dict[str, Any]:
    """Return the fields of samples, without the fields of the timing that have their defaults."""
    named = {one.name: getattr(samples, one.name) for one in fields(samples)}
    return named | {"timing": _drop_defaults(samples.timing)}


def _drop_defaults(timing: Timing) -> dict[str, Any]:
    kept = {one.name: value for one in fields(timing) if (value := getattr(timing, one.name)) != one.default}
    return kept | ({"twin": _drop_defaults(timing.twin)} if timing.twin else {})


def read_run(path: Path, change: Change | None = None) -> StoredRun:
    """Read a run file; the field ``problems`` of the result has a message for each line that cannot be read.

    ``change`` makes of each result, and of the samples of each process, the record that is kept.

    Raises: ResultsError where the file contains no run, or a run of a newer schema.
    """
    reading = _Reading(path, change)
    for number, start, line in _locate_lines(path):
        reading.read_line(number, start, line)
    return reading.make_stored_run()


def read_first_line(path: Path) -> Run:
    """Return the run of a run file, and read no more of the file than its first line.

    Raises: ResultsError where the first line is no run, or a run of a newer schema.
    """
    for _, line in read_lines(path):
        try:
            if _KIND.decode(line).record == "run":
                return _parse_run(line, path)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
        break
    raise ResultsError(f"{path} contains no run: it is not a run file, or its first line is lost")


@dataclass(slots=True)
class _Reading:
    """A run file while it is read, line by line."""

    path: Path
    change: Change | None = None
    run: Run | None = None
    records: list[Further] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    timed_lines: dict[tuple[str, str], int] = field(default_factory=dict)
    # Place in ``records`` of the last result of each call that a profile may time, by implementation and case.
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    # Whether the file has samples that were stored process by process.
    sampled: bool = False
    # Number of problems when the run was last resumed.
    before_resumption: int = 0
    # The End that was just read; None after any other line.
    end: End | None = None
    # Whether the last line could not be read and has no line break: it was being written when the process ended.
    ends_in_line: bool = False

    def read_line(self, number: int, start: int, line: bytes) -> None:
        """Read a line that is not empty, with its line break; ``start`` is the place of its first byte.

        Raises: ResultsError where the line is a run of a newer schema.
        """
        before, self.end = len(self.problems), None
        try:
            self._parse(number, (start, len(line)), line.strip())
        # A line may nest objects deeper than the decoder follows: RecursionError.
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.problems.append(f"{self.path.name} line {number} cannot be read and is left out: {error}")
        self.ends_in_line = len(self.problems) > before and not line.endswith(b"\n")

    def _parse(self, number: int, place: tuple[int, int], line: bytes) -> None:
        kind = _KIND.decode(line).record
        if kind == "run" and self.run is None:
            self.run = _parse_run(line, self.path)
        elif kind == "run":
            self.problems.append(
                f"{self.path.name} line {number}: a second run and its results are left out: "
                "a run file contains only one run"
            )
        elif isinstance(kind, str) and kind in PARSED:
            record = _require_run(PARSED[kind](line), self.run)
            if isinstance(record, Result | Samples):
                record = self.change(record, place) if self.change else record
                if isinstance(record, Samples):
                    self._add_samples(record)
                if record.timing is not None:
                    self.timed_lines[record.implementation, record.case] = number
            self._add(record)
        else:
            self.problems.append(f"{self.path.name} line {number}: unknown record {kind!r}")

    def _add_samples(self, samples: Samples) -> None:
        """Add the samples of a call to its result.

        Raises: ValueError where the call has no result, or one that allows no timing.
        """
        place = self.places.get((samples.implementation, samples.case))
        result = None if place is None else self.records[place]
        if place is None or not isinstance(result, Result) or result.untimed is not None:
            raise ValueError("the samples belong to no result that may be timed")
        timing, before = samples.timing, result.timing
        joined = before.join(timing, samples.first) if before else timing.shift(samples.first)
        self.records[place], self.sampled = replace(result, timing=joined), True

    def _add(self, record: Further) -> None:
        if isinstance(record, Result) and record.suite == PERF:
            key = record.implementation, record.case
            if record.untimed is not None and key in self.places:
                self._drop_timing(key)
            self.places[key] = len(self.records)
        if not isinstance(record, Samples):
            self.records.append(record)
        if isinstance(record, End):
            self.end = record
        elif isinstance(record, Resumption):
            self.before_resumption = len(self.problems)

    def _drop_timing(self, key: tuple[str, str]) -> None:
        """Drop the timing of a call whose implementation is excluded from timing by a later result."""
        place = self.places[key]
        before = self.records[place]
        if isinstance(before, Result) and before.timing is not None:
            self.records[place] = replace(before, timing=None)
            del self.timed_lines[key]

    def make_stored_run(self) -> StoredRun:
        """Return the run that was read.

        Raises: ResultsError where no run was read.
        """
        if self.run is None:
            raise ResultsError(f"{self.path} contains no run: it is not a run file, or its first line is lost")
        completions = {one.implementation: one for one in self.records if isinstance(one, Completion)}
        results = [one for one in self.records if isinstance(one, Result)]
        finished = self.end is not None and self.end.outcome == "finished"
        return StoredRun(
            run=self.run,
            results=tuple(_fill_timings(results) if self.sampled and not finished else results),
            ceilings=tuple(one for one in self.records if isinstance(one, Ceiling)),
            completions=tuple(completions.values()),
            path=self.path,
            problems=tuple(self.problems),
            lost_lines=len(self.problems) - self.before_resumption,
            ends_in_line=self.ends_in_line,
            end=self.end,
            timed_lines=self.timed_lines,
        )


def _fill_timings(results: Sequence[Result]) -> Iterator[Result]:
    """Yield the results of a run that ended while the samples of a process were stored.

    If samples of some implementations are missing, the timings of these get a process without samples.
    """
    processes: dict[str, int] = {}
    for result in results:
        if result.timing is not None:
            processes[result.case] = max(processes.get(result.case, 0), result.timing.processes)
    for result in results:
        if result.timing is not None and result.timing.processes == processes[result.case] - 1:
            yield replace(result, timing=result.timing.fill(processes[result.case]))
        else:
            yield result


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line that is not empty, so that only one line is held at a time."""
    yield from ((number, line) for number, _, line in _locate_lines(path))


def _locate_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the place of the first byte and the text of each line that is not empty."""
    start = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, start, line
                start += len(line)
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error


class _Kind(msgspec.Struct):
    """The first field of each line of a run file; the other fields are decoded when their type is known."""

    record: Any = None


_KIND = msgspec.json.Decoder(_Kind)
_RUN = msgspec.json.Decoder(Run)
_RESULT = msgspec.json.Decoder(Result)


def _parse_run(line: bytes, path: Path) -> Run:
    """Decode a run; before schema 8, what was planned was no part of a job.

    Raises: ResultsError where the schema of the run is newer than ``SCHEMA``.
    """
    stored = msgspec.json.decode(line, type=dict[str, Any])
    schema = stored.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ResultsError(
            f"{path} was written by a newer attnbench (schema {schema}); "
            f"this version reads schemas up to {SCHEMA}: upgrade attnbench"
        )
    run = _RUN.decode(line)
    if "job" in stored:
        return run
    return replace(run, job=StoredJob(planned=msgspec.convert(stored.get("planned", {}), dict[str, Planned])))


def _require_run(record: _OfRun, run: Run | None) -> _OfRun:
    """Return a record if it belongs to the run of its file.

    Raises: ValueError where the record belongs to another run.
    """
    if run is not None and record.run != run.id:
        raise ValueError(f"the record belongs to run {record.run!r}, but its file contains run {run.id!r}")
    return record


def _parse_result(line: bytes) -> Result:
    result = decode_tolerantly(line, _RESULT)
    CaseId.parse(result.case)
    return result


# How each kind of record after the first line is decoded.
PARSED: dict[str, Callable[[bytes], Further]] = {
    "result": _parse_result,
    "samples": msgspec.json.Decoder(Samples).decode,
    "ceiling": msgspec.json.Decoder(Ceiling).decode,
    "completion": partial(decode_tolerantly, decoder=msgspec.json.Decoder(Completion)),
    "resumption": msgspec.json.Decoder(Resumption).decode,
    "end": msgspec.json.Decoder(End).decode,
}


def find_runs(results: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of the runs in ``names``, which are run ids or paths.

    If ``names`` is empty, return the file of the newest run that has a result.

    Raises: ResultsError if a run is not found.
    """
    stored = _list_stored(results)
    if not names:
        with_results = [path for path in stored.values() if _has_results(path)]
        if not with_results:
            raise ResultsError(
                f"no run in {results}: make one with attnbench run, or name the folder with --results DIR"
            )
        return [with_results[-1]]
    return [_find_run(results, stored, name) for name in names]


def find_runs_since(results: Path, name: str) -> list[Path]:
    """Return the file of the run ``name`` (an id or a path), and of each newer run below ``results`` with a result.

    Raises: ResultsError if the run is not found.
    """
    stored = _list_stored(results)
    first = _find_run(results, stored, name)
    return [first, *(path for id_, path in stored.items() if id_ > first.stem and _has_results(path))]


def read_runs_of(results: Path, suite: str) -> Iterator[StoredRun]:
    """Yield the runs of a suite below ``results``, the oldest first; of other files only the first line is read.

    Files that this version cannot read are left out.
    """
    for path in _list_stored(results).values():
        with contextlib.suppress(ResultsError):
            if _is_run(path) and read_first_line(path).suite == suite:
                yield read_run(path)


def find_empty_runs(results: Path, newest: Path) -> list[str]:
    """Return the ids of the runs below ``results`` that are newer than the run ``newest`` and have no result."""
    later = (path for id_, path in _list_stored(results).items() if id_ > newest.stem)
    return [path.stem for path in later if _is_run(path) and not _has_results(path)]


def _list_stored(results: Path) -> dict[str, Path]:
    """Return the run files below ``results`` by the id of their run, the oldest first."""
    return {path.stem: path for path in sorted(results.glob("*/*.jsonl"), key=lambda path: path.stem)}


def _is_run(path: Path) -> bool:
    """Whether the first line of a file is a run."""
    try:
        with path.open("rb") as lines:
            return bool(_KIND.decode(lines.readline()).record == "run")
    except (msgspec.MsgspecError, OSError, ValueError, RecursionError):
        return False


def _has_results(path: Path) -> bool:
    """Whether the first line of a file is a run, and a further line is a result."""
    if not _is_run(path):
        return False
    with path.open("rb") as lines:
        for line in lines:
            try:
                kind = _KIND.decode(line).record
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            if kind == "result":
                return True
    return False


def _find_run(results: Path, stored: dict[str, Path], name: str) -> Path:
    if name in stored:
        return stored[name]
    if Path(name).is_file():
        return Path(name)
    near = get_close_matches(name, stored, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ResultsError(f"no run {name!r} in {results}{hint}")


def merge_runs(runs: Iterable[StoredRun]) -> list[Result]:
    """Return one result per machine, implementation and case from several runs: the latest findings and measurements.

    Measurements with different numbers of threads are separate results. The results of a search for the
    max length, and of measured invariance, are also separate.

    Two results of the same run are joined by ``join_results``. A profile stores two results of a case: one after the
    checks and the memory measurement, and one after timing.

    Two results of different runs are not joined, because a measurement belongs to the run in which it was made. The
    later result is kept. If both have the same findings and only the earlier result has measurements, the earlier
    result is kept. If two nodes ran the same code, a result with a failure is kept before a result without, so that one
    node never hides what fails on another.
    """
    latest: dict[tuple[object, ...], Result] = {}
    of_id: dict[str, Run] = {}
    for stored in runs:
        of_id[stored.run.id] = stored.run
        own: dict[tuple[object, ...], Result] = {}
        for result in sort_results(stored.run, stored.results):
            measures = (result.suite, stored.run.threads) if result.suite in {PERF, *WITHOUT_CASES} else ()
            key = (stored.run.machine.name, result.implementation, result.case, *measures)
            own[key] = join_results(own[key], result) if key in own else result
        # The results of one run are joined before they meet those of other runs: the first of two may lack what the
        # second has.
        for key, result in own.items():
            before = latest.get(key)
            hides = before is not None and _hides_failure(of_id[before.run], before, stored.run, result)
            if before is None or not hides:
                latest[key] = result if before is None else join_results(before, result)
    return list(latest.values())


def has_failure(result: Result) -> bool:
    """Return whether any check of a result failed."""
    return any(finding.status in FAILURES for finding in result.findings)


def identify_code(run: Run, implementation: str) -> tuple[object, ...]:
    """Return what is equal in two runs of the same code: the versions of libraries, and the hash of the sources."""
    return frozenset(run.versions.items()), run.sources.get(implementation)


def _hides_failure(one: Run, before: Result, other: Run, after: Result) -> bool:
    """Return whether a result without a failure would replace one with a failure of the same code on another node."""
    if not one.node or not other.node or one.node == other.node:
        return False
    name = after.implementation
    return has_failure(before) and not has_failure(after) and identify_code(one, name) == identify_code(other, name)


def sort_results(run: Run, results: Iterable[Result]) -> list[Result]:
    """Sort results by the order in which the run's implementations were requested, not by the order of completion."""
    places = {name: place for place, name in enumerate(run.implementations)}
    return sorted(results, key=lambda result: places.get(result.implementation, len(places)))


def join_results(before: Result, after: Result) -> Result:
    """Join two results of one implementation on one case; see ``merge_runs``.

    For two results of the same run, the later finding of each check, the later timing and the later memory are kept.
    Timing and memory are dropped if any check did not pass.
    """
    if before.run != after.run:
        same_checks = _has_same_checks(before.findings, after.findings)
        return before if same_checks and _has_measurements(before) > _has_measurements(after) else after
    after = replace(
        after,
        flop=before.flop if after.flop is None else after.flop,
        bytes=before.bytes if after.bytes is None else after.bytes,
        kernels=after.kernels or before.kernels,
    )
    findings = tuple(({f.check: f for f in before.findings} | {f.check: f for f in after.findings}).values())
    # If a resumed run could not time the case, the earlier timing is dropped. The samples of the earlier timing are
    # from other processes than the samples of the other implementations, so the times are not comparable.
    timing = after.timing or (None if after.untimed else before.timing)
    memory = after.memory or before.memory
    broken = next((f for f in findings if f.status != "passed"), None)
    if broken is None:
        return replace(after, findings=findings, timing=timing, memory=memory)
    measured = timing is not None or memory is not None
    untimed = after.untimed or (explain_untimed(broken) if measured else None)
    return replace(after, findings=findings, timing=None, memory=None, untimed=untimed)


def _has_measurements(result: Result) -> tuple[bool, bool]:
    return result.timing is not None, result.memory is not None


def _has_same_checks(one: tuple[Finding, ...], other: tuple[Finding, ...]) -> bool:
    return [(f.check, f.status) for f in one] == [(f.check, f.status) for f in other]
