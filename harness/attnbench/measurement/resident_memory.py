"""Peak resident memory of one call, memory outside torch's allocator included.

torch's allocator counts exactly the memory that torch requests. It does not count memory that a library maps by itself.
The resident size of the process includes the memory of torch and of libraries. Linux records the peak of the resident
size, and resets this peak on request.

Importing this module does not import torch.

Source: /proc/<pid>/clear_refs and VmHWM, https://docs.kernel.org/filesystems/proc.html.
"""

import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path

__all__ = ["ENVIRONMENT", "METHOD", "bytes_outside_allocator", "measure_peak_bytes"]

METHOD = "VmHWM"
# The process must be started with this environment variable. With it, glibc maps every block of 64 KiB or more
# separately, and unmaps the block when it is freed. Without it, freed blocks of earlier calls would still be resident
# when the measured call begins.
# Source: https://man7.org/linux/man-pages/man3/mallopt.3.html, M_MMAP_THRESHOLD.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536"}

CLEAR_REFS, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
# Writing this value to ``CLEAR_REFS`` resets the peak resident size to the present size.
RESET = "5"
# Number of measured calls. The result is the median of the peaks of these calls.
CALLS = 3
# The resident peak may exceed the allocator's peak by noise. The largest excess that counts as noise is ``NOISE_BYTES``
# bytes or the fraction ``NOISE_SHARE`` of the allocator's peak, whichever is larger. Linux counts resident pages per
# core, and the sum over the cores is wrong by up to 0.3 MB (measured on 2 cores, with 64 to 1024 tokens).
NOISE_BYTES, NOISE_SHARE = 500_000, 0.02


def measure_peak_bytes(call: Callable[[], object]) -> int | None:
    """Peak resident size in bytes during a call, above the size before the call; None if it cannot be measured.

    The call must have run twice before, so that memory that a library keeps after its first call is already resident.
    """
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        return None
    try:
        return int(statistics.median(_measure_once(call) for _ in range(CALLS)))
    except OSError:
        return None


def bytes_outside_allocator(physical: int | None, allocated: int) -> int | None:
    """Bytes by which the resident peak exceeds the allocator's peak; None if unknown, or if the excess may be noise."""
    if physical is None or physical - allocated <= max(NOISE_BYTES, NOISE_SHARE * allocated):
        return None
    return physical - allocated


def _measure_once(call: Callable[[], object]) -> int:
    CLEAR_REFS.write_text(RESET)
    before = _read_peak_bytes()
    result = call()
    highest = _read_peak_bytes()
    del result
    return highest - before


def _read_peak_bytes() -> int:
    """Read the peak resident size of this process since the last reset, in bytes."""
    found = re.search(rf"^{METHOD}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"{STATUS} has no field {METHOD}")
    return int(found[1]) * 1024
