"""Reads large run files so that a million results fit into memory: what a report only counts is shared or left out.

- A finding that passed without a warning loses its error and its allowed error, and is shared by all results.
- Equal texts, and equal findings that are no failures, are shared.
- The samples of a timing stay in the file, and are read again when they are used. What is asked of every timing is
  kept: whether it can be used, and with which others it was interleaved.

A result of 3.3 kB then takes about 0.5 kB, and a finding that passed takes 8 bytes.
"""

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from attnbench.records.run_file import Measured, ResultsError, StoredRun, read_run
from attnbench.records.sample_faults import find_timing_fault
from attnbench.records.types import FAILURES, Finding, Memory, Result, Samples, Timing, join_timings
from attnbench.records.value_facts import Phrase

__all__ = ["FiledTiming", "Inspection", "inspect_timing", "load_samples", "read_compactly", "read_runs"]

# Size of all run files of a report, in bytes, above which they are read compactly. Read whole, this much takes about
# 0.6 GB of memory (docs/evidence.md).
LARGE_BYTES = 100 * 10**6
# Number of timings of a file that are kept after they were read again. A timing is compared with those of the same
# case, which stand near it in the file.
KEPT = 64
# Most different texts and findings that are shared; further ones are kept as they are.
MOST_SHARED = 1 << 18


def read_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """Read run files; compactly if they are large together.

    Raises: ResultsError where a file cannot be read, or is no run file.
    """
    try:
        size = sum(path.stat().st_size for path in paths)
    except OSError as error:
        raise ResultsError(f"cannot read {error.filename}: {error.strerror}") from error
    if size <= LARGE_BYTES:
        return [read_run(path) for path in paths]
    shared = Shared()
    return [read_compactly(path, shared) for path in paths]


def read_compactly(path: Path, shared: "Shared | None" = None) -> StoredRun:
    """Read a run file as ``read_run`` does, compactly; ``shared`` is what results of several files share.

    Raises: ResultsError where the file contains no run, or a run of a newer schema.
    """
    shared = shared or Shared()
    compacting = _Compacting(_FiledLines(path, shared.open_file), shared)
    return replace(read_run(path, change=compacting.compact), compact=True)


class Shared:
    """Texts and findings that results share, and the file from which timings are read again."""

    def __init__(self) -> None:
        self.open_file = _OpenFile()
        self._found: dict[Any, Any] = {}

    def share(self, value: Any) -> Any:
        """Return the first value that is equal to this one."""
        found = self._found.get(value)
        if found is not None:
            return found
        if len(self._found) < MOST_SHARED:
            self._found[value] = value
        return value

    def share_finding(self, finding: Finding) -> Finding:
        """Return a finding that says the same in a report."""
        if finding.status in FAILURES or finding.warnings:
            return replace(finding, check=self.share(finding.check))
        if finding.status != "passed":
            return self._share_by(
                (finding.check, finding.status, finding.facts, finding.reason, finding.measured), finding
            )
        return self._share_by(finding.check, finding, passed=True)

    def _share_by(self, key: Any, finding: Finding, *, passed: bool = False) -> Finding:
        key = "finding", key
        found: Finding | None = self._found.get(key)
        if found is None:
            found = Finding(check=finding.check, status="passed") if passed else finding
            if len(self._found) < MOST_SHARED:
                self._found[key] = found
        return found


# A line of a run file with samples of a timing: its first byte, its number of bytes, and the number of the first of its
# processes. Packed, the lines of a timing of seven processes take 0.15 kB; as tuples of integers they took 0.9 kB.
PART = Struct("<qqi")


class _TimingOf(msgspec.Struct):
    """The timing of a line of a run file; the other fields are not decoded."""

    timing: Timing | None = None


_TIMING_OF = msgspec.json.Decoder(_TimingOf)


class _OpenFile:
    """Reads parts of files; the last file stays open, because the next part is mostly of the same file."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._close: weakref.finalize[..., Any] | None = None
        self._descriptor = -1

    def read(self, path: Path, start: int, size: int) -> bytes:
        """Return ``size`` bytes of a file, from its byte ``start`` on.

        Raises: OSError.
        """
        if path != self._path:
            if self._close:
                self._close()
            self._path = None
            self._descriptor = os.open(path, os.O_RDONLY)
            self._close, self._path = weakref.finalize(self, os.close, self._descriptor), path
        return os.pread(self._descriptor, size, start)


class _FiledLines:
    """The lines of a run file, from which timings are read again."""

    def __init__(self, path: Path, open_: "_OpenFile") -> None:
        self._path = path
        self._open = open_
        # The timings that were used last, by their lines.
        self._kept: OrderedDict[bytes, Timing] = OrderedDict()

    def read_timing(self, parts: bytes) -> Timing:
        """Return the timing of these lines.

        Raises: ResultsError where the file has changed.
        """
        if parts not in self._kept:
            self._kept[parts] = self._join(parts)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[parts]

    def _join(self, parts: bytes) -> Timing:
        read = [(first, self._read(start, size)) for start, size, first in PART.iter_unpack(parts)]
        return join_timings(read) if read[-1][0] else read[0][1]

    def _read(self, start: int, size: int) -> Timing:
        try:
            timing = _TIMING_OF.decode(self._open.read(self._path, start, size)).timing
        except OSError as error:
            raise ResultsError(f"cannot read {self._path}: {error.strerror}") from error
        except (msgspec.MsgspecError, ValueError):
            timing = None
        if timing is None:
            raise ResultsError(f"{self._path} has changed while it was read: make the report again")
        return timing


class Inspection(NamedTuple):
    """What is asked of every timing."""

    # Why the timing cannot be used; None if it can.
    fault: Phrase | None
    # Number of its processes.
    processes: int
    # Names of the other implementations that were timed in the same cycles.
    partners: tuple[str, ...]


def inspect_timing(timing: Timing) -> Inspection:
    """Return what is asked of every timing; of a timing that stays in its file, as it was when the file was read."""
    if isinstance(timing, FiledTiming):
        return timing.inspection
    return Inspection(find_timing_fault(timing), len(timing.samples_ns), timing.interleaved_with)


class FiledTiming(Timing):
    """A timing whose fields are read from its run file when they are used."""

    __slots__ = ("_lines", "_parts", "inspection")
    _lines: _FiledLines
    # The lines of the timing, each packed as ``PART``.
    _parts: bytes
    inspection: Inspection

    @classmethod
    def locate(cls, lines: _FiledLines, parts: bytes, inspection: Inspection) -> "FiledTiming":
        """Return the timing of these lines; no field is read."""
        made = object.__new__(cls)
        for name, value in (("_lines", lines), ("_parts", parts), ("inspection", inspection)):
            object.__setattr__(made, name, value)
        return made

    @property
    def parts(self) -> bytes:
        """The lines of the timing, each packed as ``PART``."""
        return self._parts

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.inspection.processes

    def join(self, after: Timing, first: int) -> Timing:
        """Return this timing with the processes of ``after``, which is of the same file."""
        if not first or not isinstance(after, FiledTiming):
            return after
        own, further = self.inspection, after.inspection
        joined = Inspection(own.fault or further.fault, further.processes, further.partners or own.partners)
        return FiledTiming.locate(self._lines, self.parts + after.parts, joined)

    def shift(self, first: int) -> Timing:  # noqa: ARG002  # its line has the number
        """Return this timing: it has the number of its first process already."""
        return self

    def fill(self, processes: int) -> Timing:
        """Return this timing with this number of processes; the missing ones have no samples."""
        return FiledTiming.locate(self._lines, self._parts, self.inspection._replace(processes=processes))

    # Called only for an attribute that is not set, as all fields of ``locate`` are.
    def __getattr__(self, name: str) -> Any:
        if name not in _TIMING_FIELDS:
            raise AttributeError(name)
        return getattr(self.load(), name)

    def load(self) -> Timing:
        """Return the timing with all its fields."""
        timing = self._lines.read_timing(self._parts)
        return timing.fill(self.processes) if timing.processes < self.processes else timing


def load_samples(timing: Timing) -> Timing:
    """Return a timing with its samples in memory."""
    return timing.load() if isinstance(timing, FiledTiming) else timing


_TIMING_FIELDS = frozenset(field.name for field in fields(Timing))


@dataclass(slots=True)
class _Compacting:
    """Makes the results of one file compact."""

    lines: _FiledLines
    shared: Shared

    def compact(self, record: Measured, place: tuple[int, int]) -> Measured:
        """Return a compact record; ``place`` is that of its line in the file."""
        if isinstance(record, Samples):
            return self._compact_samples(record, place)
        return self._compact_result(record, place)

    def _compact_samples(self, samples: Samples, place: tuple[int, int]) -> Samples:
        share = self.shared.share
        return replace(
            samples,
            implementation=share(samples.implementation),
            case=share(samples.case),
            timing=self._file_timing(samples.timing, place, samples.first),
        )

    def _compact_result(self, result: Result, place: tuple[int, int]) -> Result:
        share = self.shared.share
        return Result(
            run=share(result.run),
            implementation=share(result.implementation),
            case=share(result.case),
            findings=tuple(map(self.shared.share_finding, result.findings)),
            timing=self._file_timing(result.timing, place) if result.timing else None,
            memory=self._share_memory(result.memory),
            flop=result.flop,
            bytes=result.bytes,
            kernels=share(result.kernels),
            untimed=share(result.untimed),
            suite=share(result.suite),
            completes=result.completes,
        )

    def _file_timing(self, timing: Timing, place: tuple[int, int], first: int = 0) -> Timing:
        found = inspect_timing(timing)
        own = self.shared.share(found._replace(processes=first + found.processes))
        return FiledTiming.locate(self.lines, PART.pack(*place, first), own)

    def _share_memory(self, memory: Memory | None) -> Memory | None:
        return None if memory is None else replace(memory, method=self.shared.share(memory.method))
