"""The kinds of job, as frozen values that refuse fields which exclude or contradict one another."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from attnbench.cases import LEVELS, Dtype, Level, Shape
from attnbench.devices import HOST
from attnbench.jobs.axes import AXES, make_shapes
from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import FIELDS, FUZZ, parse_fields
from attnbench.jobs.values import Length
from attnbench.plugins.registry import OPERATORS, list_names
from attnbench.records.environment import count_cores
from attnbench.records.types import Pass

__all__ = [
    "COMMANDS",
    "CompareJob",
    "ConformJob",
    "Job",
    "ProfileJob",
    "RecordedJob",
    "RunJob",
    "TimedJob",
    "build",
    "parse",
    "require_here",
    "require_listed",
]  # fmt: skip

# Default sequence lengths of a profile, in tokens: with the suite quick, and with any other suite.
QUICK_LENGTHS, LENGTHS = (32, 128, 512), (128, 256, 512, 1024, 2048)
# Default sequence lengths at which two implementations are compared. At 128 a call spends most of its time on overhead,
# at 512 on computation.
COMPARED_LENGTHS = (128, 512)
# Default work limit of the suite quick, in seconds: a call that is predicted to take longer is not
# started. The checks of the suite make each call some forty times, and each of seven timing
# processes makes it seven times. The limit just allows a call of the naive loop (the slowest
# implementation) on real sentences without gradients. Without the limit, the naive loop would take
# as long as all other implementations together.
QUICK_WORK_S = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every job may set: the limits of its workers."""

    # Largest wall time of one check on one case.
    timeout_s: float = 120.0
    # Largest predicted time of a call that is started; None: the default of the job.
    work_limit_s: float | None = None
    # Memory limit of a worker; None: most of the free memory.
    memory_bytes: int | None = None
    # Threads of each worker; None: torch's default.
    threads: int | None = None
    # Whether all expected values are computed, without their cache.
    no_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob(Job):
    """A job that selects cases, and whose run is stored."""

    # Name of the command.
    command: ClassVar[str]
    # Patterns of case ids, or whole ids; a whole id need not be in the suite.
    cases: tuple[str, ...] = ()
    dtype: tuple[Dtype, ...] = ()
    device: str = HOST
    # I and N of part I of N of the cases.
    shard: tuple[int, int] | None = None
    # Folder of run files.
    results: Path = Path("results")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformJob(RecordedJob):
    """Check implementations on the cases of a suite, or on generated cases."""

    command: ClassVar[str] = "conform"
    implementations: tuple[str, ...] = ()
    suite: Level | Literal["fuzz"] = "quick"
    # Names of checks, or patterns of names.
    checks: tuple[str, ...] = ()
    expected_failures: tuple[Path, ...] = ()
    # Whether no supplementary cases are added.
    no_completion: bool = False
    # Limits and seed of a search with generated cases.
    budget_s: float | None = None
    examples: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse fields that need or exclude generated cases.

        Raises: JobError.
        """
        generates = self.suite == FUZZ
        for name in ("cases", "dtype", "shard") if generates else ("budget_s", "examples", "seed"):
            if getattr(self, name) not in (None, ()):
                raise JobError(
                    name,
                    "selects listed cases, but {suite} fuzz generates cases: leave it out"
                    if generates
                    else "needs generated cases: add {suite} fuzz",
                )

    @property
    def filters(self) -> tuple[str, ...]:
        """The fields that leave out or change cases or checks of the suite."""
        return tuple(name for name in ("cases", "checks", "dtype", "shard") if getattr(self, name))

    @property
    def whole(self) -> bool:
        """Whether every case of the suite is run with every check, in its own dtype or in others."""
        return not set(self.filters) - {"dtype"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedJob(RecordedJob):
    """A job that times calls; sizes and masks are multiplied with one another."""

    lengths: tuple[Length, ...] = ()
    batch: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    head_dim: tuple[int, ...] = ()
    width: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    mask: tuple[str, ...] = ()
    padding: tuple[float, ...] = ()
    # Name of a well-known model, whose sizes are taken.
    like: str | None = None
    # Passes to time; empty: both.
    passes: tuple[Pass, ...] = ()
    # Number of timing processes; None: as many as a verdict needs.
    processes: int | None = None
    # Limit of the time for one case.
    case_budget_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that exclude or contradict one another.

        Raises: JobError.
        """
        self.make_shapes()
        if self.chosen_axes and any(not set("*?[") & set(pattern) for pattern in self.cases):
            axes = ", ".join(f"{{{name}}}" for name in self.chosen_axes)
            raise JobError("cases", f"a complete case id has its own sizes: leave out {axes}")

    @property
    def default_lengths(self) -> tuple[Length, ...]:
        """Lengths that are timed if neither ``lengths`` nor ``like`` chooses any."""
        return COMPARED_LENGTHS

    @property
    def chosen_axes(self) -> tuple[str, ...]:
        """The fields that choose sizes or masks."""
        return tuple(name for name in AXES if getattr(self, name))

    @property
    def chooses_shapes(self) -> bool:
        """Whether more is chosen than lengths with as many queries as keys."""
        return self.chosen_axes not in ((), ("lengths",)) or not all(isinstance(one, int) for one in self.lengths)

    def make_shapes(self) -> list[Shape]:
        """Return every combination of the sizes and masks of the calls to time.

        Raises: JobError.
        """
        return make_shapes({name: getattr(self, name) for name in AXES}, lengths=self.default_lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob(TimedJob):
    """Time implementations beside their references, or search for the longest sequence (``frontier``)."""

    command: ClassVar[str] = "profile"
    implementations: tuple[str, ...] = ()
    # Sets the measuring effort.
    suite: Level = "quick"
    # Operators whose implementations are timed if none is named.
    operators: tuple[str, ...] = ("multihead",)
    frontier: bool = False

    def __post_init__(self) -> None:
        """Refuse generated cases, and what a search for the longest sequence does not use.

        Raises: JobError.
        """
        require_listed(self.suite)
        TimedJob.__post_init__(self)
        for name in ("lengths", "cases", "processes", "case_budget_s") if self.frontier else ():
            if getattr(self, name):
                raise JobError(
                    "frontier", f"chooses the lengths and starts no timing processes: leave out {{{name}}}"
                )  # fmt: skip

    @property
    def default_lengths(self) -> tuple[Length, ...]:
        """Lengths that are timed if neither ``lengths`` nor ``like`` chooses any."""
        return QUICK_LENGTHS if self.suite == "quick" else LENGTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob(ProfileJob):
    """Check the cases of a suite, time the implementations, and write a report."""

    command: ClassVar[str] = "run"
    expected_failures: tuple[Path, ...] = ()
    no_completion: bool = False
    # Folder of the report.
    reports: Path = Path("reports")

    @property
    def conformance(self) -> ConformJob:
        """The part of this job that checks."""
        own = {one.name for one in fields(ConformJob)}
        return ConformJob(**{name: value for name, value in asdict(self).items() if name in own})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob(TimedJob):
    """Time two implementations, or two versions of one, with interleaved calls."""

    command: ClassVar[str] = "compare"
    base: str
    new: str | None = None
    # Source tree with the base version of ``base``.
    tree: Path | None = None


# The kinds of job by the name of their command.
COMMANDS: Mapping[str, type[RecordedJob]] = {
    kind.command: kind for kind in (ConformJob, ProfileJob, RunJob, CompareJob)
}  # fmt: skip

J = TypeVar("J", bound=Job)


def require_listed(suite: str) -> Level:
    """Return the name of a suite whose cases are listed.

    Raises: JobError for the suite fuzz.
    """
    for level in LEVELS:
        if level == suite:
            return level
    raise JobError("suite", "needs one of {levels}, got {suite_}", levels=", ".join(LEVELS), suite_=suite)


def build(kind: type[J], raw: Mapping[str, Any]) -> J:
    """Return the job of a kind with these values of its fields, as words or as values; None and () are no value.

    Raises: JobError for an unknown field, a value that the field cannot have, fields that exclude one another, and what
    this machine does not have.
    """
    job = parse(kind, raw)
    require_here(job)
    return job


def parse(kind: type[J], raw: Mapping[str, Any]) -> J:
    """Return a job as ``build`` does, which may need what another machine has.

    Raises: JobError.
    """
    known = {one.name: FIELDS[one.name] for one in fields(kind)}
    return kind(**parse_fields(known, raw))


def require_here(job: Job) -> None:
    """Refuse a job that needs what this machine does not have.

    Raises: JobError.
    """
    cores = count_cores()
    # At most one thread per core: further threads would only wait for one another, and a very large number would use up
    # the threads that the system allows.
    if job.threads is not None and job.threads > cores:
        raise JobError("threads", "needs numbers of at most {cores}, the number of cores, got {got}", cores=cores,
                       got=job.threads)  # fmt: skip
    for name in ("results", "reports", "tree"):
        path = getattr(job, name, None)
        if path is not None and path.exists() and not path.is_dir():
            raise JobError(name, "needs a folder, got the file {path}; name another path", path=path)
    for path in getattr(job, "expected_failures", ()):
        if not path.is_file():
            raise JobError("expected_failures", "{path}: No such file; name a TOML file", path=path)
    registered = list_names(OPERATORS)
    for operator in getattr(job, "operators", ()):
        if operator not in registered:
            raise JobError("operators", "unknown operator {name!r}; available: {available}", name=operator,
                           available=", ".join(registered))  # fmt: skip
