"""The job of a sweep: a job of checking or timing, divided into tasks for several kinds of machine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnbench.jobs.errors import JobError
from attnbench.jobs.job import ConformJob, ProfileJob, parse, require_here
from attnbench.jobs.stored import store_job
from attnsweep.configuration import Kind

__all__ = ["KINDS", "SweepJob", "build_sweep_job"]

KINDS: Mapping[str, type[ConformJob | ProfileJob]] = {"conform": ConformJob, "profile": ProfileJob}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """What a sweep is asked to do."""

    # Its cases, implementations and limits; ``results`` is the folder of the sweep.
    job: ConformJob | ProfileJob
    # Time limit of a task, and number of failed tries after which it is given up; None: that of the resumed sweep.
    minutes: int
    tries: int | None
    # Most cases of a task.
    most_cases: int | None = None
    # Time limit for the first job on each kind of node, in seconds.
    probe_s: float
    # Folder of earlier runs, for estimates.
    earlier: Path
    allow_different_versions: bool = False
    # Whether the tasks run on this machine.
    is_local: bool = False

    @property
    def kind(self) -> Kind:
        """What a task does."""
        return "conform" if isinstance(self.job, ConformJob) else "profile"

    def list_asked(self) -> dict[str, Any]:
        """Return what makes this sweep another than others, as JSON values."""
        options = {name: value for name, value in store_job(self.job).options.items() if name != "results"}
        own = ("minutes", "most_cases", "allow_different_versions")
        return {"kind": self.kind, **options, **{name: getattr(self, name) for name in own}}


def build_sweep_job(kind: Kind, raw: Mapping[str, Any], settings: Mapping[str, Any]) -> SweepJob:
    """Return the job of a sweep.

    ``raw`` has the words of the fields of the job, and ``settings`` the values of the other fields of ``SweepJob``.

    Raises: JobError for a value that cannot be used, and for a field that only a profile has.
    """
    words = {name: value for name, value in raw.items() if value not in (None, (), False)}
    known = {one.name for one in fields(KINDS[kind])}
    if kind == "conform":
        # The operators are those of the implementations.
        words.pop("operators", None)
        for name in words.keys() - known:
            raise JobError(name, f"a sweep of kind conform has the cases of its suite; leave {{{name}}} out")
    job = parse(KINDS[kind], words)
    # A node may have more cores than this machine.
    require_here(replace(job, threads=None))
    return SweepJob(job=job, **settings)
