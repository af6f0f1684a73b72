"""The state of each task, from its files and its job."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from attnsweep.plan import SweepPlan, Task
from attnsweep.slurm import SlurmError, find_cancelled, find_job_states
from attnsweep.submission import LOGS, Submission, list_submissions
from attnsweep.tries import TASKS, Outcome, TaskResults, Try, list_tries, read_results

__all__ = ["STATES", "State", "StateReader", "TaskState"]

State = Literal["queued", "running", "done", "failed", "missing"]
STATES: tuple[State, ...] = get_args(State)
# States of a job in Slurm in which it has not begun, or will begin again.
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# Outcomes after which a job is not started again; Slurm starts one again that was preempted or ran out of time.
ENDED = ("done", "failed", "interrupted")
# Seconds for which a job that Slurm starts again counts as queued although Slurm does not show it: a job that has just
# been requeued is in no queue for a moment, and nodes may have clocks that differ a little.
REQUEUE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """What is known about one task.

    ``done``: its run files have every result, and none is being written, whatever became of its job. ``queued``,
    ``running``: its job waits or runs. ``failed``: as many tries failed as the plan allows. ``missing``: none of these,
    so --resume submits it.
    """

    task: Task
    state: State
    results: TaskResults
    tries: tuple[Try, ...]
    # The job that was submitted last; empty if there is none.
    job: str = ""
    # Why the task is missing or failed, in one line.
    reason: str = ""


@dataclass(slots=True)
class _Jobs:
    """What is known about jobs: whether each one that has not ended waits or runs, and which ones were cancelled."""

    active: dict[str, State]
    cancelled: set[str] = field(default_factory=set)


@dataclass(slots=True)
class StateReader:
    """Reads the states of all tasks of a sweep; run files that did not change are read once.

    Without ``needs_slurm``, a Slurm that does not answer is not asked again: its jobs count as ended, and ``silence``
    has the error.
    """

    folder: Path
    plan: SweepPlan
    needs_slurm: bool = True
    silence: SlurmError | None = field(default=None, init=False)
    _read: dict[str, tuple[object, TaskResults]] = field(default_factory=dict, init=False)

    def read(self, coming: Sequence[Task] = ()) -> list[TaskState]:
        """Return the state of every task; ``coming`` are queued by this process, which has not started them yet.

        Raises: ConfigurationError where Slurm does not answer and is needed, or a file is of another plan.
        """
        submissions = list_submissions(self.folder)
        last = {name: own[-1] for name, own in submissions.items()}
        # Slurm is asked before the files are read: a job that ends after the answer is still called running. It is not
        # asked about jobs that have stored their end, so that a finished sweep can be seen where there is no Slurm.
        submitted = [(last[task.name], task) for task in self.plan.tasks if task.name in last]
        jobs = self._find_jobs([(one, self._find_outcome(task, one)) for one, task in submitted])
        names = {task.name for task in coming}
        return [self._read_one(task, last.get(task.name), jobs, task.name in names) for task in self.plan.tasks]

    def _find_outcome(self, task: Task, submission: Submission) -> Outcome | None:
        """Return how the last try of a task ended, if it is of the job of this submission."""
        tries = list_tries(self.folder, task)
        return tries[-1].outcome if tries and tries[-1].job == submission.job else None

    def _find_jobs(self, submitted: Sequence[tuple[Submission, Outcome | None]]) -> _Jobs:
        """Return what is known about the last job of each task; the outcome is that of its last try.

        Raises: SlurmError where Slurm does not answer and is needed.
        """
        left = [(one, outcome) for one, outcome in submitted if outcome not in ENDED]
        in_slurm = {one.job: outcome for one, outcome in left if one.executor == "slurm"}
        jobs = _Jobs(active={one.job: "running" for one, _ in left if one.executor == "local" and _runs_here(one.job)})
        if self.silence is None:
            try:
                for job, state in find_job_states(in_slurm).items():
                    jobs.active[job] = "queued" if state in WAITING else "running"
                ended = (job for job, outcome in in_slurm.items() if outcome is None and job not in jobs.active)
                stopped = (job for job, outcome in in_slurm.items() if outcome == "stopped")
                jobs.cancelled |= find_cancelled([*ended, *stopped])
            except SlurmError as error:
                if self.needs_slurm:
                    raise
                self.silence = error
        return jobs

    def _read_one(self, task: Task, last: Submission | None, jobs: _Jobs, coming: bool) -> TaskState:  # noqa: FBT001
        tries = list_tries(self.folder, task)
        results = self._read_results(task, tries)
        job = last.job if last else ""
        failed = results.count_failed(tries)
        state: State
        # A job that has written every result has still to store the end of its run.
        ends = job in jobs.active and bool(tries) and tries[-1].outcome is None
        if results.complete == results.wanted and not ends:
            state = "done"
        elif job in jobs.active:
            state = jobs.active[job]
        elif coming or (job not in jobs.cancelled and _is_requeued(tries, last)):
            state = "queued"
        else:
            state = "failed" if failed >= self.plan.tries else "missing"
        reason = ""
        if state in ("failed", "missing"):
            reason = self._describe(results, tries, last, is_cancelled=job in jobs.cancelled)
        return TaskState(task=task, state=state, results=results, tries=tuple(tries), job=job, reason=reason)

    def _read_results(self, task: Task, tries: list[Try]) -> TaskResults:
        """Return what the run files have; they are read again only where one has another size or time."""
        paths = (self.folder / TASKS / f"{task.name}-try{one.count}.jsonl" for one in tries)
        stats = [(path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None for path in paths]
        before = self._read.get(task.name)
        if before is None or before[0] != stats:
            before = self._read[task.name] = (stats, read_results(self.folder, self.plan, task, tries))
        return before[1]

    def _describe(
        self, results: TaskResults, tries: Sequence[Try], last: Submission | None, *, is_cancelled: bool
    ) -> str:
        have = f"{results.complete} of {results.wanted} results"
        if last is None:
            return f"{have}; not submitted"
        if all(one.job != last.job for one in tries):
            log = self.folder / LOGS / f"{last.job}_0_log.err"
            has_log = log.exists() and log.stat().st_size
            how = "was cancelled" if is_cancelled else "ended"
            return f"{have}; job {last.job} {how} before the task began{f': see {log}' if has_log else ''}"
        ended = tries[-1]
        failures = results.count_failed(tries)
        words = {None: "was killed", "done": "ended, but its run file lacks results"}
        outcome = words.get(ended.outcome, ended.outcome)
        why = f": {ended.reason}" if ended.reason else ""
        often = f"failed {_count_times(failures)}; " if failures else ""
        return f"{have}; {often}try {ended.count} {outcome}{why}"


def _is_requeued(tries: Sequence[Try], last: Submission | None) -> bool:
    """Return whether the last try of a job in Slurm ended just now, in a way after which Slurm starts the job again."""
    if last is None or last.executor != "slurm" or not tries or tries[-1].job != last.job:
        return False
    ended = tries[-1]
    if ended.outcome is None or ended.outcome in ENDED or not ended.ended:
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(ended.ended)).total_seconds() < REQUEUE_S


def _count_times(count: int) -> str:
    return {1: "once", 2: "twice", 3: "three times"}.get(count, f"{count} times")


def _runs_here(process: str) -> bool:
    """Return whether a local job of submitit has this process id."""
    try:
        return b"submitit" in Path("/proc", process, "cmdline").read_bytes()
    except OSError:
        return False
