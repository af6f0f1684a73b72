"""Descendants of a process: found by their parents, or by a mark that every descendant inherits, and ended with it.

A mark is an environment variable with a random value.

A descendant that leaves its process group by ``setsid`` still has the variable, unless it is started with another
environment. Where there is no /proc, no process is found. Source: https://docs.kernel.org/filesystems/proc.html.
"""

import contextlib
import ctypes
import fcntl
import os
import secrets
import signal
import time
from pathlib import Path

__all__ = [
    "count_runnable_threads", "draw_mark", "find_descendants", "find_marked", "kill_marked", "kill_on_close",
    "read_fields", "set_mark",
]  # fmt: skip

PROC = Path("/proc")
# Name of the environment variable that marks a process and its descendants, and the bytes of its random value.
MARK, MARK_BYTES = "ATTNBENCH_CHILD", 8
# The beginning and the end of a process's first environment are the fields 50 and 51 of /proc/PID/stat, which
# ``read_fields`` gives from field 3 on: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
ENVIRONMENT_FIELDS = slice(47, 49)
# PATIENCE_S: seconds within which killed processes must disappear. PAUSE_S: seconds between two searches for processes
# that have not disappeared.
PATIENCE_S, PAUSE_S = 2.0, 0.002


def draw_mark() -> dict[str, str]:
    """Return a new mark, as the environment variable of the process that is started with it."""
    return {MARK: secrets.token_hex(MARK_BYTES)}


def set_mark(value: str) -> None:
    """Change the mark of this process, which was started with a mark of the same length.

    /proc shows the environment as it was when the process started, so the mark is overwritten there, too.
    """
    begin, end = map(int, read_fields(os.getpid())[ENVIRONMENT_FIELDS])
    first = f"{MARK}={os.environ[MARK]}".encode()
    offset = ctypes.string_at(begin, end - begin).index(first)
    ctypes.memmove(begin + offset, f"{MARK}={value}".encode(), len(first))
    os.environ[MARK] = value


def find_marked(word: str) -> list[int]:
    """Return the ids of the processes whose environment contains ``word``; none where there is no /proc."""
    found = []
    with contextlib.suppress(OSError), os.scandir(PROC) as entries:
        for entry in entries:
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):  # another user's process, or a process that has ended meanwhile
                # The file is empty for a zombie: a process that has ended, but whose parent has not waited for it.
                if word.encode() in Path(entry, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def find_descendants(process: int) -> list[int]:
    """Return the ids of the descendants of a process; none where there is no /proc."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError), os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):  # the process has ended
                    parents[int(entry.name)] = int(read_fields(int(entry.name))[1])
    found, seen = [], {process}
    while added := [child for child, parent in parents.items() if parent in seen and child not in seen]:
        found += added
        seen.update(added)
    return found


def read_fields(process: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the name of the process: the state, the parent's id, and more.

    Raises: OSError if the process has ended.
    """
    # The name is in parentheses and can contain any byte.
    return Path(PROC, str(process), "stat").read_bytes().rpartition(b")")[2].decode().split()


def kill_marked(word: str) -> None:
    """Kill every process whose environment contains ``word``, including processes that start during the search."""
    deadline = time.monotonic() + PATIENCE_S
    while (pids := find_marked(word)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def count_runnable_threads(pids: list[int]) -> int:
    """Return the number of threads of these processes that run now or wait for a core; sleeping threads do not count.

    Source: the state in /proc/<pid>/task/<tid>/stat, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
    """
    states = []
    for pid in pids:
        for thread in PROC.glob(f"{pid}/task/*/stat"):
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                # The state follows the name of the thread, which is in parentheses and can contain any character.
                states.append(thread.read_text().rpartition(")")[2].split()[0])
    return states.count("R")


def kill_on_close(descriptor: int, group: int) -> None:
    """Make Linux kill a process group when the other end of a pipe is closed.

    The parent holds the other end, which is closed when the parent ends, at the latest. A child that waits for requests
    would notice the end of its parent by itself; a child in an endless loop would not.
    Source: F_SETOWN and F_SETSIG in https://man7.org/linux/man-pages/man2/F_GETSIG.2const.html; only on Linux.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, -group)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
