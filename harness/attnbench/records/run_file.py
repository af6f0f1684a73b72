"""Run files: JSON lines, append-only. This is the only file that knows the format.

``<results>/<machine>/<run>.jsonl`` holds a Run on its first line and a Result or a Ceiling on each line after it, every
line an object with ``"record"`` ("run", "result" or "ceiling") before its fields. A kill loses at most the line being
written.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeVar

import msgspec

from attnbench.records.types import FRONTIER, PERF, SCHEMA, Ceiling, Finding, Record, Result, Run

__all__ = ["ResultsError", "RunFile", "StoredRun", "find", "in_order", "joined", "merged", "read"]

# ``operator/sizes/flags/mask=…/regime=…/seed=…/dtype/device/mode``.
CASE_SLASHES = 8
_Told = TypeVar("_Told", Result, Ceiling)


class ResultsError(Exception):
    """A run that cannot be stored, found or read; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as it was read, with what could not be read."""

    run: Run
    results: tuple[Result, ...]
    path: Path
    ceilings: tuple[Ceiling, ...] = ()
    # One line for each line of the file that is no record.
    problems: tuple[str, ...] = ()


class RunFile:
    """A run file that is open for appending."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self._stream = stream

    @classmethod
    def create(cls, results: Path, run: Run) -> Self:
        """New file for a run.

        Raises: ResultsError where the folder cannot be written.
        """
        path = results / run.machine.name / f"{run.id}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made = cls(path, path.open("xb"))
        except OSError as error:
            raise ResultsError(
                f"cannot write results to {results}: {error.strerror}; name another folder with --results DIR"
            ) from error
        made._lock()
        made._write("run", run)
        return made

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Existing file; a last line that was cut is ended, so that what follows stands on lines of its own.

        Raises: ResultsError where the file cannot be written.
        """
        try:
            whole = path.read_bytes().endswith(b"\n")
            made = cls(path, path.open("ab"))
        except OSError as error:
            raise ResultsError(f"cannot go on with {path}: {error.strerror}") from error
        made._lock()
        if not whole:
            made._stream.write(b"\n")
        return made

    def _lock(self) -> None:
        """Keep others from writing to the file as long as it is open.

        Raises: ResultsError where somebody does already.
        """
        try:
            import fcntl
        except ImportError:  # Windows, where runs are read and not made
            return
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stream.close()
            raise ResultsError(f"{self.path} is being written by another process: wait until it is done") from error
        except OSError:  # a file system without locks
            pass

    def append(self, record: Result | Ceiling) -> None:
        """Store a result or a ceiling, at once."""
        self._write("ceiling" if isinstance(record, Ceiling) else "result", record)

    def _write(self, kind: str, record: Record) -> None:
        fields: dict[str, Any] = {"record": kind} | msgspec.to_builtins(record)
        try:
            self._stream.write(msgspec.json.encode(fields) + b"\n")
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise ResultsError(f"cannot write to {self.path}: {error.strerror}; what was stored is kept") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A line that could not be written was told by ``append``; closing tries it again, and fails again.
        with contextlib.suppress(OSError):
            self._stream.close()


def read(path: Path) -> StoredRun:
    """Run file as stored; a line that cannot be read is told among the problems.

    Raises: ResultsError where there is no run in it, or one of a newer schema.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error
    run, results, ceilings, problems = None, [], [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            kind = fields.pop("record", None)
            if kind == "run" and run is None:
                run = _run(fields, path)
            elif kind == "run":
                problems.append(
                    f"{path.name} line {number}: a second run; a file holds one, so its results are left out"
                )
            elif kind == "result":
                results.append(_result(fields, run))
            elif kind == "ceiling":
                ceilings.append(_of_run(msgspec.convert(fields, Ceiling), run))
            else:
                problems.append(f"{path.name} line {number}: unknown record {kind!r}")
        except (msgspec.MsgspecError, ValueError) as error:
            problems.append(f"{path.name} line {number} cannot be read and is left out: {error}")
    if run is None:
        raise ResultsError(f"{path} holds no run: it is no run file, or its first line is lost")
    return StoredRun(run=run, results=tuple(results), ceilings=tuple(ceilings), path=path, problems=tuple(problems))


def _run(fields: dict[str, Any], path: Path) -> Run:
    """A run whose schema this version reads.

    Raises: ResultsError of a newer one.
    """
    if isinstance(fields.get("schema"), int) and fields["schema"] > SCHEMA:
        raise ResultsError(
            f"{path} was written by a newer attnbench (schema {fields['schema']}); "
            f"this one reads up to {SCHEMA}: upgrade attnbench"
        )
    return msgspec.convert(fields, Run)


def _of_run(record: _Told, run: Run | None) -> _Told:
    """A record, if it belongs to the run of its file."""
    if run is not None and record.run != run.id:
        raise ValueError(f"it belongs to run {record.run!r}, and the file holds {run.id!r}")
    return record


def _result(fields: dict[str, Any], run: Run | None) -> Result:
    result = _of_run(msgspec.convert(fields, Result), run)
    if result.case.count("/") != CASE_SLASHES:
        raise ValueError(f"{result.case!r} is no case id")
    return result


def find(results: Path, names: Sequence[str]) -> list[Path]:
    """Files of runs named by id or path; the newest one where none is named.

    Raises: ResultsError.
    """
    stored = {path.stem: path for path in sorted(results.glob("*/*.jsonl"), key=lambda path: path.stem)}
    if not names:
        telling = [path for path in stored.values() if _tells(path)]
        if not telling:
            raise ResultsError(
                f"no run in {results}: make one with attnbench run, or name the folder with --results DIR"
            )
        return [telling[-1]]
    return [_found(results, stored, name) for name in names]


def _tells(path: Path) -> bool:
    """Whether a file is a run's, and not of one that was interrupted before its first result."""
    begin, end, rest = path.read_bytes().partition(b"\n")
    try:
        fields = msgspec.json.decode(begin, type=dict[str, Any])
    except msgspec.MsgspecError:
        return False
    return fields.get("record") == "run" and bool(end) and b"\n" in rest


def _found(results: Path, stored: dict[str, Path], name: str) -> Path:
    if name in stored:
        return stored[name]
    if Path(name).is_file():
        return Path(name)
    near = get_close_matches(name, stored, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ResultsError(f"no run {name!r} in {results}{hint}")


def merged(runs: Iterable[StoredRun]) -> list[Result]:
    """Results of several runs, one per machine, implementation and case: the latest findings and measurements.

    Measurements on other numbers of threads are other results, and so is a search for the longest sequence.

    A profile stores a result as its probe ends and again once it is timed, and asks fewer checks than a conformance
    run. Two results of the same run are therefore joined: of each check the later finding stands, of timing and memory
    the later one that there is; both are dropped where any check did not hold. Between runs nothing is joined, because
    a number belongs to the run that it was measured in: the later result stands, unless its findings are the same and
    only the earlier one was measured.
    """
    latest: dict[tuple[object, ...], Result] = {}
    for stored in runs:
        for result in in_order(stored.run, stored.results):
            measures = (result.suite, stored.run.threads) if result.suite in (PERF, FRONTIER) else ()
            key = (stored.run.machine.name, result.implementation, result.case, *measures)
            before = latest.get(key)
            latest[key] = result if before is None else joined(before, result)
    return list(latest.values())


def in_order(run: Run, results: Iterable[Result]) -> list[Result]:
    """Results in the order in which a run's implementations were asked for, whichever was done first."""
    places = {name: place for place, name in enumerate(run.implementations)}
    return sorted(results, key=lambda result: places.get(result.implementation, len(places)))


def joined(before: Result, after: Result) -> Result:
    """Two results of one implementation on one case, as one."""
    if before.run != after.run:
        kept = _same_checks(before.findings, after.findings) and _measured(before) > _measured(after)
        return before if kept else after
    after = replace(
        after,
        flop=before.flop if after.flop is None else after.flop,
        bytes=before.bytes if after.bytes is None else after.bytes,
        kernels=after.kernels or before.kernels,
    )
    findings = tuple(({f.check: f for f in before.findings} | {f.check: f for f in after.findings}).values())
    # What a resumed run could not time has no timing: its samples would be of other processes than the others'.
    timing = after.timing or (None if after.untimed else before.timing)
    memory = after.memory or before.memory
    broken = next((f for f in findings if f.status != "passed"), None)
    if broken is None:
        return replace(after, findings=findings, timing=timing, memory=memory)
    measured = timing is not None or memory is not None
    untimed = after.untimed or (f"{broken.check} {broken.status}: {broken.reason}" if measured else None)
    return replace(after, findings=findings, timing=None, memory=None, untimed=untimed)


def _measured(result: Result) -> tuple[bool, bool]:
    return result.timing is not None, result.memory is not None


def _same_checks(one: tuple[Finding, ...], other: tuple[Finding, ...]) -> bool:
    return [(f.check, f.status) for f in one] == [(f.check, f.status) for f in other]
