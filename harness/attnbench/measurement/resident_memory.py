"""Physical memory of one call: what the process had resident at most, whoever took it. Importing this imports no torch.

torch's allocator says what it was asked for, to the byte. What a library maps by itself stands in no such account, but
its pages are resident like all others. Linux keeps the highest resident size of a process and sets it back on demand.

Source: /proc/<pid>/clear_refs and VmHWM, https://docs.kernel.org/filesystems/proc.html.
"""

import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path

__all__ = ["ENVIRONMENT", "METHOD", "outside_bytes", "peak_bytes"]

METHOD = "VmHWM"
# What a process must be started with: glibc then maps every block of 64 KiB or more anew and unmaps it when it is
# freed. Otherwise it keeps blocks of earlier calls, and these are resident before the call begins.
# Source: https://man7.org/linux/man-pages/man3/mallopt.3.html, M_MMAP_THRESHOLD.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# Writing it to clear_refs sets the highest resident size to the present one.
RESET = "5"
# Calls of which the median is taken.
CALLS = 3
# Surplus over the allocator's peak that is noise: pages are counted core by core, so that a sum is off by up to 0.3 MB
# (measured at 2 cores, from 64 to 1024 tokens).
NOISE_BYTES, NOISE_SHARE = 500_000, 0.02


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Highest resident size during a call above the one before it; None where it cannot be told.

    The call must have been made twice before, so that what a library keeps from its first call is resident already.
    """
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        return None
    try:
        return int(statistics.median(_once(call) for _ in range(CALLS)))
    except OSError:
        return None


def outside_bytes(physical: int | None, allocated: int) -> int | None:
    """What of a physical peak torch's allocator did not account for; None where nothing stands out of the noise."""
    if physical is None or physical - allocated <= max(NOISE_BYTES, NOISE_SHARE * allocated):
        return None
    return physical - allocated


def _once(call: Callable[[], object]) -> int:
    CLEAR_REFS.write_text(RESET)
    before = _highest_bytes()
    result = call()
    highest = _highest_bytes()
    del result
    return highest - before


def _highest_bytes() -> int:
    """Highest resident size since the last reset."""
    found = re.search(rf"^{METHOD}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{STATUS} has no {METHOD}")
    return int(found[1]) * 1024
