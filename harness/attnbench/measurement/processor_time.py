"""The processor time of this process and of the processes that it started."""

import contextlib
import ctypes
import os
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.processes.descendants import find_descendants, read_fields

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["ProcessorTime", "adopt_orphans", "limit_children", "limit_cores", "read_cores", "read_family_ns"]

PROC = Path("/proc")
# Kind of the clock that counts the processor time of all threads of a process, as in clock_getcpuclockid(3):
# MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of linux/include/linux/posix-timers_types.h.
SCHEDULER_CLOCK = 2
# PR_SET_CHILD_SUBREAPER of prctl(2).
SET_CHILD_SUBREAPER = 36
# Number of new processes up to which each is looked at by its id; all processes of the system are searched for more.
FEW_PROCESSES = 100
# Fields of proc_pid_stat(5), counted from the field behind the name: utime, stime, cutime and cstime; the last two.
TIME_FIELDS, ENDED_CHILDREN_FIELDS = slice(11, 15), slice(13, 15)
# Nanoseconds in a unit of the processor times in /proc/PID/stat.
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10**7


@dataclass(slots=True)
class ProcessorTime:
    """Reads the processor time of this process, of its descendants that run, and of their children that have ended."""

    # Process ids of the descendants that were found and have not ended.
    _descendants: list[int] = field(init=False, default_factory=list)
    # Process ids of the descendants that had ended children.
    _parents: set[int] = field(init=False, default_factory=set)
    # The last process id that the system had given before the last search.
    _last: int = field(init=False, default=0)

    def watch(self) -> None:
        """Find the descendants of this process. A descendant that starts later is not counted until the next search."""
        self._last = _read_last_process()
        self._descendants = find_descendants(os.getpid())

    def watch_new(self) -> None:
        """Find the descendants that have started since the last search; costs little if no process has started.

        Only a descendant that was found before it ends adds its time at the time when it uses it. Of any other, all is
        added at once when it ends. Where /proc/loadavg does not tell the last process id, none is found here.
        """
        last = _read_last_process()
        if not 0 <= last - self._last <= FEW_PROCESSES:  # many processes, or the system begins with small ids again
            self.watch()
            return
        for process in range(self._last + 1, last + 1):
            with contextlib.suppress(OSError):  # the process has ended, or the id is that of a thread, without a clock
                # A child has a higher id than its parent, which is therefore found first.
                is_child = int(read_fields(process)[1]) in (os.getpid(), *self._descendants)
                if is_child and process not in self._descendants:
                    _read_clock_ns(process)
                    self._descendants.append(process)
        self._last = last

    def read_ns(self) -> int:
        """Return the processor time until now, in nanoseconds. Differences of two readings are meaningful."""
        total = time.process_time_ns() + _read_ended_children_ns()
        for process in self._descendants:
            try:
                total += _read_clock_ns(process)
                # When a child of a descendant has ended, the descendant has its time.
                if ended := sum(map(int, read_fields(process)[ENDED_CHILDREN_FIELDS])):
                    total += TICK_NS * ended
                    self._parents.add(process)
            except OSError:  # the process has ended
                self._descendants = [one for one in self._descendants if one != process]
        return total

    @property
    def rounding_ns(self) -> int:
        """Nanoseconds by which a sum of differences can be too large: times of ended children are in ``TICK_NS``."""
        return 2 * TICK_NS * len(self._parents)


def read_family_ns() -> int:
    """Return the processor time of this process, its descendants, and of all their children that have ended.

    Differences of two readings are meaningful. They are exact to ``TICK_NS`` for each descendant.
    """
    total = time.process_time_ns() + _read_ended_children_ns()
    for process in find_descendants(os.getpid()):
        with contextlib.suppress(OSError):  # the process has ended
            total += TICK_NS * sum(map(int, read_fields(process)[TIME_FIELDS]))
    return total


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they stay descendants; on Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_cores(count: int) -> None:
    """Let the threads of this process run on at most ``count`` cores; processes that it starts inherit the limit.

    A thread that is bound to some of these cores remains bound to them. Nothing is changed on a system without such
    limits.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    given = os.sched_getaffinity(0)
    # With OMP_PROC_BIND, OpenMP has bound this thread to one core when torch was imported.
    with contextlib.suppress(OSError):
        given |= os.sched_getaffinity(os.getppid())
    cores = _choose_cores(given, count)
    for thread in _list_threads():
        with contextlib.suppress(OSError):  # the thread has ended
            os.sched_setaffinity(thread, os.sched_getaffinity(thread) & cores or cores)


@contextlib.contextmanager
def limit_children(count: int | None) -> Iterator[None]:
    """Context in which processes that this thread starts get the cores that ``limit_cores`` chooses; None: all cores.

    OpenMP chooses the cores of its threads when it is loaded, before a process can call ``limit_cores``.
    """
    if count is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _choose_cores(before, count))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def read_cores() -> frozenset[int] | None:
    """Return the cores on which a thread of this process may run; None on a system that does not say so."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    found: set[int] = set()
    for thread in _list_threads():
        with contextlib.suppress(OSError):  # the thread has ended
            found |= os.sched_getaffinity(thread)
    return frozenset(found)


def _choose_cores(cores: Set[int], count: int) -> set[int]:
    return set(sorted(cores, key=_rank_core)[:count])


def _rank_core(core: int) -> tuple[int, int]:
    """Sort key of logical cores: all physical cores come first, and their further logical cores last.

    Core 0 is the last of its kind, because systems run their own work on it.
    """
    siblings = [core]
    with contextlib.suppress(OSError, ValueError):
        listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
        siblings = [int(number) for number in listed.replace("-", ",").split(",")]
    return (sum(sibling < core for sibling in siblings), -core)


def _read_clock_ns(process: int) -> int:
    """Return the processor time of a process, in nanoseconds.

    Raises: OSError if the process has ended, or if this is the id of a thread.
    """
    return time.clock_gettime_ns((~process << 3) | SCHEDULER_CLOCK)


def _read_last_process() -> int:
    """Return the process id that the system gave last, from proc_loadavg(5); 0 where there is no /proc."""
    with contextlib.suppress(OSError):
        return int((PROC / "loadavg").read_text().split()[4])
    return 0


def _list_threads() -> list[int]:
    return [int(name) for name in os.listdir(PROC / "self/task")] if PROC.is_dir() else [0]  # noqa: PTH208


def _read_ended_children_ns() -> int:
    if resource is None:
        return 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)
