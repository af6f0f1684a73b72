"""Processor time and resident memory of a command of attnbench.

On Linux, the largest resident memory of a process includes what it had before it ran its program. That is the memory
of the process that started it, and a test or a study may hold gigabytes. So this file is also a program: it needs a few
megabytes, starts the command, and prints what the command needed.

Source: ``exec_mmap`` of https://github.com/torvalds/linux/blob/master/fs/exec.c, which calls ``setmax_mm_hiwater_rss``.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ProcessCost", "measure_command"]

# Number of bytes in the unit of ru_maxrss, which is KiB on Linux and bytes on macOS.
MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
# Python code that runs the command line of attnbench in a new process.
COMMAND = "from attnbench.cli import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCost:
    """Processor time in seconds of a process and of those that it started, and the largest resident memory of one."""

    cpu_s: float
    resident_bytes: int


def measure_command(*words: str, exit_codes: Sequence[int]) -> ProcessCost:
    """Run a command of attnbench in a new process, and return its costs.

    Raises: RuntimeError if the command does not end with one of the exit codes.
    """
    started = (sys.executable, "-c", COMMAND, *words)
    # -I and -S: the small process imports nothing of the project, and nothing that is installed.
    small = subprocess.run(
        [sys.executable, "-I", "-S", __file__, *started], capture_output=True, text=True, check=False
    )
    if small.returncode not in exit_codes:
        raise RuntimeError(f"attnbench {words[0]} ended with exit code {small.returncode}: {small.stderr[-1000:]}")
    return ProcessCost(**json.loads(small.stdout))


def _main() -> int:
    """Run the command of the arguments, print its costs as JSON, and return its exit code."""
    ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "resident_bytes": used.ru_maxrss * MAXRSS_BYTES}))
    # A command that a signal ended has the negative number of the signal, which is no exit code.
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


if __name__ == "__main__":
    sys.exit(_main())
