"""Run files of tries that were ended early: only results that count are kept in them, so that they can be merged."""

import os
import shutil
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from pathlib import Path

from attnbench.cases import digest
from attnbench.records.exit_codes import FAILED
from attnbench.records.run_file import ResultsError, StoredRun, format_line, has_failure, read_run
from attnbench.records.types import End, Record, Run
from attnsweep.plan import SweepPlan, Task
from attnsweep.tries import Pair, Try, find_counted, find_record

__all__ = ["keep_counted"]

# Ending of the copy of a run file as its try left it.
CUT = ".jsonl-cut"


def keep_counted(folder: Path, plan: SweepPlan, task: Task, before: Sequence[Try]) -> frozenset[Pair]:
    """Reduce the run files of the tries before this one to the results that count; return these.

    A result belongs to the first file that has it. A run file that is changed says that exactly these results were
    planned, and that it finished; the file as it was is kept beside it. The tries have ended, so that nothing else
    writes their files.
    """
    kept: set[Pair] = set()
    for one in before:
        path = find_record(folder, task, one.count).with_suffix(".jsonl")
        if not path.exists():
            continue
        try:
            stored = read_run(path)
        except ResultsError:
            path.replace(path.with_suffix(CUT))
            continue
        own = find_counted(plan, task, stored).keys() - kept
        kept |= own
        if not own:
            path.replace(path.with_suffix(CUT))
        elif not _is_as_planned(stored, own):
            shutil.copyfile(path, path.with_suffix(CUT))
            _replace_file(path, [_plan_only(stored.run, own), *_list_records(stored, own, one)])
    return frozenset(kept)


def _is_as_planned(stored: StoredRun, kept: Set[Pair]) -> bool:
    finished = stored.end is not None and stored.end.outcome == "finished"
    return finished and not stored.problems and {(one.implementation, one.case) for one in stored.results} == kept


def _plan_only(run: Run, kept: Set[Pair]) -> Run:
    """Return the run as if only these results had been planned."""
    counts = Counter(name for name, _ in kept)
    planned = {
        name: replace(own, cases=counts[name] if own.cases else 0, timed=counts[name] if own.timed else 0)
        for name, own in run.planned.items()
    }
    return replace(run, job=replace(run.job, planned=planned), suite_digest=digest({case for _, case in kept}))


def _list_records(stored: StoredRun, kept: Set[Pair], one: Try) -> list[Record]:
    results = [result for result in stored.results if (result.implementation, result.case) in kept]
    failed = any(map(has_failure, results))
    time = one.ended or (stored.end.time if stored.end else stored.run.time)
    end = End(run=stored.run.id, time=time, outcome="finished", exit_code=FAILED if failed else 0)
    return [*stored.ceilings, *results, end]


def _replace_file(path: Path, records: Sequence[Record]) -> None:
    new = path.with_suffix(".jsonl-new")
    with new.open("wb") as stream:
        stream.writelines(map(format_line, records))
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)
