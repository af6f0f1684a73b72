"""What the system's scheduler did to this process: how long its threads waited for a core, how often it lost one."""

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["Reading", "Scheduler"]

TASKS = Path("/proc/self/task")
# Bytes of a schedstat file that are read; it holds three numbers.
_LINE_BYTES = 96


class Reading(NamedTuple):
    """Counters at one moment, as the system gave them: they are read beside a call, and understood later."""

    # Line of each thread, by its number; None where the system does not say how long threads wait.
    lines: dict[int, bytes] | None
    # Involuntary context switches of the process, or None where the system does not say.
    switches: int | None

    def waited_since(self, before: "Reading") -> int | None:
        """Nanoseconds that threads of the process waited for a core since an earlier reading, all threads together.

        A thread that ended meanwhile takes its time along.
        """
        if self.lines is None or before.lines is None:
            return None
        return sum(
            _waited_ns(line) - (_waited_ns(before.lines[thread]) if thread in before.lines else 0)
            for thread, line in self.lines.items()
        )

    def switches_since(self, before: "Reading") -> int | None:
        """Involuntary switches since an earlier reading."""
        if self.switches is None or before.switches is None:
            return None
        return self.switches - before.switches


@dataclass(slots=True)
class Scheduler:
    """Reads the counters that this system has; which those are is found out once.

    A reading is one system call a thread, on files that are kept open, and nothing more: what else is done between two
    calls displaces what the next call has in the processor's caches, and is measured with it.

    Source: second field of /proc/<pid>/task/<tid>/schedstat, https://docs.kernel.org/scheduler/sched-stats.html, and
    ru_nivcsw of getrusage(2).
    """

    tasks: Path = TASKS
    counts_waits: bool = field(init=False)
    counts_switches: bool = field(init=False)
    # Open file of each thread.
    _files: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        # A kernel that keeps no such statistics shows three zeros; the first is the time on a core, which is never 0.
        self.watch()
        self.counts_waits = any(_numbers(line)[0] > 0 for line in self._lines().values())
        self.counts_switches = resource is not None

    def watch(self) -> None:
        """Take up threads that began since the last time; those that begin within a call are not seen in that call."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.tasks):  # noqa: PTH208  # half the time of Path.iterdir
                # A thread may end between the listing and the opening.
                with contextlib.suppress(OSError, ValueError):
                    if int(name) not in self._files:
                        self._files[int(name)] = os.open(f"{self.tasks}/{name}/schedstat", os.O_RDONLY)

    def read(self) -> Reading:
        """The counters now."""
        return Reading(
            self._lines() if self.counts_waits else None,
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if self.counts_switches else None,
        )

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file)
        self._files.clear()

    def _lines(self) -> dict[int, bytes]:
        try:
            return {thread: os.pread(file, _LINE_BYTES, 0) for thread, file in self._files.items()}
        except OSError:
            return self._lines_of_those_left()

    def _lines_of_those_left(self) -> dict[int, bytes]:
        """Lines of the threads that can be read; the others are not watched any more."""
        lines = {}
        for thread, file in list(self._files.items()):
            try:
                lines[thread] = os.pread(file, _LINE_BYTES, 0)
            except ProcessLookupError:  # it ended
                os.close(self._files.pop(thread))
            except OSError:
                # Somebody closed the file, and may open another one in its place.
                del self._files[thread]
        return lines


def _numbers(line: bytes) -> tuple[int, int]:
    """Nanoseconds that a thread ran and waited; zeros where a line says something else.

    An implementation may close every descriptor, and its own file then stands where a line was.
    """
    parts = line.split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 3 and b"".join(parts).isdigit() else (0, 0)


def _waited_ns(line: bytes) -> int:
    return _numbers(line)[1]
