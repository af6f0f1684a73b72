"""Counters of the system's scheduler: the time for which threads waited for a core, and context switches."""

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["OwnWait", "Reading", "Scheduler"]

TASKS = Path("/proc/self/task")
# Number of bytes to read from a schedstat file, which holds three numbers.
_LINE_BYTES = 96


class Reading(NamedTuple):
    """Unparsed counters at one moment: they are read directly before or after a timed call, and parsed later."""

    # Content of the schedstat file of each thread, by thread id; None if the system does not count waiting times.
    lines: dict[int, bytes] | None
    # Involuntary context switches of the process; None if the system does not count them.
    switches: int | None

    def waited_ns_since(self, before: "Reading") -> int | None:
        """Nanoseconds that all threads of the process together waited for a core since an earlier reading.

        The waiting time of a thread that has ended in the meantime is not included. None if the system does not count
        waiting times.
        """
        if self.lines is None or before.lines is None:
            return None
        return sum(
            _parse_waited_ns(line) - (_parse_waited_ns(before.lines[thread]) if thread in before.lines else 0)
            for thread, line in self.lines.items()
        )

    def switches_since(self, before: "Reading") -> int | None:
        """Involuntary context switches of the process since an earlier reading; None if they are not counted."""
        if self.switches is None or before.switches is None:
            return None
        return self.switches - before.switches


@dataclass(slots=True)
class Scheduler:
    """Reads the scheduler's counters. The constructor determines which counters this system has.

    A reading makes only one system call per thread, on files that are kept open. More work between two timed calls
    would evict the next call's data from the processor's caches, and so lengthen the measured time.

    Waiting times: second field of /proc/<pid>/task/<tid>/schedstat,
    https://docs.kernel.org/scheduler/sched-stats.html. Context switches: ru_nivcsw of getrusage(2).
    """

    tasks: Path = TASKS
    counts_waits: bool = field(init=False)
    counts_switches: bool = field(init=False)
    # Descriptor of the open schedstat file of each thread, by thread id.
    _files: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # A Linux kernel without scheduler statistics writes zeros. A kernel with these statistics writes a first number
        # (the time on a core) above 0.
        self.watch()
        self.counts_waits = any(_parse_line(line)[0] > 0 for line in self._read_lines().values())
        self.counts_switches = resource is not None

    def watch(self) -> None:
        """Open the schedstat files of new threads. A thread that starts during a call is not counted in that call."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.tasks):  # noqa: PTH208  # half the time of Path.iterdir
                # A thread may end before its file is opened.
                with contextlib.suppress(OSError, ValueError):
                    if int(name) not in self._files:
                        self._files[int(name)] = os.open(f"{self.tasks}/{name}/schedstat", os.O_RDONLY)

    def read(self) -> Reading:
        """Read the counters of this process and its threads, without parsing them."""
        return Reading(
            self._read_lines() if self.counts_waits else None,
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if self.counts_switches else None,
        )

    def close(self) -> None:
        """Close the schedstat files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file)
        self._files.clear()

    def _read_lines(self) -> dict[int, bytes]:
        try:
            return {thread: os.pread(file, _LINE_BYTES, 0) for thread, file in self._files.items()}
        except OSError:
            return self._read_remaining_lines()

    def _read_remaining_lines(self) -> dict[int, bytes]:
        """Read the schedstat files of the threads that still exist; forget threads whose file cannot be read."""
        lines = {}
        for thread, file in list(self._files.items()):
            try:
                lines[thread] = os.pread(file, _LINE_BYTES, 0)
            except ProcessLookupError:  # the thread ended
                os.close(self._files.pop(thread))
            except OSError:
                # An implementation closed the descriptor. It is not closed again here, because its number may now
                # belong to another file.
                del self._files[thread]
        return lines


@dataclass(slots=True)
class OwnWait:
    """Reads the time for which one thread, which makes this object, waits for a core."""

    tasks: Path = TASKS
    _thread: int = field(init=False, default_factory=threading.get_native_id)
    # Descriptor of the open schedstat file; None where there is none.
    _file: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        with contextlib.suppress(OSError):
            self._file = os.open(f"{self.tasks}/{self._thread}/schedstat", os.O_RDONLY)

    def read_since(self, before: Reading) -> int:
        """Return the nanoseconds for which the thread waited since a reading; 0 if the system does not count them."""
        if self._file is None or before.lines is None or self._thread not in before.lines:
            return 0
        with contextlib.suppress(OSError):
            line = os.pread(self._file, _LINE_BYTES, 0)
            return max(0, _parse_waited_ns(line) - _parse_waited_ns(before.lines[self._thread]))
        return 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def _parse_line(line: bytes) -> tuple[int, int]:
    """Nanoseconds that a thread ran, and nanoseconds that it waited for a core, from the line of its schedstat file.

    Zeros if the line is not from a schedstat file. This happens if an implementation closes all file descriptors and
    then opens another file, which gets the number of a closed descriptor.
    """
    parts = line.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 3 and b"".join(parts).isdigit() else (0, 0)


def _parse_waited_ns(line: bytes) -> int:
    return _parse_line(line)[1]
