"""Questions to Slurm: the features of its nodes, and the states of jobs."""

import re
import shutil
import subprocess
from collections.abc import Iterable

from attnbench.sweep.configuration import ConfigurationError

__all__ = ["check_constraints", "find_job_states", "require_slurm"]

# Seconds to wait for an answer; Slurm's own limit is 10 s (MessageTimeout), and a busy controller is asked again.
ANSWER_S = 60
# A feature in a constraint such as "[a100*2&nvlink|h100]"; a number is a count.
FEATURE = re.compile(r"[A-Za-z_][\w.:=-]*")


def require_slurm() -> None:
    """Refuse to submit where Slurm's commands are not installed.

    Raises: ConfigurationError.
    """
    for command in ("sbatch", "srun", "squeue", "sinfo"):
        if shutil.which(command) is None:
            raise ConfigurationError(
                f"no {command} on this machine: submit from a machine of a Slurm cluster, or run the sweep here with "
                "--local"
            )


def check_constraints(constraints: Iterable[str]) -> None:
    """Refuse a constraint with a feature that no node has.

    Raises: ConfigurationError, also where Slurm does not answer.
    """
    asked = [(constraint, name) for constraint in constraints for name in FEATURE.findall(constraint)]
    lines = _ask("sinfo", "--noheader", "--format=%f").split()
    existing = sorted({name for line in lines for name in line.split(",")} - {"(null)"})
    for constraint, name in asked:
        if name not in existing:
            raise ConfigurationError(
                f"constraint {constraint!r}: no node has the feature {name!r}; the nodes have: "
                f"{', '.join(existing) or 'no features'}"
            )


def find_job_states(jobs: Iterable[str]) -> dict[str, str]:
    """Return the state of each of these jobs that is still in the queue, such as PENDING or RUNNING.

    A job is an id, or the id of an array and a number in it, such as "17_3".

    Raises: ConfigurationError where Slurm does not answer.
    """
    wanted = set(jobs)
    if not wanted:
        return {}
    # Not --jobs=…, which fails where Slurm has forgotten one of the jobs.
    lines = _ask("squeue", "--me", "--noheader", "--array", "--format=%i|%T").splitlines()
    states = dict(line.strip().split("|", 1) for line in lines if "|" in line)
    return {job: state for job, state in states.items() if job in wanted}


def _ask(*words: str) -> str:
    """Return what a command of Slurm prints.

    Raises: ConfigurationError where it fails.
    """
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=ANSWER_S).stdout
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise ConfigurationError(f"Slurm does not answer {words[0]}: {reason}; try again when it does")
