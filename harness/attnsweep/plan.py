"""The plan of a sweep: which cases run, in which task, on which kind of machine."""

import hashlib
import heapq
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from attnbench.cases import CaseId
from attnsweep.configuration import ConfigurationError, Kind, Machine

__all__ = [
    "PLAN", "SweepPlan", "Task", "allow_tries", "hash_asked", "pack", "read_plan", "replace_file", "require_no_plan",
    "write_plan",
]  # fmt: skip

# Name of the plan's file in the folder of the sweep.
PLAN = "plan.json"
# Part of a task's time limit that is filled. Estimates come from other cases and machines: a task that takes twice as
# long as estimated still ends in time.
FILLED = 0.5


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Cases that one job runs, each with all implementations that are compared on it."""

    machine: str
    # Number of the task among those of its kind of machine, from 1.
    number: int
    cases: tuple[str, ...]
    # Estimated seconds.
    estimate_s: float

    @property
    def name(self) -> str:
        """Kind of machine and number, such as "a100/0003": the path of the task's files, without their endings."""
        return f"{self.machine}/{self.number:04d}"


# A property that is kept needs a dictionary.
class SweepPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All tasks of a sweep, and what they need to know."""

    kind: Kind
    # The operator of each implementation, by the name with which the implementation is loaded.
    operators: dict[str, str]
    # Values of the options of ``conform`` or ``profile``, by parameter name, without those that choose cases.
    options: dict[str, Any]
    # Versions of attnbench and torch where the plan was made.
    versions: dict[str, str]
    allow_different_versions: bool
    machines: tuple[Machine, ...]
    # Time limit of a task, and the number of failed tries after which a task is not started again.
    minutes: int
    tries: int
    tasks: tuple[Task, ...]
    # Where the estimates are from.
    origin: str
    # Hash of what was asked for: the same configuration has the same hash.
    asked: str = ""
    # The words of the command that made the plan, after ``attnbench``.
    words: tuple[str, ...] = ()

    # Kept, because it is compared with the record of each try: of a million results it takes 0.1 s.
    @cached_property
    def hash(self) -> str:
        """Hash of the plan, which the record of each try repeats.

        --resume may change the number of tries, and the words of a dry run are others than those of its sweep.
        """
        fixed = msgspec.structs.replace(self, tries=0, words=())
        return hashlib.sha256(msgspec.json.encode(fixed, order="sorted")).hexdigest()[:12]

    def list_implementations(self, case: str) -> list[str]:
        """Return the names of the implementations that are compared on a case."""
        operator = case.partition("/")[0]
        return [name for name, own in self.operators.items() if own == operator]

    def find_machine(self, name: str) -> Machine:
        """Return the kind of machine with this name."""
        return next(machine for machine in self.machines if machine.name == name)

    def find_device_case(self, machine: str) -> str:
        """Return a case on a kind of machine whose device is not the CPU; empty if there is none."""
        cases = (case for task in self.tasks if task.machine == machine for case in task.cases)
        return next((case for case in cases if CaseId.parse(case).device != "cpu"), "")

    def count_results(self) -> int:
        """Return the number of results of the whole sweep: one for each case, implementation and kind of machine."""
        return sum(len(self.list_implementations(case)) for task in self.tasks for case in task.cases)


def pack(estimates: Mapping[str, float], *, machine: str, minutes: int, most: int | None, start_s: float) -> list[Task]:
    """Divide cases into tasks of about equal time: the longest case first, each to the task that has least to do.

    ``estimates`` has the seconds of each case, in the order in which cases run. ``most`` is the largest number of cases
    of a task. ``start_s`` is the time of a task without any case. A case that alone exceeds the limit gets a task too.
    """
    if not estimates:
        return []
    room_s = max(FILLED * minutes * 60 - start_s, 1.0)
    count = max(math.ceil(sum(estimates.values()) / room_s), math.ceil(len(estimates) / (most or len(estimates))))
    loads: list[tuple[float, int]] = [(0.0, index) for index in range(min(count, len(estimates)))]
    parts: list[list[str]] = [[] for _ in loads]
    for case in sorted(estimates, key=lambda case: (-estimates[case], case)):
        load_s, index = heapq.heappop(loads)
        parts[index].append(case)
        if most is None or len(parts[index]) < most:
            heapq.heappush(loads, (load_s + estimates[case], index))
    places = {case: place for place, case in enumerate(estimates)}
    return [
        Task(
            machine=machine,
            number=number,
            cases=tuple(sorted(part, key=places.__getitem__)),
            estimate_s=round(start_s + sum(estimates[case] for case in part), 1),
        )
        for number, part in enumerate(parts, start=1)
    ]


def hash_asked(asked: Mapping[str, Any], implementations: Sequence[str], machines: Sequence[Machine]) -> str:
    """Return a hash of a configuration."""
    text = msgspec.json.encode([asked, implementations, machines], order="sorted", enc_hook=str)
    return hashlib.sha256(text).hexdigest()[:12]


def require_no_plan(folder: Path) -> None:
    """Refuse a folder that has a sweep.

    Raises: ConfigurationError.
    """
    if (folder / PLAN).exists():
        raise ConfigurationError(
            f"{folder} has a sweep already: continue it with --resume, see it with --status, or name another folder "
            "with --results"
        )


def write_plan(folder: Path, plan: SweepPlan) -> None:
    """Write a plan into the folder of its sweep.

    Raises: ConfigurationError where the folder has a plan already, or cannot be written.
    """
    path = folder / PLAN
    require_no_plan(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            stream.write(_format_plan(plan))
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}; name another folder with --results"
        ) from error


def allow_tries(folder: Path, plan: SweepPlan, tries: int) -> SweepPlan:
    """Store another number of failed tries after which a task is given up; return the plan with it.

    Raises: ConfigurationError where the folder cannot be written.
    """
    changed = msgspec.structs.replace(plan, tries=tries)
    path = folder / PLAN
    try:
        replace_file(path, _format_plan(changed))
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}; resume as a user who may write it") from error
    return changed


def replace_file(path: Path, content: bytes) -> None:
    """Write a JSON file anew: whoever reads it meanwhile reads all of the old content or all of the new.

    Raises: OSError where the folder cannot be written.
    """
    new = path.with_suffix(".json-new")
    new.write_bytes(content)
    os.replace(new, path)  # noqa: PTH105  # Path.replace is the same; this says that it is atomic


def _format_plan(plan: SweepPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def read_plan(folder: Path) -> SweepPlan:
    """Read the plan of the sweep in a folder.

    Raises: ConfigurationError where there is none, or it cannot be read.
    """
    path = folder / PLAN
    try:
        return msgspec.json.decode(path.read_bytes(), type=SweepPlan)
    except OSError as error:
        raise ConfigurationError(
            f"{folder} has no sweep: {path.name}: {error.strerror}; start one without --status and --resume, or name "
            "its folder with --results"
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{path} is not the plan of a sweep: {error}") from error
