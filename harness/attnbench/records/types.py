"""Types of stored records: a run and its results, as frozen dataclasses that refuse impossible combinations.

History of SCHEMA
1  first version
2  Timing has switches, cycles, twin, build_ns and first_call_ns, and of calls on CUDA device_ns, graph_ns, late,
   clock_before_mhz, clock_after_mhz, throttle_reasons and clock; Memory has physical_bytes, outside_bytes,
   workspace_bytes and reserved_bytes; Result has kernels and bytes; Ceiling is new
"""

import shlex
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "FAILURES",
    "FRONTIER",
    "PERF",
    "SAMPLE_FIELDS",
    "SCHEMA",
    "STATUSES",
    "Ceiling",
    "Finding",
    "Machine",
    "Memory",
    "Pass",
    "Record",
    "Result",
    "Run",
    "Status",
    "Timing",
    "find_pass",
    "format_reproduce_line",
]

SCHEMA = 2

Status = Literal[
    "passed",
    "failed",
    "unsupported",
    "expected_failure",
    "unexpected_pass",
    "error",
    "timeout",
    "crashed",
    "out_of_memory",
    "not_run",
]
STATUSES: tuple[Status, ...] = get_args(Status)
# Statuses that make a run fail (exit code 1).
FAILURES: frozenset[Status] = frozenset({"failed", "unexpected_pass", "error", "timeout", "crashed", "out_of_memory"})

Pass = Literal["forward", "forward+backward"]
# Suite names of results of a profile, and of a max length search.
PERF, FRONTIER = "perf", "frontier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a run; ``name`` is made from the CPU and GPU models only, never from host or user names."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int
    gpu: str | None = None
    driver: str | None = None
    isa: str | None = None
    system: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of attnbench: the command, the implementations, the versions and the machine."""

    id: str
    # UTC, ISO 8601.
    time: str
    command: str
    machine: Machine
    # Library name to version.
    versions: dict[str, str]
    threads: int
    # Commit of the project, or None outside a checkout; with a trailing "+" if files differed from it.
    commit: str | None = None
    suite: str = ""
    # Hash of the case list: two runs are comparable as suites if it is equal.
    suite_digest: str = ""
    implementations: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of one implementation on one case."""

    check: str
    status: Status
    reason: str = ""
    # Largest measured error and the allowed error, in the units of the compared tensor.
    measured: float | None = None
    allowed: float | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an unknown status, and a status other than passed without a reason."""
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if self.status != "passed" and not self.reason:
            raise ValueError(f"a finding with status {self.status!r} needs a reason (check {self.check!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Raw samples of one call, interleaved with the calls of the other implementations of the case.

    On CUDA each sample makes the call twice, in random order: once timed from end to end, and once timed by the device.
    Unit: nanoseconds; one inner tuple per process, one number per sample.
    """

    # From end to end: wall time, on CUDA including synchronization with the device.
    samples_ns: tuple[tuple[int, ...], ...]
    # Time that the process waited for a core during each call, in the same layout; empty where unknown.
    waited_ns: tuple[tuple[int, ...], ...] = ()
    threads: int
    # Involuntary context switches of the process during each call, in the same layout; empty where unknown.
    switches: tuple[tuple[int, ...], ...] = ()
    # Number of the cycle of each call, in the same layout. A cycle calls the implementations one right after another.
    # Empty where unknown.
    cycles: tuple[tuple[int, ...], ...] = ()
    # Names of the implementations that were interleaved with this one.
    interleaved_with: tuple[str, ...] = ()
    method: str = "wall"
    # Of the baseline only: the A/A control, a second copy of the baseline with tensors of its own. Each cycle calls
    # either the baseline or the control; in older runs, both. The difference between them is noise.
    twin: "Timing | None" = None
    # One number per process, in nanoseconds: building and preparing, and the first call.
    build_ns: tuple[int, ...] = ()
    first_call_ns: tuple[int, ...] = ()
    # On CUDA, in the layout of the samples: the time on the device with a cold L2 cache, the same for the call replayed
    # as a CUDA graph, and whether the device started the call before all of it was enqueued. ``late`` is empty where
    # the launch could not be hidden.
    device_ns: tuple[tuple[int, ...], ...] = ()
    graph_ns: tuple[tuple[int, ...], ...] = ()
    late: tuple[tuple[bool, ...], ...] = ()
    # Clock of the streaming multiprocessors before and after the cycle, in MHz, 0 where it could not be read, and
    # NVML's bits for the throttling reasons at either time. All three are empty without NVML.
    clock_before_mhz: tuple[tuple[int, ...], ...] = ()
    clock_after_mhz: tuple[tuple[int, ...], ...] = ()
    throttle_reasons: tuple[tuple[int, ...], ...] = ()
    # On CUDA: the source of the clock readings, or the reason why there are none.
    clock: str = ""


# Fields of a Timing that have one number per sample, besides ``samples_ns``.
SAMPLE_FIELDS = (
    "waited_ns", "switches", "cycles", "device_ns", "graph_ns", "late", "clock_before_mhz", "clock_after_mhz",
    "throttle_reasons",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one call above its inputs.

    Unit: bytes. ``peak_bytes`` is the highest level of torch's allocator during the call, ``saved_bytes`` the memory of
    the tensors that are saved for backward.
    """

    peak_bytes: int
    saved_bytes: int | None = None
    # The part of the peak that is neither output nor gradient.
    workspace_bytes: int | None = None
    # Highest resident memory above that before the call, including memory that libraries map themselves.
    physical_bytes: int | None = None
    # The part of the physical peak that torch's allocator did not allocate; None where it is within the noise.
    outside_bytes: int | None = None
    # On CUDA: memory that the caching allocator reserved on the device.
    reserved_bytes: int | None = None
    threads: int
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All findings, timing and memory of one implementation on one case."""

    run: str
    implementation: str
    case: str
    findings: tuple[Finding, ...]
    timing: Timing | None = None
    memory: Memory | None = None
    # Floating-point operations that the case needs, by closed form.
    flop: int | None = None
    # Bytes that must be read and written at least, by closed form.
    bytes: int | None = None
    # Operators and kernels of the call by the profiler's names, the longest time first.
    kernels: tuple[str, ...] = ()
    # Reason why a requested timing is missing.
    untimed: str | None = None
    suite: str = ""

    def __post_init__(self) -> None:
        """Refuse measurements of an implementation that did not pass all checks of the case."""
        conforms = bool(self.findings) and all(f.status == "passed" for f in self.findings)
        if (self.timing or self.memory) and not conforms:
            raise ValueError(f"{self.implementation} has a timing on a case that did not conform: {self.case}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The highest measured rates of the machine: one matrix product and one copy. No call should exceed them."""

    run: str
    device: str
    dtype: str
    threads: int
    # Floating-point operations per second, and bytes read and written per second; the best of several calls.
    flop_per_s: float
    bytes_per_s: float


Record = Run | Result | Ceiling


def find_pass(case: str) -> Pass:
    """Return the pass that is timed in a case: "forward" in the mode ``inference``, "forward+backward" in others."""
    return "forward" if case.rpartition("/")[2] == "inference" else "forward+backward"


def format_reproduce_line(implementation: str, case: str, check: str) -> str:
    """Return the command that reproduces one check of one case."""
    return f"attnbench reproduce '{case}' --check {shlex.quote(check)} {shlex.quote(implementation)}"
