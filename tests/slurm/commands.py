"""Commands of attnbench on a cluster of the tests, and what the files of a sweep say."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from commands import START
from slurm.cluster import Cluster

__all__ = ["STATE_S", "attnbench", "merge", "read_outcomes", "read_report", "wait_until"]

# Seconds to wait for a state. On two idle cores, Slurm needs up to 10 s to see that a node is dead, and a task 10 s.
STATE_S = 600
# What differs between two reports of the same results: ids and times of runs, nodes, and two options of the sweep.
OF_A_RUN = re.compile(
    r"\d{8}-\d{6}-[0-9a-f]{8}|\d{4}-\d\d-\d\dT[\d:]+\+00:00| --results \w+| --local|\w+/\\\*/\\\*\.jsonl|node \| `\w+`"
)


def attnbench(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of attnbench on the cluster."""
    return subprocess.run(
        cluster.inside(*START, *words), cwd=folder, env=cluster.environment, capture_output=True, text=True,
        check=False, timeout=STATE_S,
    )  # fmt: skip


def wait_until(is_so: Callable[[], object]) -> None:
    """Wait for a state."""
    until_s = time.monotonic() + STATE_S
    while not is_so() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert is_so()


def read_outcomes(folder: Path, machine: str) -> list[str | None]:
    """Return how the tries of a machine's tasks ended."""
    return [json.loads(path.read_text())["outcome"] for path in sorted(folder.glob(f"there/tasks/{machine}/*.json"))]


def merge(cluster: Cluster, folder: Path, tasks: str, into: str) -> list[Path]:
    """Merge the run files of tasks; return the paths of the merged files."""
    merged = attnbench(cluster, folder, "merge", tasks, "--into", into)
    assert merged.returncode == 0, merged.stderr
    return [folder / run for run in merged.stdout.split()]


def read_report(cluster: Cluster, folder: Path, runs: list[Path]) -> dict[str, list[str]]:
    """Return the lines of a report's tables and texts, in the order of the alphabet: tasks may begin in any order.

    Ids and times of runs, nodes, the name of the sweep's folder, and whether it ran here, are left out.
    """
    reports = runs[0].parent / "report"
    made = attnbench(cluster, folder, "report", *map(str, runs), "--reports", str(reports))
    assert made.returncode == 0, made.stdout + made.stderr
    texts = [path for path in reports.iterdir() if path.suffix in (".csv", ".json", ".md")]
    return {path.name: sorted(OF_A_RUN.sub("", path.read_text()).splitlines()) for path in texts}
