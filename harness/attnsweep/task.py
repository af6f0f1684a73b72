"""What a job of a sweep runs: the cases of one task that no earlier try of it has finished."""

import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from attnbench.api.execution import Checks, conform_into, make_session, plan_conformance, record_profile
from attnbench.api.recording import Recording, record
from attnbench.api.selection import collect_expectations, drop_unloadable, find_operators
from attnbench.jobs.command_lines import format_command
from attnbench.jobs.job import ConformJob, ProfileJob, parse
from attnbench.jobs.stored import read_options
from attnbench.plugins.registry import display_name
from attnbench.records.environment import find_commit, find_node, find_versions
from attnbench.records.types import Planned, StoredJob
from attnbench.runner import Session
from attnbench.words.findings import describe_fact
from attnsweep.configuration import ConfigurationError
from attnsweep.cut_files import keep_counted
from attnsweep.plan import SweepPlan, Task, read_plan
from attnsweep.slurm import find_job_states
from attnsweep.sweep_job import KINDS
from attnsweep.tries import Pair, Try, begin_try, end_try, find_record, list_tries, list_wanted, read_results

__all__ = ["LEAST_MINUTES", "NOTICE_S", "Probe", "Seen", "TaskJob", "find_differences", "find_own_versions", "run_task"]

# Seconds before the time limit at which a task is told to stop, so that it is started again. Slurm may tell it up to
# 60 s earlier (man sbatch, --signal), and the job has begun before its process, by seconds or on a slow file system by
# a minute. An end from outside before that is a preemption.
NOTICE_S, EARLIER_S = 30, 120
# Shortest time limit of a job in Slurm, in minutes: with 1 min, the job is told at its start to stop.
LEAST_MINUTES = 2
# Signal on which submitit stores a job's progress and requeues the job.
REQUEUE = signal.SIGUSR2
LOGGER = logging.getLogger(__name__)


def find_own_versions() -> dict[str, str]:
    """Return the versions of attnbench and torch on this machine, and the commit of a checkout of attnbench."""
    found = {name: version for name, version in find_versions().items() if name in ("attnbench", "torch")}
    commit = find_commit(Path(__file__).parent)
    return found | ({"commit": commit} if commit else {})


def find_differences(planned: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Return which versions differ, in words; empty if none does."""
    names = [name for name in planned if found.get(name) != planned[name]]
    return ", ".join(f"{name} {found.get(name, 'not installed')} instead of {planned[name]}" for name in names)


@dataclass(slots=True)
class TaskJob:
    """The call that submitit stores and a node makes; submitit calls ``checkpoint`` before it starts it once more."""

    folder: str
    machine: str
    number: int
    # The CUDA devices that the submitting process sees, where the job is on the same machine: submitit's local executor
    # hides them.
    devices: str | None = None
    is_local: bool = False
    _task: Task | None = field(default=None, init=False)
    _made: Try | None = field(default=None, init=False)
    # Reading of the monotonic clock, in seconds, when this process began the try.
    _began_s: float = field(default=0.0, init=False)

    def __call__(self) -> str:
        """Run the task; return its outcome.

        Raises: any error that ends the task; it is in the record of the try as well.
        """
        if self.is_local:
            self._prepare_locally()
        folder = Path(self.folder)
        plan = read_plan(folder)
        task = next(one for one in plan.tasks if (one.machine, one.number) == (self.machine, self.number))
        self._task = task
        self._began_s = time.monotonic()
        self._made = begin_try(
            folder, plan, task, job=_find_job(), node=find_node(), versions=find_own_versions()
        )  # fmt: skip
        if not self.is_local:
            signal.signal(signal.SIGTERM, lambda *_: self._stop())
        try:
            run_task(folder, plan, task, self._made)
        except BaseException as error:
            self._end(error)
            raise
        end_try(folder, task, self._made, "done")
        return "done"

    def checkpoint(self) -> Any:
        """Store that this try was ended from outside, and return the call that goes on with what it left.

        Return None, so that submitit does not requeue the job, if as many tries failed as the plan allows. submitit
        counts time-outs itself, but takes each preemption of a job with a limit under 10 minutes for a time-out, and a
        time-out of a job that has progressed for a failure (SignalHandler.has_timed_out); so its count is not used.
        """
        from submitit.helpers import DelayedSubmission

        if self._made is not None and self._task is not None:
            folder = Path(self.folder)
            plan = read_plan(folder)
            taken_s = time.monotonic() - self._began_s
            limit_s = 60 * plan.minutes
            late = taken_s >= limit_s - NOTICE_S - EARLIER_S
            end_try(
                folder, self._task, self._made, "timed out" if late else "preempted",
                f"ended from outside after {taken_s:.0f} s of {limit_s} s",
            )  # fmt: skip
            self._made = None
            tries = list_tries(folder, self._task)
            if read_results(folder, plan, self._task, tries).count_failed(tries) >= plan.tries:
                return None
        return DelayedSubmission(
            TaskJob(
                folder=self.folder, machine=self.machine, number=self.number, devices=self.devices,
                is_local=self.is_local,
            )
        )  # fmt: skip

    def _end(self, error: BaseException) -> None:
        """Store the error that ended the try, unless its end is stored already."""
        if self._made is None or self._task is None:
            return
        if isinstance(error, KeyboardInterrupt):
            end_try(Path(self.folder), self._task, self._made, "interrupted")
        else:
            reason = str(error) or type(error).__name__
            end_try(Path(self.folder), self._task, self._made, "failed", reason)

    def _stop(self) -> None:
        """End the try because Slurm told the job to end; the handler of SIGTERM.

        Slurm sends SIGTERM to every process of a job that it cancels, requeues or preempts. The workers then die, which
        must not become a result. In the grace time of a preemption the job still runs, and ends as at its time limit;
        otherwise Slurm has already cancelled or requeued it.
        """
        if self._made is None or self._task is None:
            return
        job = _find_job()
        try:
            runs = find_job_states([job]).get(job) == "RUNNING"
        except ConfigurationError:  # Slurm does not answer, so that the job could not be requeued either
            runs = False
        if runs:
            signal.raise_signal(REQUEUE)
        else:
            end_try(Path(self.folder), self._task, self._made, "stopped", "Slurm cancelled or requeued the job")
            self._made = None
            sys.exit(1)

    def _prepare_locally(self) -> None:
        """Show the CUDA devices, and end like an interrupted command when the submitting process says so."""
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if self.devices is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.devices
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def run_task(folder: Path, plan: SweepPlan, task: Task, made: Try) -> None:
    """Run the cases of a task that no earlier try finished, into the run file of this try.

    Raises: ValueError where the versions of attnbench or torch differ from those of the plan.
    """
    differences = find_differences(plan.versions, made.versions)
    if differences and not plan.allow_different_versions:
        raise ValueError(f"this node has {differences}; install the same, or set allow_different_versions")
    before = [one for one in list_tries(folder, task) if one.count < made.count]
    left = list_wanted(plan, task) - keep_counted(folder, plan, task, before)
    if not left:
        return
    unfinished = {case for _, case in left}
    job = _make_job(plan, task, [case for case in task.cases if case in unfinished])
    path = find_record(folder, task, made.count).with_suffix(".jsonl")
    whole = sorted({case for one in plan.tasks for case in one.cases})

    def store(session: Session, **settings: Any) -> AbstractContextManager[Recording]:
        # The hash of the whole list, which is stored, is that of all tasks: they can be merged.
        session.whole_lists += whole
        stored = StoredJob(command="sweep", options=plan.options)
        return record(session, command=format_command(plan.words or ["sweep"]), stored=stored, path=path, **settings)

    # Every task has all implementations, so that all run files of a sweep are of the same ones.
    if isinstance(job, ProfileJob):
        record_profile(job, start_recording=store, announce=LOGGER.warning)
    else:
        _conform(job, store, left)


def _conform(job: ConformJob, store: Callable[..., AbstractContextManager[Recording]], left: Set[Pair]) -> None:
    """Check the implementations on the cases, as far as their results are ``left`` to do."""
    counts = Counter(name for name, _ in left)
    with make_session(job) as session:
        chosen = drop_unloadable(session, job.implementations, asked=True, keeps=len(job.implementations) == 1)
        plans = plan_conformance(session, job, find_operators(session, chosen))
        checks = Checks(plans=plans, expectations=collect_expectations(session, chosen, (), plans))
        pairs = ((display_name(name), plan.case) for name in chosen for plan in plans)
        with store(
            session, job=job, suite=job.suite, cases=[plan.case for plan in plans], implementations=chosen,
            planned={display_name(name): Planned(cases=counts[display_name(name)]) for name in chosen},
        ) as recorded:  # fmt: skip
            conform_into(recorded, session, chosen, checks, job.suite, done=frozenset(pairs).difference(left))
            recorded.exit_code = recorded.choose_exit_code([name for name in chosen if counts[display_name(name)]])


def _make_job(plan: SweepPlan, task: Task, cases: list[str]) -> ConformJob | ProfileJob:
    """Return the job that runs these cases, which have their dtypes and devices, on the machine of this task."""
    kind = KINDS[plan.kind]
    fields = read_options(kind, plan.options) | {"implementations": tuple(plan.operators), "cases": tuple(cases)}
    job = parse(kind, fields)
    return replace(job, threads=job.threads or plan.find_machine(task.machine).cpus, results=Path())


def _find_job() -> str:
    """Return the id of this job: Slurm's, with the number in its array, or that of the local job's process."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and index:
        return f"{array}_{index}"
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SUBMITIT_LOCAL_JOB_ID") or str(os.getpid())


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe writes."""

    token: str
    versions: dict[str, str]
    # What the node lacks to run the case of the probe; None if it lacks nothing.
    missing: str | None = None


@dataclass(slots=True)
class Probe:
    """A job that shows that a kind of machine writes to the same folder, and which versions and devices it has."""

    path: str
    token: str
    # A case on another device than the CPU; empty if there is none.
    case: str = ""

    def __call__(self) -> None:
        """Write the file."""
        missing = None
        if self.case:
            with Session(cache_folder=None) as session:
                missing = session.plan([self.case])[0].missing
        told = describe_fact(missing) if missing else None
        seen = Seen(token=self.token, versions=find_own_versions(), missing=told)
        Path(self.path).write_bytes(msgspec.json.encode(seen))
