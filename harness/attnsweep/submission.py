"""Submitting tasks: to Slurm as one array for each kind of machine, or to this machine one after another."""

import contextlib
import io
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from attnbench.refusals import write_install_line
from attnsweep.configuration import ConfigurationError, Machine
from attnsweep.plan import SweepPlan, Task
from attnsweep.slurm import find_hopeless, find_job_states, list_settings
from attnsweep.task import NOTICE_S, Probe, Seen, TaskJob, find_differences
from attnsweep.tries import TASKS

__all__ = [
    "LOGS",
    "Submission",
    "hold_folder",
    "list_submissions",
    "load_submitit",
    "probe",
    "submit_locally",
    "submit_to_slurm",
]

# Name of the file that says which job runs which task, and of the folder of submitit's files and logs.
SUBMISSIONS, LOGS = "submissions.jsonl", "submitit"
# Largest number of jobs in one array: Slurm's default of MaxArraySize is 1001.
ARRAY = 1000
# Number of time-outs after which submitit ends a job: more than there will be, since a task counts them itself.
MOST_TIMEOUTS = 1_000_000
# Seconds after the end of a probe's job within which its file must be seen here: NFS keeps attributes for up to 60 s
# (man 5 nfs, acdirmax).
SEEN_WITHIN_S = 60.0
# Seconds between two questions about a probe, and about a local job.
POLL_S, LOCAL_POLL_S = 2.0, 0.2
# Seconds to wait for the end of a local job that is told to stop; it ends its workers first.
STOPPED_WITHIN_S = 15.0


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """One task given to Slurm or started here."""

    task: str
    job: str
    executor: Literal["slurm", "local"]


def load_submitit() -> ModuleType:
    """Return the package submitit.

    Raises: ConfigurationError where it is not installed.
    """
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"submitit is not installed, and a sweep needs it: {write_install_line('slurm')}"
        ) from error
    found: ModuleType = submitit
    return found


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from submitting tasks of the same sweep.

    Raises: ConfigurationError where another process submits.
    """
    import fcntl

    with (folder / "submitting.lock").open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process submits tasks of the sweep in {folder}: see it with --status, or wait for its end"
            ) from error
        except OSError:  # the file system has no locks: go on without one
            pass
        yield


def list_submissions(folder: Path) -> dict[str, list[Submission]]:
    """Return the submissions of each task, in their order; a line that cannot be read is left out."""
    found: dict[str, list[Submission]] = {}
    path = folder / SUBMISSIONS
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.MsgspecError):
            one = msgspec.json.decode(line, type=Submission)
            found.setdefault(one.task, []).append(one)
    return found


def submit_to_slurm(folder: Path, plan: SweepPlan, tasks: Sequence[Task]) -> list[str]:
    """Submit tasks as one array for each kind of machine; return the ids of the arrays.

    Raises: ConfigurationError where Slurm refuses a job.
    """
    ids: list[str] = []
    for machine in plan.machines:
        own = [task for task in tasks if task.machine == machine.name]
        executor = _make_slurm_executor(folder, machine, minutes=plan.minutes, name=plan.hash)
        for first in range(0, len(own), ARRAY):
            part = own[first : first + ARRAY]
            calls = [TaskJob(folder=str(folder.resolve()), machine=one.machine, number=one.number) for one in part]
            jobs = _submit(executor, calls)
            pairs = zip(part, jobs, strict=True)
            _store(folder, [Submission(task=task.name, job=job.job_id, executor="slurm") for task, job in pairs])
            ids.append(jobs[0].job_id.partition("_")[0])
    return ids


def submit_locally(
    folder: Path, plan: SweepPlan, tasks: Sequence[Task], watch: Callable[[Sequence[Task]], object]
) -> None:
    """Run tasks on this machine, one after another: tasks at the same time would disturb each other's times.

    ``watch`` is called again and again while they run, with the tasks that are about to run.
    """
    submitit = load_submitit()
    executor = submitit.LocalExecutor(folder=folder.resolve() / LOGS, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(timeout_min=plan.minutes, signal_delay_s=NOTICE_S)
    for number, task in enumerate(tasks, start=1):
        call = TaskJob(
            folder=str(folder.resolve()), machine=task.machine, number=task.number,
            devices=os.environ.get("CUDA_VISIBLE_DEVICES"), is_local=True,
        )  # fmt: skip
        with _ignoring_interrupts():
            job = executor.submit(call)
        _store(folder, [Submission(task=task.name, job=job.job_id, executor="local")])
        try:
            while not job.done():
                watch(tasks[number - 1 :])
                time.sleep(LOCAL_POLL_S)
        except BaseException:
            _stop(job)
            raise
        watch(tasks[number:])


def _stop(job: Any) -> None:
    """End a local job, and wait until it has stored that it was interrupted."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(job.job_id), signal.SIGTERM)
    until_s = time.monotonic() + STOPPED_WITHIN_S
    while not job.done() and time.monotonic() < until_s:
        time.sleep(LOCAL_POLL_S)


def probe(folder: Path, plan: SweepPlan, *, wait_s: float, tell: Callable[[str], object]) -> None:
    """Check that every kind of machine writes to the folder of the sweep, and has the versions of the plan.

    ``tell`` gets a line on what is waited for.

    Raises: ConfigurationError where one does not, where Slurm refuses a job, or where no answer came in ``wait_s``.
    """
    token = secrets.token_hex(8)
    place = folder.resolve() / "probes"
    place.mkdir(parents=True, exist_ok=True)
    waiting = {}
    try:
        for machine in plan.machines:
            path = place / f"{machine.name}-{token}.json"
            executor = _make_slurm_executor(folder, machine, minutes=plan.minutes, name=f"probe-{plan.hash}")
            call = Probe(path=str(path), token=token, case=plan.find_device_case(machine.name))
            waiting[machine.name] = (path, _submit(executor, [call])[0])
        jobs = ", ".join(f"{job.job_id} on {name}" for name, (_, job) in waiting.items())
        tell(f"test of the nodes: waiting up to {wait_s:g} s for a file in {place} from each of the jobs {jobs}")
        _wait_for_probes(plan, waiting, token, wait_s, tell)
    except BaseException:
        for _, job in waiting.values():
            with contextlib.suppress(OSError):
                job.cancel(check=False)
        raise


def _wait_for_probes(
    plan: SweepPlan, jobs: dict[str, tuple[Path, Any]], token: str, wait_s: float, tell: Callable[[str], object]
) -> None:
    began_s = time.monotonic()
    ended_s: dict[str, float] = {}
    waiting = dict(jobs)
    while waiting:
        states = find_job_states(job.job_id for _, job in waiting.values())
        hopeless = find_hopeless(job.job_id for _, job in waiting.values())
        for name, (path, job) in list(waiting.items()):
            seen = _read_probe(path)
            if seen is not None and seen.token == token:
                _check_seen(plan, name, seen)
                del waiting[name]
                continue
            if (reason := hopeless.get(job.job_id)) is not None:
                raise ConfigurationError(
                    f"machine {name!r}: Slurm will not start job {job.job_id}: {reason}; change the machine's settings"
                )
            if job.job_id not in states and name not in ended_s:
                ended_s[name] = time.monotonic()
                tell(f"job {job.job_id} ended; waiting up to {SEEN_WITHIN_S:g} s until its file is seen here")
            now_s = time.monotonic()
            if name in ended_s and (now_s - ended_s[name] >= SEEN_WITHIN_S or now_s - began_s >= wait_s):
                raise ConfigurationError(
                    f"machine {name!r}: job {job.job_id} ended, and {path.name} is not in {path.parent}: the nodes do "
                    f"not share this folder, or cannot start {sys.executable}; its log is {job.paths.stderr}, if the "
                    "folder is shared; name a shared folder with --results"
                )
        if waiting and time.monotonic() - began_s >= wait_s:
            told = ", ".join(f"{name} ({states.get(job.job_id, 'ended')})" for name, (_, job) in waiting.items())
            raise ConfigurationError(
                f"no answer in {wait_s:g} s from a job on {told}; wait longer with --probe, or change the machine"
            )
        if waiting:
            time.sleep(POLL_S)


def _check_seen(plan: SweepPlan, machine: str, seen: Seen) -> None:
    """Refuse a kind of machine that has other versions than the plan, or lacks a device.

    Raises: ConfigurationError.
    """
    differences = find_differences(plan.versions, seen.versions)
    if differences and not plan.allow_different_versions:
        raise ConfigurationError(
            f"machine {machine!r} has {differences}: install the same there, or set allow_different_versions"
        )
    if seen.missing:
        raise ConfigurationError(
            f"machine {machine!r}: on its node, {seen.missing}; Slurm gives a job a GPU if gres asks for it"
        )


def _read_probe(path: Path) -> Seen | None:
    # Reading the folder makes NFS look at the server again.
    list(path.parent.iterdir())
    try:
        return msgspec.json.decode(path.read_bytes(), type=Seen)
    except (OSError, msgspec.MsgspecError):
        return None


def _make_slurm_executor(folder: Path, machine: Machine, *, minutes: int, name: str) -> Any:
    submitit = load_submitit()
    executor = submitit.SlurmExecutor(folder=folder.resolve() / LOGS, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(
        job_name=f"attnbench-{name}",
        time=minutes,
        signal_delay_s=NOTICE_S,
        array_parallelism=ARRAY,
        # Since Slurm 22.05, srun does not take the number of cores from sbatch.
        srun_args=[f"--cpus-per-task={machine.cpus}"] if machine.cpus else [],
        additional_parameters={"requeue": True},
        **list_settings(machine),
    )
    return executor


def _submit(executor: Any, calls: Sequence[Any]) -> list[Any]:
    """Submit calls as one array.

    Raises: ConfigurationError where Slurm refuses.
    """
    submitit = load_submitit()
    try:
        # submitit copies what sbatch says to stderr; the error has it, too.
        with contextlib.redirect_stderr(io.StringIO()), executor.batch():
            return [executor.submit(call) for call in calls]
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        lines = [line for line in str(error).splitlines() if "error:" in line] or str(error).splitlines()[-1:]
        raise ConfigurationError(f"Slurm refuses the job: {' '.join(lines)}; change the machine's settings") from error


def _store(folder: Path, submissions: Sequence[Submission]) -> None:
    (folder / TASKS).mkdir(exist_ok=True)
    with (folder / SUBMISSIONS).open("ab") as stream:
        stream.write(b"".join(msgspec.json.encode(one) + b"\n" for one in submissions))


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C: submitit's would print a traceback. ``_stop`` ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
