"""Run files of tries that were ended early: only what is whole in them is kept, so that they can be merged."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attnbench.cases import digest
from attnbench.plugins.registry import display_name
from attnbench.records.exit_codes import FAILED
from attnbench.records.run_file import ResultsError, StoredRun, format_line, read_run
from attnbench.records.types import FAILURES, End, Planned, Record, Run
from attnbench.sweep.plan import SweepPlan, Task
from attnbench.sweep.tries import Try, find_record, find_whole_cases

__all__ = ["keep_whole_cases"]

# Ending of the copy of a run file as its try left it.
CUT = ".jsonl-cut"


def keep_whole_cases(folder: Path, plan: SweepPlan, task: Task, before: Sequence[Try]) -> frozenset[str]:
    """Reduce the run files of the tries before this one to their whole cases; return all whole cases.

    A case is whole if every implementation that is compared on it has a complete result in the file, and belongs to the
    first such file. A run file that is changed says that exactly these cases were planned, and that it finished; the
    file as it was is kept beside it. The tries have ended, so that nothing else writes their files.
    """
    kept: set[str] = set()
    for one in before:
        path = find_record(folder, task, one.count).with_suffix(".jsonl")
        if not path.exists():
            continue
        try:
            stored = read_run(path)
        except ResultsError:
            path.replace(path.with_suffix(CUT))
            continue
        cases = find_whole_cases(plan, task, stored) - kept
        kept |= cases
        if not cases:
            path.replace(path.with_suffix(CUT))
        elif not _is_as_planned(stored, cases):
            shutil.copyfile(path, path.with_suffix(CUT))
            _replace_file(path, [_plan_only(plan, stored.run, cases), *_list_records(stored, cases, one)])
    return frozenset(kept)


def _is_as_planned(stored: StoredRun, cases: set[str]) -> bool:
    finished = stored.end is not None and stored.end.outcome == "finished"
    return finished and not stored.problems and {result.case for result in stored.results} == cases


def _plan_only(plan: SweepPlan, run: Run, cases: set[str]) -> Run:
    """Return the run as if only these cases had been planned."""
    counts = {
        display_name(name): sum(name in plan.list_implementations(case) for case in cases) for name in plan.operators
    }
    planned = {
        name: Planned(cases=counts.get(name, 0) if own.cases else 0, timed=counts.get(name, 0) if own.timed else 0)
        for name, own in run.planned.items()
    }
    return replace(run, planned=planned, suite_digest=digest(cases))


def _list_records(stored: StoredRun, cases: set[str], one: Try) -> list[Record]:
    results = [result for result in stored.results if result.case in cases]
    failed = any(finding.status in FAILURES for result in results for finding in result.findings)
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
