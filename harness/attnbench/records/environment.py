"""The machine and the library versions of a run; neither host name nor user name is stored."""

import hashlib
import hmac
import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from attnbench.devices import list_devices
from attnbench.records.types import Machine

__all__ = [
    "TESTED_TORCH",
    "check_torch_version",
    "count_cores",
    "describe_machine",
    "find_checkout",
    "find_commit",
    "find_node",
    "find_older_torch",
    "find_versions",
    "observe_busy_cores",
    "read_address_space_bytes",
    "read_available_memory_bytes",
    "read_cpu_model",
]

# First and last minor release of torch with which attnbench was tested: the first one on the suite core, with the
# verdicts of the last one (docs/evidence.md), 2.10 and later ones with all tests. Before 2.8, torch.export cannot trace
# the modules of attnbench.kernel.
TESTED_TORCH = ((2, 8), (2, 13))
LIBRARIES = ("attnbench", "torch", "numpy", "xformers", "triton")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MACHINE_ID = Path("/etc/machine-id")
# Length of the label of a node. Among 1,000 nodes, two have the same 8 hexadecimal digits with a probability of 0.01 %.
NODE_DIGITS = 8


def describe_machine() -> Machine:
    """Return the description of this machine, named after its CPU and GPU model."""
    cpu = read_cpu_model()
    gpu, driver = _query_accelerator()
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)|processor|cpu|@ *\S+", "", f"{cpu} {gpu or ''}".lower()))
    return Machine(
        name="-".join(words) or "unknown",
        cpu=cpu,
        cores=count_cores(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        gpu=gpu,
        driver=driver,
        isa=_find_widest_vectors(),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


def find_node() -> str:
    """Return a label of this machine that differs between machines with the same description; empty if there is none.

    The label is a keyed hash of the name of the node, which is that of Slurm or of the host. The key is the machine id,
    a random number of 128 bits that no run file has, so that the name cannot be found by trying names. Nodes that start
    from one image may share the machine id, but not the name.
    Source: https://www.freedesktop.org/software/systemd/man/latest/machine-id.html
    """
    try:
        key = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    name = os.environ.get("SLURMD_NODENAME") or platform.node()
    return hmac.new(key, f"attnbench {name}".encode(), hashlib.sha256).hexdigest()[:NODE_DIGITS] if key else ""


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def observe_busy_cores(seconds: float) -> float:
    """Return how many of the cores that this process may use other work keeps busy, while this process waits.

    The time that a hypervisor gives to other machines counts as busy. 0 where the system has no /proc/stat.
    """
    before = _read_core_times()
    time.sleep(seconds)
    after = _read_core_times()
    busy = 0.0
    for core in before.keys() & after.keys():
        total, idle = (late - early for early, late in zip(before[core], after[core], strict=True))
        busy += 1 - idle / total if total else 0.0
    return busy


def _read_core_times() -> dict[int, tuple[int, int]]:
    """Return the whole and the idle time of each core that this process may use, in ticks since the system started.

    Source: proc(5), /proc/stat; idle time is that of the columns ``idle`` and ``iowait``.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = {name: [*map(int, ticks)] for name, *ticks in map(str.split, lines) if re.fullmatch(r"cpu\d+", name)}
    own = os.sched_getaffinity(0)
    # The first eight columns make up the whole time; the later ones are part of them.
    return {
        core: (sum(ticks[:8]), ticks[3] + ticks[4])
        for name, ticks in rows.items()
        if (core := int(name.removeprefix("cpu"))) in own
    }


def find_versions() -> dict[str, str]:
    """Return the installed versions of the libraries that results depend on."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def find_older_torch() -> str | None:
    """Return a message if the installed torch is older than attnbench can use, else None."""
    (low, _), installed = TESTED_TORCH, find_versions().get("torch", "")
    numbers = _read_minor_release(installed)
    if numbers is None or numbers >= low:
        return None
    needed = ".".join(map(str, low))
    return f"torch {installed} is installed, and attnbench needs {needed} or newer: pip install 'torch>={needed}'"


def _read_minor_release(version_text: str) -> tuple[int, int] | None:
    numbers = re.match(r"(\d+)\.(\d+)", version_text)
    return (int(numbers[1]), int(numbers[2])) if numbers else None


def check_torch_version(installed: str) -> str | None:
    """Return a warning if the installed version of torch is outside the tested range, else None."""
    numbers = _read_minor_release(installed)
    (low, high) = TESTED_TORCH
    if numbers and low <= numbers <= high:
        return None
    return (
        f"torch {installed} is outside the tested range {low[0]}.{low[1]} to {high[0]}.{high[1]}: "
        "findings may differ; pip install torch==2.13.0 installs a tested version"
    )


def find_commit(folder: Path) -> str | None:
    """Return the commit of the git checkout that contains a folder, or None outside a checkout.

    ``+`` is appended to the commit if tracked files were changed.
    """
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


def find_checkout(folder: Path, files: Sequence[str]) -> tuple[str, bool] | None:
    """Return the commit of the git checkout of some files, and whether the checkout differs from the commit.

    It differs if a tracked file was changed, or if one of ``files``, relative to ``folder``, is not tracked. The result
    is None outside a checkout, and for files that the checkout ignores, such as those of a virtual environment.
    """
    commit = find_commit(folder)
    if commit is None or not files:
        return None
    untracked = _list_in_git(folder, ["ls-files", "--others", "--exclude-standard", "-z", "--", *files])
    ignored = _list_in_git(folder, ["ls-files", "--others", "--ignored", "--exclude-standard", "-z", "--", *files])
    if len(ignored) == len(files):
        return None
    return commit.removesuffix("+"), bool(commit.endswith("+") or untracked or ignored)


def _list_in_git(folder: Path, words: Sequence[str]) -> list[str]:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    return [name for name in done.stdout.split("\0") if name]


def read_address_space_bytes() -> int:
    """Return the address space that this process has mapped, in bytes; 0 where /proc is missing."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    except OSError:
        return 0


def read_available_memory_bytes() -> int:
    """Return the memory that can be allocated without swapping, in bytes; 0 where /proc is missing."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def read_cpu_model() -> str:
    """Return the name of the CPU's model, or of its architecture where the model is not known."""
    try:
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def _find_widest_vectors() -> str | None:
    """Return the name of the widest vector instruction set of the CPU, or None if unknown."""
    try:
        flags = set(re.findall(r"\S+", Path("/proc/cpuinfo").read_text()))
    except OSError:
        return None
    return next((name for name in ("amx_bf16", "avx512f", "avx2", "asimd") if name in flags), None)


def _query_accelerator() -> tuple[str | None, str | None]:
    """Return model and driver version of the first device beside the CPU; None for both if there is none."""
    models = (device.query_model() for device in list_devices())
    return next((found for found in models if found[0] is not None), (None, None))
