"""asv over the commits, and the steps that ``attnbench history`` finds in its results."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnhistory.command import command
from research.lines import StudyError
from research.story.commits import Repository

__all__ = ["find_moves", "find_steps", "measure_commits", "prepare", "publish"]

# What asv runs: the counters do not depend on other work, and the times are those of a short measurement.
SUITE = '''from attnbench.asv import benchmarks


class Attention(benchmarks(["mine:MyAttention"], lengths=[128], processes={processes}, budget_s={budget_s}, intervals=True)):
    """Counters and times of the module."""
'''  # noqa: E501
CONFIGURATION = {
    "version": 1, "project": "story", "branches": ["main"], "environment_type": "existing", "launch_method": "spawn",
    "benchmark_dir": "benchmarks", "results_dir": "results", "html_dir": "html",
}  # fmt: skip


def prepare(folder: Path, repository: Repository, *, processes: int, budget_s: float) -> None:
    """Write asv's configuration and benchmarks outside the repository, so that all commits have the same ones."""
    (folder / "benchmarks").mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks" / "__init__.py").touch()
    (folder / "benchmarks" / "attention.py").write_text(SUITE.format(processes=processes, budget_s=budget_s))
    (folder / "asv.conf.json").write_text(json.dumps(CONFIGURATION | {"repo": str(repository.folder)}))
    _run_asv(folder, repository, "machine", "--yes")


def measure_commits(folder: Path, repository: Repository, commits: Iterable[str]) -> None:
    """Measure the commits that asv has not measured yet.

    Raises: StudyError where asv fails, or stores nothing.
    """
    for commit in commits:
        if not list(folder.glob(f"results/*/{commit[:8]}-*.json")):
            repository.check_out(commit)
            _run_asv(folder, repository, "run", "--set-commit-hash", commit)
            if not list(folder.glob(f"results/*/{commit[:8]}-*.json")):
                raise StudyError(f"asv stored nothing of {commit[:8]}: run asv run --show-stderr in {folder}")


def publish(folder: Path, repository: Repository) -> list[Any]:
    """Make asv's page, and return its graph of peak bytes: the number of each commit, with its values.

    Raises: StudyError where asv fails.
    """
    _run_asv(folder, repository, "publish")
    # Beside the graph of this machine there is a summary of all machines.
    (path,) = folder.glob("html/graphs/arch*/**/attention.Attention.track_peak_bytes.json")
    found: list[Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def find_moves(graph: Sequence[tuple[int, float | Sequence[float | None] | None]]) -> list[int]:
    """Return the numbers of the commits at which a value of a graph moves; values that are missing are left out."""
    moves, before = [], dict[int, float]()
    for number, values in graph:
        now = dict(enumerate(values if isinstance(values, list) else [values]))
        known = {place: one for place, one in now.items() if one is not None}
        if any(before.get(place, one) != one for place, one in known.items()):
            moves.append(number)
        before |= known
    return moves


def find_steps(paths: Sequence[Path], implementation: str) -> Mapping[str, set[str]]:
    """Return the quantities that moved at each commit, of those at which ``attnbench history`` finds a step."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
        command.main([*map(str, paths), "--implementation", implementation, "--json", "-"], standalone_mode=False)
    found: dict[str, set[str]] = defaultdict(set)
    for series in json.loads(printed.getvalue())["series"]:
        for step in series["steps"]:
            found[step["later"]["commit"]].add(series["key"]["quantity"])
    return found


def _run_asv(folder: Path, repository: Repository, *words: str) -> None:
    paths = os.pathsep.join([str(repository.folder), *filter(None, sys.path)])
    # asv stores the names of machines in the home folder. It takes PYTHONPATH from benchmarks, and ASV_PYTHONPATH is
    # for them.
    environment = os.environ | {"HOME": str(folder), "PYTHONPATH": paths, "ASV_PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-m", "asv", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise StudyError(f"asv {words[0]} ended with exit code {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
