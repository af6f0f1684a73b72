"""Descendants of a process, found by their parents, or by an environment variable that every descendant inherits.

A descendant that leaves its process group by ``setsid`` still has the variable, unless it is started with another
environment. Where there is no /proc, no process is found. Source: https://docs.kernel.org/filesystems/proc.html.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["count_runnable_threads", "find_descendants", "find_marked", "kill_marked", "read_fields"]

PROC = Path("/proc")
# PATIENCE_S: seconds within which killed processes must disappear. PAUSE_S: seconds between two searches for processes
# that have not disappeared.
PATIENCE_S, PAUSE_S = 2.0, 0.002


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
    # The name is in parentheses and can contain any character.
    return Path(PROC, str(process), "stat").read_text().rpartition(")")[2].split()


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
