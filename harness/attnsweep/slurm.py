"""Questions to Slurm: what its commands print, and the states of jobs."""

import re
import shutil
import subprocess
from collections.abc import Iterable

from attnsweep.configuration import ConfigurationError

__all__ = ["SlurmError", "ask_slurm", "find_cancelled", "find_hopeless", "find_job_states", "require_slurm"]

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
    for command in ("sbatch", "srun", "squeue", "sinfo"):
        if shutil.which(command) is None:
            raise SlurmError(
                f"no {command} on this machine: submit from a machine of a Slurm cluster, or run the sweep here with "
                "--local"
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
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=ANSWER_S).stdout
    except subprocess.CalledProcessError as error:
        reason = next((line.strip() for line in error.stderr.splitlines() if line.strip()), "no reason was printed")
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise SlurmError(
        f"Slurm does not answer {words[0]}: {reason}; try again when it does, or run the sweep here with --local"
    )
