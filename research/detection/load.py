"""Load on the machine: none (``quiet``), or a competing process that keeps every core busy (``busy``).

Another word names work that somebody else makes the machine do meanwhile.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LOADS", "Competitor", "measure_busy_cores", "read_busy_s", "run_competitor"]

LOADS = ("quiet", "busy")
# Seconds to wait until the competing process has started its work.
STARTING_S = 3.0
STAT = Path("/proc/stat")
# Rows and columns of the matrices that the competing process multiplies in a loop.
SIZE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """A process that competes with the measured processes for cores: it computes on all cores until its parent ends.

    ``pid`` is None if no process competes.
    """

    pid: int | None

    def read_cpu_s(self) -> float:
        """Return the CPU seconds that the competing process has used so far; 0 if the system does not report them."""
        if self.pid is None:
            return 0.0
        try:
            # utime and stime are the 12th and 13th field after the process name, which may contain spaces.
            fields = Path("/proc", str(self.pid), "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def run_competitor(load: str) -> Iterator[Competitor]:
    """Context manager that runs a competing process if ``load`` is ``busy``."""
    if load != "busy":
        yield Competitor(pid=None)
        return
    process = subprocess.Popen([sys.executable, "-m", __name__, str(os.getpid())])
    try:
        time.sleep(STARTING_S)
        yield Competitor(pid=process.pid)
    finally:
        process.kill()
        process.wait()


def measure_busy_cores(window_s: float) -> float | None:
    """Sleep for ``window_s`` seconds, and return how many cores other processes used in this time, as a mean.

    The result is None if the system does not report the use of the cores.
    Source: clock ticks in the first line of /proc/stat, https://docs.kernel.org/filesystems/proc.html.
    """
    before = read_busy_s()
    begin = time.monotonic()
    time.sleep(window_s)
    after = read_busy_s()
    if before is None or after is None:
        return None
    return (after - before) / (time.monotonic() - begin)


def read_busy_s() -> float | None:
    """Return the CPU seconds that all processes have used since the start of the system; None if unknown."""
    try:
        user, nice, system, _, _, *others = STAT.read_text().splitlines()[0].split()[1:]
    except (OSError, IndexError, ValueError):
        return None
    # ``others`` begins with interrupts, soft interrupts and stolen time. The times of guests follow, which ``user`` and
    # ``nice`` already include.
    return (int(user) + int(nice) + int(system) + sum(map(int, others[:3]))) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Compute on all cores until the parent process, whose id is the first argument, has ended."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    matrix, product = torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)
    while os.getppid() == int(sys.argv[1]):
        torch.mm(matrix, matrix, out=product)


if __name__ == "__main__":
    main()
