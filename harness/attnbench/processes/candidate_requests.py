"""The requests that a candidate worker answers, and its replies."""

import math
from typing import Generic, Literal, TypeVar

import msgspec

from attnbench.interface import Policies
from attnbench.processes.request import Fault, Request
from attnbench.processes.script_subject import Form
from attnbench.processes.sources import Sources
from attnbench.records.facts import Fact
from attnbench.records.types import Memory, Status, Timing
from attnbench.refusals import TypedRefusal

__all__ = [
    "CandidateRequest",
    "Declaration",
    "Declarations",
    "Declared",
    "Defence",
    "Describe",
    "DescribeAll",
    "FindForm",
    "LoadImplementation",
    "LongPass",
    "MeasurePass",
    "MeasureRates",
    "MeasuredPass",
    "Observe",
    "Observed",
    "Outcome",
    "Rates",
    "StartCandidate",
    "TakeSamples",
    "TimedSamples",
    "TryPass",
]

Reply = TypeVar("Reply", covariant=True)
# A defence of timings against implementations that answer otherwise, or elsewhere, while they are timed:
# ``values``: every timed call has input values of its own.
# ``judging``: the result of one timed call of each implementation, chosen at random, is evaluated.
# ``results``: results are plain tensors.
# ``settings``: torch's settings are the same before and after.
# ``threads``: no thread runs after the last call.
# ``processor``: the cores of the process are limited, and its processor time is compared with the wall time.
# ``instrument``: the clock, torch and the harness are compared with what they were.
# ``totals``: the samples and the time between them add up to the time that the runner measures.
# ``alone``: the baseline's time is compared with its time in a process without other implementations.
Defence = Literal[
    "values", "judging", "results", "settings", "threads", "processor", "instrument", "libraries", "totals", "alone"
]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The answer if a request about an implementation has no result: a status, and what is known of it.

    The most telling fact is the first.
    """

    status: Status
    facts: tuple[Fact, ...]
    # The implementation that raised the error, if the request names several implementations.
    culprit: str | None = None


class CandidateRequest(Request[Reply | Outcome], Generic[Reply], frozen=True, kw_only=True):
    """A request to a candidate worker that has started.

    The answer is a reply, or, if there is no reply, an ``Outcome``.
    """


class StartCandidate(Request[int], frozen=True, kw_only=True):
    """Asks the worker to set its number of threads and its memory limits. This is the first request.

    A worker that is used again gets it again: then other workers may run beside it, and its limits are lower.

    The reply is the number of threads.
    """

    # Number of threads that torch uses; None: torch's default.
    threads: int | None
    # Bytes of address space that the process may map beyond its present address space; None: no limit.
    memory_limit_bytes: int | None
    # Limit of torch's allocator on a CUDA device, in bytes; None: no limit.
    device_memory_bytes: int | None
    # If the process will time implementations: the defences that are switched off, to measure what they find. The
    # process then records what measurements rely on, before it loads an implementation, and runs on as many cores as
    # it has threads. None: the process times nothing.
    timed_without: frozenset[Defence] | None = None


class Declared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a loaded implementation declares."""

    operator: str
    source: str
    policies: Policies
    compiles: bool
    # Environment variables that the worker's process needs.
    environment: dict[str, str]
    sources: Sources = Sources()


class LoadImplementation(Request[Declared | Fault], frozen=True, kw_only=True):
    """Asks the worker to load an implementation; the reply is what the implementation declares."""

    implementation: str


class Declaration(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an implementation declares about a case.

    ``unsupported`` is why the implementation refuses the case; None: it computes the case. ``untimed`` is why the case
    must not be timed; None: it may be timed. ``predicted_s`` is the predicted time of one call in seconds; None: the
    implementation predicts no time.
    """

    unsupported: TypedRefusal | None
    untimed: TypedRefusal | None
    predicted_s: float | None


class Describe(CandidateRequest[Declaration], frozen=True, kw_only=True):
    """Asks what an implementation declares about a case; the case is not run."""

    implementation: str
    case: str


class FindForm(CandidateRequest[Form | Fault], frozen=True, kw_only=True):
    """Asks how a program without the harness calls an implementation.

    The reply is a ``Fault`` with the reason if such a program cannot call it.
    """

    implementation: str


class Declarations(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an implementation declares about the first cases of a request; an outcome where it raised an exception."""

    by_case: list[Declaration | Outcome]
    # Wall time of all declarations, in seconds.
    seconds: float


class DescribeAll(CandidateRequest[Declarations], frozen=True, kw_only=True):
    """Asks what an implementation declares about many cases; the cases are not run.

    After ``limit_s`` seconds the worker stops: the reply then has fewer entries than the request has cases.
    """

    implementation: str
    cases: list[str]
    limit_s: float = math.inf


class Observed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """For each check that ran: None if its observations are stored, otherwise why the check has no observations."""

    outcomes: dict[str, Outcome | None]


class Observe(CandidateRequest[Observed], frozen=True, kw_only=True):
    """Asks the worker to run checks, and to store their observations in the file ``observation``."""

    implementation: str
    case: str
    checks: list[str]
    # Path of the file of the case's inputs.
    inputs: str
    # Path of the file for the observations.
    observation: str


class MeasuredPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Memory of one pass, and the names of the torch operators and device kernels that did its work."""

    memory: Memory
    kernels: tuple[str, ...]


class MeasurePass(CandidateRequest[MeasuredPass], frozen=True, kw_only=True):
    """Asks the worker to measure the memory of one pass, and to list the kernels that do its work."""

    implementation: str
    case: str
    inputs: str


class LongPass(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Time and memory of one pass on a long sequence."""

    took_s: float
    # Peak memory of the pass in bytes; None if the pass took longer than ``limit_s``, or if counting the bytes ran out
    # of memory.
    peak_bytes: int | None
    threads: int
    # The method by which ``peak_bytes`` was counted, in words.
    method: str


class TryPass(CandidateRequest[LongPass], frozen=True, kw_only=True):
    """Asks the worker to measure the time and memory of one pass on a long sequence.

    The inputs of the pass are the inputs at a short length, repeated ``factor`` times along the sequence.
    """

    implementation: str
    case: str
    factor: int
    # Path of the file of inputs at the short length.
    short: str
    # Path of the file of inputs at twice the short length. The dimensions that are twice as long as in ``short`` are
    # the dimensions that grow with the length.
    double: str
    limit_s: float


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The number of threads of a process, and its highest measured rates: operations and bytes per second."""

    flop_per_s: float
    bytes_per_s: float
    threads: int


class MeasureRates(CandidateRequest[Rates], frozen=True, kw_only=True):
    """Asks the worker to measure its peak rates: of operations in a matrix product, and of bytes in a copy."""

    dtype: str
    device: str


class TimedSamples(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Samples that one process took of one case."""

    # Samples of each implementation, by the implementation's name.
    samples: dict[str, Timing]
    # Samples of the A/A control; None if the request has no baseline.
    twin: Timing | None
    # Path of the file with the observations of each implementation, by the implementation's name.
    observations: dict[str, str]
    # Nanoseconds from the begin of the request to its reply, and the part of them that is in no sample.
    elapsed_ns: int
    between_ns: int

    def __post_init__(self) -> None:
        """Refuse samples of several processes, and what only the runner knows of samples."""
        for timing in (*self.samples.values(), *([self.twin] if self.twin else [])):
            if timing.processes != 1 or timing.twin or timing.judged or timing.interleaved_with:
                raise ValueError("a process sends the samples that it took itself, and nothing else")


class TakeSamples(CandidateRequest[TimedSamples], frozen=True, kw_only=True):
    """Asks the worker to take interleaved samples of one pass of every implementation.

    The worker stores the result of one sampled call of each implementation as observations of the checks.
    """

    implementations: list[str]
    # The implementation that is built twice for the A/A control; None: there is no A/A control.
    baseline: str | None
    case: str
    inputs: str
    # Time that the timed calls of all implementations together should take, in seconds.
    budget_s: float
    # Time limit of the timed calls, in seconds. If the smallest number of samples that a speed verdict needs would take
    # longer than this limit, fewer samples are taken.
    limit_s: float = math.inf
    # Time of all timed calls, in seconds, up to which cycles are added if too many calls were disturbed.
    until_s: float = math.inf
    seed: int
    checks: list[str]
    # Prefix of the paths of the files with the observations.
    observation: str
    # Defences that are switched off, to measure what they find.
    without: frozenset[Defence] = frozenset()
