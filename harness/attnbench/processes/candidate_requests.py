"""The requests that a candidate worker answers, and its replies."""

import math
from typing import Generic, TypeVar

import msgspec

from attnbench.interface import Policies
from attnbench.processes.request import Fault, Request
from attnbench.processes.script_subject import Form
from attnbench.records.types import Memory, Status

__all__ = [
    "Answers",
    "AskSupport",
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
    # The implementation that raised the error, if the request names several implementations.
    culprit: str | None = None


class CandidateRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request to a started candidate worker; the answer is a reply, or an ``Outcome`` with the reason why not."""


class StartCandidate(Request[int], frozen=True, kw_only=True):
    """Set the number of threads and the limits of memory; return the number of threads. This is the first request."""

    # Number of threads that torch uses; None: torch's default.
    threads: int | None
    # Bytes of address space that the process may map beyond its present address space; None: no limit.
    memory_limit_bytes: int | None
    # Limit of torch's allocator on a CUDA device, in bytes; None: no limit.
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
    """What an implementation declares about a case.

    ``unsupported`` is why it refuses the case, ``untimed`` why the case is not timed, and ``predicted_s`` the predicted
    time of one call in seconds.
    """

    unsupported: str | None
    untimed: str | None
    predicted_s: float | None


class Describe(CandidateRequest[Opinion], frozen=True, kw_only=True):
    """Return what an implementation declares about a case, without running it."""

    implementation: str
    case: str


class FindForm(CandidateRequest[Form | Fault], frozen=True, kw_only=True):
    """Return how a program without the harness uses an implementation, or the reason why it cannot be used."""

    implementation: str


class Support(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Number of cases that an implementation supports, and number of cases that it refuses, by reason."""

    supported: int
    refused: dict[str, int]


class CountSupported(CandidateRequest[Support], frozen=True, kw_only=True):
    """Count the cases that an implementation supports, and the cases that it refuses, by reason."""

    implementation: str
    cases: list[str]


class Answers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an implementation declares about the first cases of a request; the lists have one entry per case."""

    # Why the case is refused; None: it is supported, or the declaration raised an exception.
    unsupported: list[str | None]
    # Predicted time of one call in seconds, or None.
    predicted_s: list[float | None]
    # Exception that the declaration raised, or None.
    raised: list[str | None]
    # Wall time of all declarations, in seconds.
    seconds: float


class AskSupport(CandidateRequest[Answers], frozen=True, kw_only=True):
    """Return what an implementation declares about many cases, without running them.

    After ``limit_s`` seconds, no further case is asked: the reply has fewer entries than the request has cases.
    """

    implementation: str
    cases: list[str]
    limit_s: float


class Observed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """For each check that ran: None if its observations are stored, otherwise why the check has no observations."""

    outcomes: dict[str, Outcome | None]


class Observe(CandidateRequest[Observed], frozen=True, kw_only=True):
    """Run checks, and store their observations in the file ``observation``."""

    implementation: str
    case: str
    checks: list[str]
    # Path of the file of the case's inputs.
    inputs: str
    # Path of the file for the observations.
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
    """List the operators and kernels of one pass.

    The measurement of the kernels also measures the memory of the pass.
    """

    implementation: str
    case: str
    inputs: str


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Highest measured rates of a process: operations per second and bytes per second; and its number of threads."""

    flop_per_s: float
    bytes_per_s: float
    threads: int


class MeasureRates(CandidateRequest[Rates], frozen=True, kw_only=True):
    """Measure the peak rates of the process on a matrix product and on a copy."""

    dtype: str
    device: str


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that one process took of one implementation.

    The class ``measurement.sampling.Samples`` has the same lists, and describes them.
    """

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
    # Time of building and preparing the module, in nanoseconds; None if it was not measured.
    build_ns: int | None = None


class TimedSamples(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples that one process took of one case."""

    # Samples of each implementation, by the implementation's name.
    samples: dict[str, Samples]
    # Samples of the A/A control; None if the request has no baseline.
    twin: Samples | None
    threads: int
    # Path of the file with the observations of each implementation, by the implementation's name.
    observations: dict[str, str]


class TakeSamples(CandidateRequest[TimedSamples], frozen=True, kw_only=True):
    """Take interleaved samples of one pass of every implementation, then run the checks on each implementation."""

    implementations: list[str]
    # The implementation that is built twice for the A/A control, or None.
    baseline: str | None
    case: str
    inputs: str
    # Seconds of timed calls, for all implementations together.
    budget_s: float
    # Time limit of the timed calls in seconds. If the smallest useful number of samples would take longer, fewer
    # samples are taken.
    limit_s: float = math.inf
    seed: int
    checks: list[str]
    # Prefix of the paths of the files with the observations.
    observation: str
