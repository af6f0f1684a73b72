"""The machine and the libraries that a run came from; nothing that names its host or user."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attnbench.records.types import Machine

__all__ = [
    "TESTED_TORCH",
    "address_space_bytes",
    "commit",
    "cores",
    "machine",
    "memory_available_bytes",
    "torch_warning",
    "versions",
]

# First and last minor release of torch that the suite was run on.
TESTED_TORCH = ((2, 10), (2, 13))
LIBRARIES = ("attnbench", "torch", "numpy", "xformers", "triton")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def machine() -> Machine:
    """This machine, named after its CPU and GPU model."""
    cpu = _cpu_model()
    gpu, driver = _gpu()
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)|processor|cpu|@ *\S+", "", f"{cpu} {gpu or ''}".lower()))
    return Machine(
        name="-".join(words) or "unknown",
        cpu=cpu,
        cores=cores(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        gpu=gpu,
        driver=driver,
        isa=_widest_vectors(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Installed versions of the libraries that matter to a result."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def torch_warning(installed: str) -> str | None:
    """What to say of a torch outside the tested range, or None."""
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    (low, high) = TESTED_TORCH
    if numbers and low <= (int(numbers[1]), int(numbers[2])) <= high:
        return None
    return (
        f"torch {installed} is outside the tested range {low[0]}.{low[1]} to {high[0]}.{high[1]}: "
        "findings may differ; pip install torch==2.13.0 gives the tested one"
    )


def commit(folder: Path) -> str | None:
    """Commit of the checkout around a folder, with ``+`` where files differ from it; None outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changes.strip() else "")


def address_space_bytes() -> int:
    """Address space that this process has mapped; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    except OSError:
        return 0


def memory_available_bytes() -> int:
    """Memory that could be had without swapping; 0 where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _cpu_model() -> str:
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def _widest_vectors() -> str | None:
    """Widest vector instructions that the CPU says it has."""
    try:
        flags = set(re.findall(r"\S+", Path("/proc/cpuinfo").read_text()))
    except OSError:
        return None
    return next((name for name in ("amx_bf16", "avx512f", "avx2", "asimd") if name in flags), None)


def _gpu() -> tuple[str | None, str | None]:
    """Model and driver of the first GPU, from the driver's own tool, so that no CUDA context is made."""
    try:
        line = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return None, None
    name, _, driver = line.partition(",")
    return name.strip(), driver.strip()
