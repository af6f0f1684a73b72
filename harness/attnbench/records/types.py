"""What is stored: a run and its results, as frozen values that refuse impossible combinations.

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
    "COUNTED",
    "FAILURES",
    "FRONTIER",
    "PERF",
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
    "pass_of",
    "reproduce_line",
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
# Suites of results that a profile makes, and the search for the longest sequence that fits.
PERF, FRONTIER = "perf", "frontier"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine of a run; ``name`` is made from CPU and GPU model only, never from host or user."""

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
    """One invocation: what was asked for, of what, on which machine."""

    id: str
    # UTC, ISO 8601.
    time: str
    command: str
    machine: Machine
    # Library name to version.
    versions: dict[str, str]
    threads: int
    # Commit of the project or None outside a checkout; a trailing "+" says that files differed from it.
    commit: str | None = None
    suite: str = ""
    # Hash of the case list: suites are comparable when it is equal.
    suite_digest: str = ""
    implementations: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check said of one implementation on one case."""

    check: str
    status: Status
    reason: str = ""
    # Largest error seen and the error allowed, in the units of the tensor compared.
    measured: float | None = None
    allowed: float | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a status outside the set, and one without its reason."""
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if self.status != "passed" and not self.reason:
            raise ValueError(f"a finding with status {self.status!r} needs a reason (check {self.check!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Raw samples of one call, interleaved with the other implementations of the case.

    On CUDA every turn makes the call twice, in random order: once from end to end, and once timed by the device.
    Unit: nanoseconds; one inner tuple per process, one number per turn.
    """

    # From end to end: wall time, on CUDA with waiting for the device.
    samples_ns: tuple[tuple[int, ...], ...]
    # Time that the process waited for a core during each call, in the same layout; empty where unknown.
    waited_ns: tuple[tuple[int, ...], ...] = ()
    threads: int
    # Involuntary context switches of the process during each call, in the same layout; empty where unknown.
    switches: tuple[tuple[int, ...], ...] = ()
    # Number of the cycle that each call was made in, in the same layout: calls of one cycle were made one right after
    # another. Empty where unknown.
    cycles: tuple[tuple[int, ...], ...] = ()
    # Names of the implementations that took turns with this one.
    interleaved_with: tuple[str, ...] = ()
    method: str = "wall"
    # Of the baseline only: the same implementation once more, with tensors of its own, in the cycles that the baseline
    # leaves it; in older runs, in the same. What differs between the two is noise.
    twin: "Timing | None" = None
    # One number per process, in nanoseconds: building and preparing, and the first call.
    build_ns: tuple[int, ...] = ()
    first_call_ns: tuple[int, ...] = ()
    # On CUDA, in the layout of the samples. Time on the device, from a cold second-level cache, and that of the same
    # call replayed as a graph; whether the device came to the call before all of it was enqueued, empty where no
    # launch could be hidden.
    device_ns: tuple[tuple[int, ...], ...] = ()
    graph_ns: tuple[tuple[int, ...], ...] = ()
    late: tuple[tuple[bool, ...], ...] = ()
    # Clock of the device's multiprocessors before and after the turn's cycle, in MHz, 0 where it could not be read, and
    # NVML's bits for what held it down at either; all three empty where there is no NVML.
    clock_before_mhz: tuple[tuple[int, ...], ...] = ()
    clock_after_mhz: tuple[tuple[int, ...], ...] = ()
    throttle_reasons: tuple[tuple[int, ...], ...] = ()
    # On CUDA: where the readings of the clock come from, or why there are none.
    clock: str = ""


# Fields of a Timing that have one number per turn, beside the samples.
COUNTED = (
    "waited_ns", "switches", "cycles", "device_ns", "graph_ns", "late", "clock_before_mhz", "clock_after_mhz",
    "throttle_reasons",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one call above its inputs.

    Unit: bytes. ``peak`` is the allocator's highest level during the call, ``saved`` what backward keeps alive.
    """

    peak_bytes: int
    saved_bytes: int | None = None
    # What of the peak is neither output nor gradient.
    workspace_bytes: int | None = None
    # Highest resident memory above that before the call, pages that libraries map by themselves included.
    physical_bytes: int | None = None
    # What the physical peak shows beyond torch's allocator; None where nothing stands out of the noise.
    outside_bytes: int | None = None
    # On CUDA: what the caching allocator took from the device.
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
    # What the case needs by closed form.
    flop: int | None = None
    # Bytes that must be read and written at least, by closed form.
    bytes: int | None = None
    # Operators and kernels that did the work, as the profiler names them, the longest first.
    kernels: tuple[str, ...] = ()
    # Why there is no timing where one was asked for.
    untimed: str | None = None
    suite: str = ""

    def __post_init__(self) -> None:
        """No speed without correctness."""
        held = bool(self.findings) and all(f.status == "passed" for f in self.findings)
        if (self.timing or self.memory) and not held:
            raise ValueError(f"{self.implementation} has a timing on a case that did not conform: {self.case}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What the machine reached in a run on one matrix product and on one copy: nothing should be faster."""

    run: str
    device: str
    dtype: str
    threads: int
    # Floating-point operations a second, and bytes read and written a second; the best of several calls.
    flop_per_s: float
    bytes_per_s: float


Record = Run | Result | Ceiling


def pass_of(case: str) -> Pass:
    """What is timed in a case: its id ends with the mode, and inference has no backward."""
    return "forward" if case.rpartition("/")[2] == "inference" else "forward+backward"


def reproduce_line(implementation: str, case: str, check: str) -> str:
    """Command that runs one check of one case again."""
    return f"attnbench reproduce '{case}' --check {shlex.quote(check)} {shlex.quote(implementation)}"
