"""Reads run files: counters, and ratios to the reference's time with their confidence intervals."""

from collections.abc import Iterator
from pathlib import Path

from attnbench.analysis.run_diff import count_kernel_calls, estimate_ratio_to_reference, index_results
from attnbench.analysis.stats import Estimate, Interval
from attnbench.cases import CaseId
from attnbench.plugins.registry import find_operator_baseline
from attnbench.records.run_file import ResultsError, StoredRun, read_run
from attnbench.records.types import Result
from attnhistory.points import RATIO, Key, Point, Quantity, Reading, Skipped

__all__ = ["read_run_file"]

# Stands between an implementation and the folder of its source tree. Such a tree is not that of the run's commit.
OF_TREE = " @ "
# Stands after a commit with changes that are in no commit.
CHANGED = "+"


def read_run_file(path: Path) -> Iterator[Reading | Skipped]:
    """Yield the values of a run, and what could not be read."""
    try:
        stored = read_run(path)
    except (OSError, ResultsError) as error:
        yield Skipped(path=str(path), reason=str(error))
        return
    for problem in stored.problems:
        yield Skipped(path=str(path), reason=problem)
    results = index_results(stored)
    for result in results.values():
        if OF_TREE not in result.implementation:
            for quantity, found, version in _list_values(result, results):
                yield _make_reading(stored, result, quantity, found, version)


def _list_values(
    result: Result, results: dict[tuple[str, str], Result]
) -> Iterator[tuple[Quantity, Interval | int, str]]:
    """Yield each quantity of a result with its value, and how the calls of a ratio were made."""
    memory = result.memory
    if memory is not None:
        sizes: tuple[tuple[Quantity, int | None], ...] = (
            ("peak_bytes", memory.peak_bytes), ("saved_bytes", memory.saved_bytes),
            ("workspace_bytes", memory.workspace_bytes),
        )  # fmt: skip
        for quantity, size in sizes:
            if size is not None:
                yield quantity, size, ""
        if result.kernels:
            yield "kernel_calls", count_kernel_calls(result.kernels).total(), ""
    if result.flop is not None:
        yield "flop", result.flop, ""
    if not find_operator_baseline(CaseId.parse(result.case).operator):
        # The operator is not installed here.
        return
    ratio = estimate_ratio_to_reference(result, results)
    if isinstance(ratio, Estimate) and ratio.low > 0 and result.timing is not None:
        # Ratios of other calls are not compared, as in attnbench compare.
        yield RATIO, ratio, f"{result.timing.values} {result.timing.trainable}"


def _make_reading(
    stored: StoredRun, result: Result, quantity: Quantity, found: Interval | int, version: str
) -> Reading:
    run = stored.run
    found_commit = run.find_commit(result.implementation)
    commit = found_commit if found_commit and not found_commit.endswith(CHANGED) else None
    key = Key(
        machine=run.machine.name, environment=f"torch {run.versions.get('torch', '?')}, {run.threads} threads",
        implementation=result.implementation, case=result.case, length=CaseId.parse(result.case).length,
        quantity=quantity, version=version,
    )  # fmt: skip
    if isinstance(found, int):
        point = Point(commit=commit, run=run.id, date=run.time, value=found)
    elif isinstance(found, Estimate) and found.processes > 1:
        point = Point(commit=commit, run=run.id, date=run.time, value=found.value, low=found.low, high=found.high)
    else:
        point = Point(commit=commit, run=run.id, date=run.time, value=found.value)
    return Reading(key=key, point=point)
