"""Real runs of ``attnbench gate`` on a change without effect, in a repository of two commits.

The second commit names an intermediate tensor, and computes the same. So a gate that fails is a false alarm, of its
checks, its counts or its times. The samples of each run are stored case by case, as pools from which gates are drawn.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attnbench.records import run_file
from attnbench.records.types import Timing
from research.detection.load import read_busy_s, run_competitor
from research.detection.plants import BASE
from research.detection.pools import Condition, Setup, list_samples, make_header, set_child_environment
from research.lines import Lines, StudyError

__all__ = ["NEW", "gather_gates"]

# Side of a stored process that is compared with the base.
NEW = "0"
KERNEL = '''"""Attention in plain torch."""

import torch


def attend(q, k, v, *, mask, scale):
    """q (batch, heads, queries, head_dim); k and v (batch, heads, keys, head_dim)."""
    scores = q @ k.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1) @ v
'''
CHANGED = KERNEL.replace(
    "    return torch.softmax(scores, -1) @", "    weights = torch.softmax(scores, -1)\n    return weights @"
)
NAME = "kernel.py:attend"
COMMAND = "import sys; from attnbench.cli import main; sys.argv[0] = 'attnbench'; main()"
# Time-out of a run, in seconds of wall time; and number of failed runs after which the study ends.
TIMEOUT_S, FAILURES = 3600.0, 3
GIT = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")

Record = dict[str, Any]


def gather_gates(
    path: Path, condition: Condition, *, runs: int, resume: bool, say: Callable[[str], None] = print
) -> list[Record]:
    """Run gates until the file has the records of ``runs`` gates, and of their processes.

    The base is checked before the first run, so that each run finds its results.

    Raises: StudyError after too many runs that could not compare.
    """
    set_child_environment({})
    head = make_header(condition, Setup(length=0, budget_s=0.0), "those of attnbench gate", {}) | {"kind": "gates"}
    with (
        tempfile.TemporaryDirectory(prefix="attnbench-study-") as folder,
        Lines.open(path, head, resume=resume) as lines,
        run_competitor(condition.load),
    ):
        repository = _make_repository(Path(folder, "repository"))
        _gate(repository, "--fail-on", "wrong")
        failed = 0
        while (done := sum(record["kind"] == "gate" for record in lines.records)) < runs:
            record, processes = _run(repository, condition.threads, done)
            failed += record["kind"] != "gate"
            if failed > FAILURES:
                raise StudyError(f"{path}: {failed} gates failed; the last failed with: {record['reason']}")
            for one in (*processes, record):
                lines.add(one)
            told = record.get("outcome") or record["reason"]
            say(f"{path.name}: gate {done + 1} of {runs}: {told}, {record['took_s']:.0f} s")
        return [record for record in lines.records if record["kind"] == "gate"]


def _make_repository(folder: Path) -> Path:
    folder.mkdir()
    _run_git(folder, "init", "-q")
    for source in (KERNEL, CHANGED):
        (folder / "kernel.py").write_text(source)
        _run_git(folder, "add", "kernel.py")
        _run_git(folder, "commit", "-q", "-m", "a version")
    return folder


def _run_git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *GIT, *words], cwd=folder, check=True)


def _gate(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", COMMAND, "gate", NAME, "--base", "HEAD~1", "--results", "../results", *options]
    environment = os.environ | {"XDG_CACHE_HOME": str(repository.with_name("cache"))}
    return subprocess.run(
        words, cwd=repository, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def _run(repository: Path, threads: int, number: int) -> tuple[Record, list[Record]]:
    """Run a gate once; return its record, and a record of each process and case, in the form of a pool."""
    target = repository.with_name("gate.json")
    target.unlink(missing_ok=True)
    busy_s, own_s, begin = read_busy_s(), _read_own_s(), time.monotonic()
    done = _gate(repository, "--threads", str(threads), "--json", str(target))
    took_s = time.monotonic() - begin
    record: Record = {"number": number, "exit": done.returncode, "took_s": round(took_s, 1)}
    if busy_s is not None and (now_s := read_busy_s()) is not None:
        # Mean number of cores that other processes used.
        record["others"] = round((now_s - busy_s - _read_own_s() + own_s) / took_s, 2)
    if not target.exists():
        return record | {"kind": "failed", "reason": (done.stderr or "no output").strip().splitlines()[-1]}, []
    outcome = json.loads(target.read_text())
    told = ("outcome", "worse", "undecided", "untimed", "kept", "rule", "changes")
    newest = max(repository.with_name("results").rglob("*.jsonl"), key=lambda one: one.stat().st_mtime)
    processes = list(_list_processes(newest, number))
    newest.unlink()
    return record | {"kind": "gate"} | {name: outcome[name] for name in told}, processes


def _read_own_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _list_processes(path: Path, number: int) -> Iterator[Record]:
    sides: dict[str, dict[str, Timing]] = {}
    for result in run_file.read_run(path).results:
        if result.timing and result.timing.twin:
            sides.setdefault(result.case, {}).update({BASE: result.timing, "twin": result.timing.twin})
        elif result.timing:
            sides.setdefault(result.case, {})[NEW] = result.timing
    for case, timings in sides.items():
        for process in range(len(timings[BASE].samples_ns)):
            columns = {name: list_samples(timing, process) for name, timing in timings.items()}
            yield {"kind": "process", "gate": number, "case": case, "seed": process, "sides": columns}
