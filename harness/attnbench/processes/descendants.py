"""Processes that a child has started, and those that they have: found by a word in the environment that all inherit.

A process group is left by ``setsid``; the environment stays, unless a program is started without it.
Source: https://docs.kernel.org/filesystems/proc.html; where there is no /proc, nothing is found.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["end", "marked", "runnable"]

PROC = Path("/proc")
# Time that killed processes get to vanish, and time between two looks, in seconds.
PATIENCE_S, PAUSE_S = 2.0, 0.002


def marked(word: str) -> list[int]:
    """Processes whose environment holds ``word``; none where the system does not say."""
    found = []
    with contextlib.suppress(OSError), os.scandir(PROC) as entries:
        for entry in entries:
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):  # somebody else's, or gone meanwhile
                # Empty for a process that has ended and is not waited for yet.
                if word.encode() in Path(entry, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def end(word: str) -> None:
    """Kill every process whose environment holds ``word``, also those that are started meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while (pids := marked(word)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def runnable(pids: list[int]) -> int:
    """Threads of these processes that are at work now, or wait for a core; those that sleep are not.

    Source: the state in /proc/<pid>/task/<tid>/stat, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
    """
    states = []
    for pid in pids:
        for thread in PROC.glob(f"{pid}/task/*/stat"):
            with contextlib.suppress(OSError):  # the thread ended meanwhile
                # The name before it, in brackets, may hold anything.
                states.append(thread.read_text().rpartition(")")[2].split()[0])
    return states.count("R")
