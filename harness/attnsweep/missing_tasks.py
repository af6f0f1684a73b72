"""Which tasks of a sweep lack results, where the run files of its tasks are merged."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnbench.records.parts import PartsOrigin
from attnsweep.configuration import ConfigurationError
from attnsweep.plan import PLAN, Task, read_plan
from attnsweep.progress import format_resuming
from attnsweep.tries import TASKS, Try, find_kind, find_record, list_tries, read_results

__all__ = ["find_origin"]

# Most tasks of one sweep that are named; the others are counted.
NAMED = 8


def find_origin(inputs: Sequence[Path], files: Iterable[Path]) -> PartsOrigin:
    """Return which tasks of sweeps are missing in what is merged, and the kinds of node of the run files."""
    kinds = {path: kind for path in files if (kind := find_kind(path))}
    return PartsOrigin(missing=_describe_missing(inputs), kinds=kinds)


def _describe_missing(inputs: Iterable[Path]) -> list[str]:
    """Return which tasks lack results, in words, for each sweep of which the inputs have run files.

    An input is the folder of a sweep, or a file or folder below its folder ``tasks``. Of a single kind of node, only
    the tasks of this kind are wanted.
    """
    # The kinds of nodes by folder of the sweep; None: all kinds.
    wanted: dict[Path, set[str | None]] = {}
    for given in inputs:
        for folder in (given.absolute(), *given.absolute().parents):
            below = given.absolute().relative_to(folder).parts
            if below[:1] in ((), (TASKS,)) and (folder / PLAN).is_file() and (folder / TASKS).is_dir():
                wanted.setdefault(folder, set()).add(below[1] if len(below) > 1 else None)
    found = []
    for folder, kinds in wanted.items():
        try:
            found += _describe_sweep(folder, kinds)
        except ConfigurationError as error:
            found.append(str(error))
    return found


def _describe_sweep(folder: Path, kinds: set[str | None]) -> list[str]:
    """Return a line about the tasks of a sweep that are missing, and one about those that were given up.

    Raises: ConfigurationError where the plan cannot be read, or a try is of another plan.
    """
    plan = read_plan(folder)
    own = [task for task in plan.tasks if None in kinds or task.machine in kinds]
    short = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    gaps: dict[bool, list[str]] = {False: [], True: []}
    for task in own:
        tries = list_tries(folder, task)
        if _is_done(folder, task, tries):
            continue
        results = read_results(folder, plan, task, tries)
        if results.complete < results.wanted:
            given_up = results.count_failed(tries) >= plan.tries
            gaps[given_up].append(f"{task.name} ({results.complete} of {results.wanted} results)")
    found = []
    if gaps[False]:
        found.append(f"missing: {_name_tasks(gaps[False])}; submit what is missing with: {format_resuming(short)}")
    if gaps[True]:
        again = format_resuming(short, "--tries", str(plan.tries + 1))
        found.append(f"given up: {_name_tasks(gaps[True])}; try once more with: {again}")
    return found


def _name_tasks(tasks: Sequence[str]) -> str:
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"task{'s' * (len(tasks) > 1)} {', '.join(tasks[:NAMED])}{more}"


def _is_done(folder: Path, task: Task, tries: list[Try]) -> bool:
    """Return whether a try had every result at its end, and no run file is gone: then the files need not be read.

    Reading them takes twice as long as merging them. A file that was cut later has no end, which merging finds.
    """
    files = (find_record(folder, task, one.count).with_suffix(".jsonl") for one in tries)
    return any(one.outcome == "done" for one in tries) and all(path.exists() for path in files)
