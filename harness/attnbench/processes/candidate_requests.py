"""The requests that a candidate worker answers, and its replies."""

import math
from typing import Generic, TypeVar

import msgspec

from attnbench.interface import Policies
from attnbench.processes.request import Fault, Request
from attnbench.processes.script_subject import Form
from attnbench.records.types import Memory, Status

__all__ = [
    "CandidateRequest",
    "CountSupported",
    "Declared",
    "Describe",
    "FindForm",
    "Kernels",
    "ListKernels",
    "LoadImplementation",
    "MeasureMemory",
    "MeasureRates",
    "MeasuredMemory",
    "Observe",
    "Observed",
    "Opinion",
    "Outcome",
    "Rates",
    "Samples",
    "StartCandidate",
    "Support",
    "TakeSamples",
    "TimedSamples",
]

Reply = TypeVar("Reply", covariant=True)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a request about an implementation has no result."""

    status: Status
    reason: str
    # The implementation that raised, if the request names several.
    culprit: str | None = None


class CandidateRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request that a candidate worker answers after its start, by a reply or by the reason why there is none."""


class StartCandidate(Request[int], frozen=True, kw_only=True):
    """Set the number of threads and the limits of memory; return the number of threads. This is the first request."""

    # None: torch's default.
    threads: int | None
    # Address space that may be mapped in addition to what is mapped already; None: no limit.
    memory_limit_bytes: int | None
    # Limit of torch's allocator on a CUDA device; None: no limit.
    device_memory_bytes: int | None


class Declared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a loaded implementation declares."""

    operator: str
    source: str
    policies: Policies
    compiles: bool
    # Environment variables that the worker's process needs.
    environment: dict[str, str]


class LoadImplementation(Request[Declared | Fault], frozen=True, kw_only=True):
    """Load an implementation and return what it declares."""

    implementation: str


class Opinion(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an implementation declares about a case: why it is refused or not timed, and the seconds of one call."""

    unsupported: str | None
    untimed: str | None
    predicted_s: float | None


class Describe(CandidateRequest[Opinion], frozen=True, kw_only=True):
    """Return what an implementation declares about a case, without running it."""

    implementation: str
    case: str


class FindForm(CandidateRequest[Form | Fault], frozen=True, kw_only=True):
    """Return the form of an implementation, or the reason why a program without the harness cannot use it."""

    implementation: str


class Support(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Number of cases that an implementation supports, and number of cases that it refuses by each reason."""

    supported: int
    refused: dict[str, int]


class CountSupported(CandidateRequest[Support], frozen=True, kw_only=True):
    """Count the cases that an implementation supports, and for each reason the cases that it refuses."""

    implementation: str
    cases: list[str]


class Observed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """For each check that ran: None if its observations are stored, otherwise why it has none."""

    outcomes: dict[str, Outcome | None]


class Observe(CandidateRequest[Observed], frozen=True, kw_only=True):
    """Run checks, and store their observations in the file ``observation``."""

    implementation: str
    case: str
    checks: list[str]
    # File of the case's inputs.
    inputs: str
    observation: str


class MeasuredMemory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Memory of one pass."""

    memory: Memory


class MeasureMemory(CandidateRequest[MeasuredMemory], frozen=True, kw_only=True):
    """Measure the memory of one pass."""

    implementation: str
    case: str
    inputs: str


class Kernels(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Names of the operators and kernels of one pass."""

    names: tuple[str, ...]


class ListKernels(CandidateRequest[Kernels], frozen=True, kw_only=True):
    """List the operators and kernels of one pass; the same measurement also gives the memory of the pass."""

    implementation: str
    case: str
    inputs: str


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Highest rates of a process, in floating-point operations and in bytes per second, and its number of threads."""

    flop_per_s: float
    bytes_per_s: float
    threads: int


class MeasureRates(CandidateRequest[Rates], frozen=True, kw_only=True):
    """Measure the peak rates of the process on a matrix product and on a copy."""

    dtype: str
    device: str


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that one process took of one implementation; the lists are those of ``measurement.sampling.Samples``."""

    times_ns: list[int]
    waited_ns: list[int]
    switches: list[int]
    cycles: list[int]
    device_ns: list[int]
    graph_ns: list[int]
    late: list[bool]
    clock_before_mhz: list[int]
    clock_after_mhz: list[int]
    throttle_reasons: list[int]
    first_call_ns: int
    method: str
    clock: str
    # Time of building and preparing the module; None if it was not measured.
    build_ns: int | None = None


class TimedSamples(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples that one process took of one case."""

    # By implementation.
    samples: dict[str, Samples]
    # Samples of the A/A control; None without a baseline.
    twin: Samples | None
    threads: int
    # File with the observations of each implementation.
    observations: dict[str, str]


class TakeSamples(CandidateRequest[TimedSamples], frozen=True, kw_only=True):
    """Take interleaved samples of one pass of every implementation, then run the checks on each."""

    implementations: list[str]
    # The implementation that is built twice for the A/A control, or None.
    baseline: str | None
    case: str
    inputs: str
    # Seconds of timed calls, and seconds after which no further call is made.
    budget_s: float
    limit_s: float = math.inf
    seed: int
    checks: list[str]
    # Prefix of the files with the observations.
    observation: str
