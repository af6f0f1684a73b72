"""What is stored: a run and its results, as frozen values that refuse impossible combinations.

History of SCHEMA
1  first version
"""

import shlex
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = [
    "FAILURES",
    "SCHEMA",
    "STATUSES",
    "Finding",
    "Machine",
    "Memory",
    "Pass",
    "Record",
    "Result",
    "Run",
    "Status",
    "Timing",
    "reproduce_line",
]

SCHEMA = 1

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

    Unit: nanoseconds; one inner tuple per process, one number per call.
    """

    samples_ns: tuple[tuple[int, ...], ...]
    # Time that the process waited for a core during each call, in the same layout; empty where unknown.
    waited_ns: tuple[tuple[int, ...], ...] = ()
    threads: int
    # Names of the implementations that took turns with this one.
    interleaved_with: tuple[str, ...] = ()
    method: str = "wall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one call above its inputs.

    Unit: bytes. ``peak`` is the allocator's highest level during the call, ``saved`` what backward keeps alive.
    """

    peak_bytes: int
    saved_bytes: int | None = None
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
    # Why there is no timing where one was asked for.
    untimed: str | None = None
    suite: str = ""

    def __post_init__(self) -> None:
        """No speed without correctness."""
        held = bool(self.findings) and all(f.status == "passed" for f in self.findings)
        if (self.timing or self.memory) and not held:
            raise ValueError(f"{self.implementation} has a timing on a case that did not conform: {self.case}")


Record = Run | Result


def reproduce_line(implementation: str, case: str, check: str) -> str:
    """Command that runs one check of one case again."""
    return f"attnbench reproduce '{case}' --check {shlex.quote(check)} {shlex.quote(implementation)}"
