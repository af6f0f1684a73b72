"""The files of a task: each try of it has a record of its own, and a run file of its own.

``<sweep>/tasks/<machine>/<number>-try<k>.json`` is the record, ``….jsonl`` the run file. A try creates its record
before anything else, and no other process writes either file.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from attnbench.plugins.registry import display_name
from attnbench.records.run_file import ResultsError, StoredRun, has_failure, join_results, read_run
from attnbench.records.types import Result
from attnsweep.configuration import ConfigurationError
from attnsweep.plan import SweepPlan, Task, replace_file

__all__ = [
    "TASKS",
    "Outcome",
    "Pair",
    "TaskResults",
    "Try",
    "begin_try",
    "end_try",
    "find_counted",
    "find_kind",
    "find_record",
    "list_tries",
    "list_wanted",
    "read_results",
]

TASKS = "tasks"
# "stopped": Slurm cancelled, requeued or preempted the job, and did not wait for its end.
Outcome = Literal["done", "failed", "timed out", "preempted", "stopped", "interrupted"]


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a task."""

    # Hash of the plan.
    plan: str
    machine: str
    number: int
    # Number of the try, from 1.
    count: int
    # Id of the job in Slurm, or of its process.
    job: str
    # Label of the node, as in the run file; Slurm knows the node by the id of the job.
    node: str
    versions: dict[str, str]
    # Start and end in UTC, in the format of ISO 8601.
    started: str
    ended: str = ""
    # None while the try runs, and if its process was killed.
    outcome: Outcome | None = None
    # Why it failed, in one line.
    reason: str = ""


def find_record(folder: Path, task: Task, count: int) -> Path:
    """Return the path of the record of a try; its run file has the ending ``.jsonl``."""
    return folder / TASKS / f"{task.name}-try{count}.json"


def list_tries(folder: Path, task: Task) -> list[Try]:
    """Return the tries of a task, in their order; a record that cannot be read is one of a try that was killed."""
    found = []
    count = 1
    while (path := find_record(folder, task, count)).exists():
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Try))
        except (msgspec.MsgspecError, OSError):
            found.append(
                Try(
                    plan="", machine=task.machine, number=task.number, count=count, job="", node="", versions={},
                    started="", reason="its record cannot be read",
                )
            )  # fmt: skip
        count += 1
    return found


def begin_try(folder: Path, plan: SweepPlan, task: Task, *, job: str, node: str, versions: Mapping[str, str]) -> Try:
    """Create the record of the next try of a task.

    Raises: OSError where the folder cannot be written.
    """
    count = len(list_tries(folder, task))
    while True:
        count += 1
        made = Try(
            plan=plan.hash, machine=task.machine, number=task.number, count=count, job=job, node=node,
            versions=dict(versions), started=_format_now(),
        )  # fmt: skip
        path = find_record(folder, task, count)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as stream:
                stream.write(msgspec.json.encode(made) + b"\n")
        except FileExistsError:
            continue
        return made


def find_kind(run_file: Path) -> str:
    """Return the kind of node on which a task wrote this run file; empty if no task wrote it."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(run_file.with_suffix(".json").read_bytes(), type=Try).machine
    return ""


def end_try(folder: Path, task: Task, made: Try, outcome: Outcome, reason: str = "") -> None:
    """Store how a try ended; the record is replaced as a whole."""
    path = find_record(folder, task, made.count)
    ended = msgspec.structs.replace(made, ended=_format_now(), outcome=outcome, reason=" ".join(reason.split()))
    replace_file(path, msgspec.json.encode(ended) + b"\n")


# The name of an implementation, as it is displayed, and a case.
Pair = tuple[str, str]


class TaskResults(msgspec.Struct, frozen=True, kw_only=True):
    """What the run files of a task have."""

    # Number of results of the task, and how many of them the files have. A result is of one implementation on one case.
    wanted: int
    complete: int
    # Numbers of the tries with a result that counts.
    useful: frozenset[int]
    # Number of complete results with a check that failed.
    failures: int
    # One line for each line of a file that cannot be read.
    problems: tuple[str, ...]

    def count_failed(self, tries: Sequence[Try]) -> int:
        """Return the number of tries that count as failed, if none of them runs and the task is not complete.

        A try that ran out of time does not count if it has results: the next one has less to do. A try whose outcome is
        "done" counts, since its run file was cut afterwards.
        """
        ended = [one for one in tries if one.outcome not in ("preempted", "stopped", "interrupted")]
        return sum(one.outcome != "timed out" or one.count not in self.useful for one in ended)


def read_results(folder: Path, plan: SweepPlan, task: Task, tries: list[Try]) -> TaskResults:
    """Read the run files of all tries of a task; a result of any try counts.

    Raises: ConfigurationError where a try is of another plan.
    """
    complete: set[Pair] = set()
    failed: set[Pair] = set()
    useful: set[int] = set()
    problems: list[str] = []
    for one in tries:
        path = find_record(folder, task, one.count).with_suffix(".jsonl")
        if one.plan not in ("", plan.hash):
            raise ConfigurationError(
                f"{path.with_suffix('.json')} is of another plan than {folder}: move it away, or name another folder"
            )
        if not path.exists():
            continue
        try:
            stored = read_run(path)
        except ResultsError as error:
            problems.append(str(error))
            continue
        problems += stored.problems
        own = find_counted(plan, task, stored)
        useful |= {one.count} if own else set()
        complete |= own.keys()
        failed |= {key for key, one in own.items() if has_failure(one)}
    return TaskResults(
        wanted=len(list_wanted(plan, task)), complete=len(complete), useful=frozenset(useful), failures=len(failed),
        problems=tuple(problems),
    )  # fmt: skip


def list_wanted(plan: SweepPlan, task: Task) -> set[Pair]:
    """Return the implementation and the case of each result of a task."""
    return {(display_name(name), case) for case in task.cases for name in plan.list_implementations(case)}


def find_counted(plan: SweepPlan, task: Task, stored: StoredRun) -> dict[Pair, Result]:
    """Return the results of a run file that count, by implementation and case.

    Of a profile, a case counts if every implementation that is compared on it has its times in this file: times are
    compared only if one process interleaved the calls.
    """
    wanted = list_wanted(plan, task)
    own = {key: result for key, result in _list_complete(plan, stored).items() if key in wanted}
    if plan.kind == "conform":
        return own
    parted = {case for name, case in wanted - own.keys()}
    return {key: result for key, result in own.items() if key[1] not in parted}


def _list_complete(plan: SweepPlan, stored: StoredRun) -> dict[Pair, Result]:
    """Return the complete results of a run file, by implementation and case."""
    results: dict[Pair, Result] = {}
    for result in stored.results:
        key = (result.implementation, result.case)
        results[key] = join_results(results[key], result) if key in results else result
    return {key: result for key, result in results.items() if plan.kind == "conform" or _is_timed(stored, result)}


def _is_timed(stored: StoredRun, result: Result) -> bool:
    """Whether all planned processes timed a call, or the run finished with fewer, or there is a reason not to time."""
    if result.timing is None:
        return result.untimed is not None
    planned = stored.run.planned.get(result.implementation)
    finished = stored.end is not None and stored.end.outcome == "finished"
    return finished or planned is None or result.timing.processes >= planned.processes


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
