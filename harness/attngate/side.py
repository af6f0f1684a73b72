"""One side of a gate in an environment of its own: checked, counted and timed beside the reference, as a stored run.

The interpreter of the environment runs this module as a program, with the same code of attnbench as the gate.
"""

import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from attnbench.api.execution import (
    Checks,
    conform_into,
    count_planned,
    make_session,
    plan_checks,
    plan_conformance,
    profile_into,
)
from attnbench.api.recording import record
from attnbench.api.selection import choose_timed_implementations, find_operators
from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ConformJob, RecordedJob, parse
from attnbench.jobs.stored import read_options, store_job
from attnbench.plugins.registry import PluginError, display_name
from attnbench.processes.errors import ChildDied, ChildTimeout
from attnbench.records.exit_codes import INTERRUPTED
from attnbench.records.run_file import ResultsError
from attnbench.runner import ExpectationError, Session
from attngate.outcome import Rule
from attngate.planning import GateJob, plan_side_effort, plan_timed

__all__ = ["SideAnswer", "SideTask", "make_task", "measure_side"]

J = TypeVar("J", bound=RecordedJob)


class SideTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one side measures; jobs are the options that a run stores of them."""

    # Names that the environment loads.
    names: tuple[str, ...]
    job: dict[str, Any]
    checking: dict[str, Any]
    # Folder of run files.
    results: str
    rule: Rule
    # Command line of the gate, which the run stores.
    command: str
    # Folders from which the code must come; empty: any.
    roots: tuple[str, ...] = ()


class SideAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one side measured, or why it could not: ``error`` is then one line."""

    error: str = ""
    # Run file.
    path: str = ""
    # The rule with the level of its verdicts.
    rule: Rule = Rule()
    # Of each name: the name in results, and the cases to time.
    names: tuple[str, ...] = ()
    timed: tuple[tuple[str, ...], ...] = ()


def make_task(job: GateJob, checking: ConformJob, names: Sequence[str], **settings: Any) -> SideTask:
    """Return the task of a side that loads the implementations by ``names``."""
    return SideTask(
        names=tuple(names), job=store_job(job).options, checking=store_job(checking).options,
        results=str(job.results.absolute()), **settings,
    )  # fmt: skip


def measure_side(task: SideTask) -> SideAnswer:
    """Check the implementations of a side, count and time them beside their references, and record the run.

    Raises: PluginError where one cannot be loaded, or comes from elsewhere; JobError and others for what cannot be run.
    """
    job = _read_job(GateJob, task.job, task.results)
    checking = _read_job(ConformJob, task.checking, task.results)
    with make_session(job) as session:
        chosen = choose_timed_implementations(session, task.names, asked=True, operators=())
        _refuse_strangers(session, task)
        operators = find_operators(session, task.names)
        listed, timed = plan_conformance(session, checking, operators), plan_timed(session, job, operators)
        checks = {name: plan_checks(session, checking, [name], listed) for name in task.names}
        own = [
            tuple(plan.case for plan in timed if plan.operator == session.declared[name].operator)
            for name in task.names
        ]
        effort, rule = plan_side_effort(job, task.rule, sum(map(len, own)))
        beside = [name for name in chosen if name not in task.names] if effort.processes else []
        awaited = timed if effort.processes else ()
        planned = count_planned(session, task.names, Checks(plans=listed), awaited, effort=effort)
        with record(
            session, job=job, suite=checking.suite, cases=[plan.case for plan in (*listed, *timed)],
            implementations=[*beside, *task.names], command=task.command,
            planned=planned | count_planned(session, beside, timed=awaited, effort=effort),
        ) as recorded:  # fmt: skip
            for name in task.names:
                conform_into(recorded, session, [name], checks[name], checking.suite)
            profile_into(recorded, session, [*beside, *task.names], timed, effort=effort)
            recorded.exit_code = recorded.choose_exit_code(task.names)
    names = tuple(map(display_name, task.names))
    return SideAnswer(path=str(recorded.file.path.absolute()), rule=rule, names=names, timed=tuple(own))


def _read_job(kind: type[J], options: Mapping[str, Any], results: str) -> J:
    return replace(parse(kind, read_options(kind, options)), results=Path(results))


def _refuse_strangers(session: Session, task: SideTask) -> None:
    """Refuse code of another version, which an environment may find first.

    Raises: PluginError.
    """
    roots = [Path(root).resolve() for root in task.roots]
    for name in task.names if roots else ():
        folder = session.declared[name].sources.folder
        if folder and not any(Path(folder).is_relative_to(root) for root in roots):
            raise PluginError(
                f"{display_name(name)!r} is imported from {folder}, which is neither the worktree nor its environment: "
                "let the command install it (pip install .), and leave that folder out of PYTHONPATH"
            )


def main(task: Path, answer: Path) -> None:
    """Carry out a task that a file has, and write the answer to another file."""
    logging.getLogger("attnbench").addHandler(logging.StreamHandler())
    try:
        found = measure_side(msgspec.json.decode(task.read_bytes(), type=SideTask))
    except (PluginError, JobError, ResultsError, ExpectationError, ChildDied, ChildTimeout, OSError) as error:
        found = SideAnswer(error=" ".join(str(error).split()))
    answer.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]), Path(sys.argv[2]))
        sys.exit(0)
    sys.exit(INTERRUPTED)
