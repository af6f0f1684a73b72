"""Questions to Slurm: whether it would take a job, and the states of jobs."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from attnsweep.configuration import ConfigurationError, Machine

__all__ = [
    "SlurmError",
    "ask_slurm",
    "check_machines",
    "find_cancelled",
    "find_hopeless",
    "find_job_states",
    "list_settings",
    "require_slurm",
]

# Seconds to wait for an answer; Slurm's own limit is 10 s (MessageTimeout), and a busy controller is asked again.
ANSWER_S = 60
# Reasons of a waiting job that do not end by waiting: it asks for what no node, partition, account or QOS has, or is
# held. Source of the words: https://slurm.schedmd.com/job_reason_codes.html.
HOPELESS = re.compile(
    r"Bad|Invalid|NotAllowed|Held|NeverSatisfied|NotSatisfied|Partition(Node|Time)Limit|PerJob|PerNode|PerLimit"
)


class SlurmError(ConfigurationError):
    """Raised where Slurm is not installed, or does not answer."""


def require_slurm() -> None:
    """Refuse to submit where Slurm's commands are not installed.

    Raises: SlurmError.
    """
    for command in ("sbatch", "srun", "squeue"):
        if shutil.which(command) is None:
            raise SlurmError(
                f"no {command} on this machine: submit from a machine of a Slurm cluster, or run the sweep here with "
                "--local"
            )


def list_settings(machine: Machine) -> dict[str, str | int]:
    """Return what a kind of machine asks for, by option of sbatch with "_" for "-"."""
    settings = {
        "constraint": machine.constraint, "gres": machine.gres, "partition": machine.partition,
        "account": machine.account, "qos": machine.qos, "cpus_per_task": machine.cpus, "mem": machine.memory,
    }  # fmt: skip
    return {name: value for name, value in settings.items() if value is not None}


def check_machines(machines: Iterable[Machine], *, minutes: int) -> None:
    """Refuse a kind of machine on which no node could now run a job of so many minutes, if all were idle.

    Slurm does not look at the time limit of a partition here, unless it enforces the limits of partitions; the probe
    waits in vain there.

    Raises: SlurmError where Slurm does not answer, ConfigurationError with Slurm's reason where it refuses.
    """
    # sbatch has one exit code for a refusal and for a Slurm that does not answer.
    ask_slurm("squeue", "--me", "--noheader")
    for machine in machines:
        settings = list_settings(machine) | {"time": minutes}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        done = _run(["sbatch", "--test-only", *options, "--wrap=true"])
        if done.returncode:
            reason = re.sub(r"^(sbatch: )?(error|allocation failure): ", "", _find_reason(done.stderr))
            raise ConfigurationError(
                f"machine {machine.name!r}: Slurm refuses a job with {' '.join(options)}: {reason}; change the "
                "machine's settings, or wait until its nodes are up"
            )


def find_job_states(jobs: Iterable[str]) -> dict[str, str]:
    """Return the state of each of these jobs that is still in the queue, such as PENDING or RUNNING.

    A job is an id, or the id of an array and a number in it, such as "17_3".

    Raises: SlurmError where Slurm does not answer.
    """
    return _ask_about_jobs(jobs, "%T")


def find_cancelled(jobs: Iterable[str]) -> set[str]:
    """Return which of these jobs were cancelled in the last minutes: Slurm remembers ended jobs for MinJobAge.

    Raises: SlurmError where Slurm does not answer.
    """
    return set(_ask_about_jobs(jobs, "%T", "--states=CANCELLED"))


def find_hopeless(jobs: Iterable[str]) -> dict[str, str]:
    """Return why each of these jobs that will never start does not, in Slurm's word, such as BadConstraints.

    Raises: SlurmError where Slurm does not answer.
    """
    reasons = _ask_about_jobs(jobs, "%r", "--states=PENDING")
    return {job: reason for job, reason in reasons.items() if HOPELESS.search(reason)}


def _ask_about_jobs(jobs: Iterable[str], field: str, *options: str) -> dict[str, str]:
    """Return a field that squeue prints, by job; jobs that it does not list are left out."""
    wanted = set(jobs)
    if not wanted:
        return {}
    # Not --jobs=…, which fails where Slurm has forgotten one of the jobs.
    lines = ask_slurm("squeue", "--me", "--noheader", "--array", *options, f"--format=%i|{field}").splitlines()
    found = dict(line.strip().split("|", 1) for line in lines if "|" in line)
    return {job: text for job, text in found.items() if job in wanted}


def ask_slurm(*words: str) -> str:
    """Return what a command of Slurm prints.

    Raises: SlurmError where it fails.
    """
    done = _run(words)
    if done.returncode:
        raise _make_error(words[0], _find_reason(done.stderr))
    return done.stdout


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm.

    Raises: SlurmError where it cannot be started, or does not end.
    """
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _make_error(words[0], str(error)) from error


def _make_error(command: str, reason: str) -> SlurmError:
    return SlurmError(
        f"Slurm does not answer {command}: {reason}; try again when it does, or run the sweep here with --local"
    )


def _find_reason(stderr: str) -> str:
    """Return the first line of an error, in which Slurm's commands give the most."""
    return next((line.strip() for line in stderr.splitlines() if line.strip()), "no reason was printed")
