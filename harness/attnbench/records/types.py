"""Types of stored records: a run and its results, as frozen dataclasses that refuse impossible combinations of fields.

History of SCHEMA
1  first version
2  new fields of Timing: switches, cycles, twin, build_ns, first_call_ns, and for calls on CUDA device_ns, graph_ns,
   late, clock_before_mhz, clock_after_mhz, throttle_reasons, clock; new fields of Memory: physical_bytes,
   outside_bytes, workspace_bytes, reserved_bytes; new fields of Result: kernels, bytes; new record: Ceiling
3  new field of Run: sources; new record: Completion; new field of Result: completes
4  new field of Run: planned; new records: Resumption, End
5  new fields of Timing: values, judged
6  new fields of Run: list_digest, parts, node
7  new field of Timing: trainable
8  new field of Finding: facts; new record: Samples; new field of Run: job, which has what ``planned`` had; new field of
   Planned: processes; new field of Run: commits
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from attnbench.cases import CaseId, digest
from attnbench.records.facts import Fact, Reason
from attnbench.records.outcome_facts import NotConforming
from attnbench.refusals import OtherRefusal, TypedRefusal

__all__ = [
    "DEADLY",
    "ENDED_SINCE",
    "FAILURES",
    "FRONTIER",
    "GRAVEST",
    "INVARIANCE",
    "PERF",
    "SAMPLE_FIELDS",
    "SCHEMA",
    "SILENT",
    "STATUSES",
    "WITHOUT_CASES",
    "Ceiling",
    "Completion",
    "End",
    "Finding",
    "Machine",
    "Memory",
    "Pass",
    "Planned",
    "Record",
    "Result",
    "Resumption",
    "Run",
    "Samples",
    "Status",
    "StoredJob",
    "Timing",
    "explain_untimed",
    "find_pass",
    "format_reproduce_line",
    "join_timings",
]

SCHEMA = 8
# First schema whose runs have an End as their last record: a run of this schema without an End was cut.
ENDED_SINCE = 4

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
# Statuses that make a run fail (exit code 1), the gravest first: wrong values may go unnoticed, an exception does not.
GRAVEST: tuple[Status, ...] = ("failed", "error", "crashed", "timeout", "out_of_memory", "unexpected_pass")
FAILURES = frozenset(GRAVEST)
# Statuses of a call that ended its process, or had to be stopped.
DEADLY: frozenset[Status] = frozenset({"crashed", "timeout"})
# Statuses of findings whose check did not run.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})

Pass = Literal["forward", "forward+backward"]
# Stands between several methods, or several sources of clock rates, of one timing.
SEPARATOR = "; "
# PERF: name of the suite in the results of a profile. FRONTIER: name of the suite in the results of a search for the
# max length. INVARIANCE: of measured invariance. WITHOUT_CASES: suites whose findings are not of the checks of cases.
PERF, FRONTIER, INVARIANCE = "perf", "frontier", "invariance"
WITHOUT_CASES = frozenset({FRONTIER, INVARIANCE})


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
class Planned:
    """What was planned for one implementation when its run began."""

    # Number of cases to check; each of them gets a result.
    cases: int
    # Number of cases to time; each of them gets a timing, or the reason why it has none.
    timed: int = 0
    # Number of processes that time each of them at first; 0 in runs of schemas before 8.
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """What a run was asked to do; it names no host, user or home folder."""

    # Name of the command, such as "profile"; empty in runs of schemas before 8, which have only the command line.
    command: str = ""
    # Values of the fields of the job (attnbench.jobs.fields); those without a value are absent. A path outside the
    # working directory is stored without its folders.
    options: dict[str, Any] = field(default_factory=dict)
    # What was planned for each implementation; empty in runs of schemas before 4, and where the cases are chosen during
    # the run (suite fuzz, search for the max length).
    planned: dict[str, Planned] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of attnbench: the command, the implementations, the versions and the machine."""

    # Name of the run, and of its file without the extension.
    id: str
    # Start of the run in UTC, in the format of ISO 8601.
    time: str
    # The command line.
    command: str
    machine: Machine
    # Version of each library, by the library's name.
    versions: dict[str, str]
    # Number of threads of a call.
    threads: int
    # Commit of attnbench, or None outside a checkout; with a trailing "+" if tracked files had been changed.
    commit: str | None = None
    # Name of the suite; "perf" in a profile, "frontier" in a search for the max length.
    suite: str = ""
    # Hash of the case list: two runs with equal hashes had the same cases.
    suite_digest: str = ""
    # The implementations that were requested.
    implementations: tuple[str, ...] = ()
    # SHA-256 of the source files of each implementation when the run began; empty in older runs.
    sources: dict[str, str] = field(default_factory=dict)
    # Commit of the checkout with these files, as ``commit``, and empty outside a checkout; only of implementations that
    # attnbench does not bring.
    commits: dict[str, str] = field(default_factory=dict)
    # What the run was asked to do. In runs of schemas before 8, only what was planned is known.
    job: StoredJob = field(default_factory=StoredJob)
    # Hash of the whole case list of which this run has a part (--shard, a task of a sweep); empty for a whole list.
    list_digest: str = ""
    # Ids of the runs that were merged into this run; empty if it was not merged.
    parts: tuple[str, ...] = ()
    # Label that tells machines with the same description apart, and does not name the host; empty if not known.
    node: str = ""
    # Version of this format.
    schema: int = SCHEMA

    def find_commit(self, implementation: str) -> str | None:
        """Return the commit of an implementation, or None; older runs store that of attnbench alone."""
        return self.commits.get(implementation, self.commit) or None

    @property
    def planned(self) -> dict[str, Planned]:
        """What was planned for each implementation."""
        return self.job.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check of one implementation on one case."""

    check: str
    status: Status
    # What is known of a finding that did not pass, the most telling fact first; and of invariance, its grade.
    facts: tuple[Fact, ...] = ()
    # Only in runs of schemas before 8, which stored a sentence in place of facts.
    reason: str = ""
    # Largest measured error, in the units of the compared tensor.
    measured: float | None = None
    # Allowed error, in the units of the compared tensor.
    allowed: float | None = None
    # Texts only in runs of schemas before 8.
    warnings: tuple[Fact | str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an unknown status. Refuse a finding that did not pass, and has neither facts nor a reason."""
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if self.status != "passed" and not (self.facts or self.reason):
            raise ValueError(f"a finding with status {self.status!r} needs facts (check {self.check!r})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Raw samples of the time of one implementation's call, interleaved with calls of other implementations.

    On CUDA the call is made twice for each sample, in random order: once timed from end to end, once timed by the
    device. Layout of a field with samples: one inner tuple per process, one number per sample. Unit: nanoseconds.
    """

    # Wall time of each call from end to end; on CUDA it includes synchronization with the device.
    samples_ns: tuple[tuple[int, ...], ...]
    # Time that the process waited for a core during each call, in the layout of ``samples_ns``; empty where unknown.
    waited_ns: tuple[tuple[int, ...], ...] = ()
    threads: int
    # Number of involuntary context switches of the process during each call, in the layout of ``samples_ns``; empty
    # where unknown.
    switches: tuple[tuple[int, ...], ...] = ()
    # Number of the cycle in which each call was made, in the layout of ``samples_ns``; empty where unknown. A cycle
    # calls the implementations one right after another.
    cycles: tuple[tuple[int, ...], ...] = ()
    # Names of the implementations whose calls were interleaved with the calls of this implementation.
    interleaved_with: tuple[str, ...] = ()
    # How the times were measured: "wall" on a CPU; on CUDA, whether the launch was hidden and whether a graph was
    # replayed, and the reason where not.
    method: str = "wall"
    # Timing of the A/A control: a second copy of the baseline, which has its own tensors. Only the timing of the
    # baseline has a ``twin``. Each cycle calls either the baseline or the control; in older runs, each cycle called
    # both. A difference between the baseline and the control is noise.
    twin: "Timing | None" = None
    # "fresh" if every call had input values of its own; "fixed" if the implementation's policies declare that the
    # values must stay; empty for older runs, whose calls all had the same values.
    values: str = ""
    # Number of sampled calls, chosen at random, whose results were evaluated; all of them passed.
    judged: int = 0
    # Whether the parameters kept ``requires_grad`` in calls without gradients; false for older runs, which froze them.
    # torch computes some calls in another way if parameters are frozen.
    trainable: bool = False
    # Time of building and preparing the module, in nanoseconds; one number per process.
    build_ns: tuple[int, ...] = ()
    # Time of the first call, in nanoseconds; one number per process.
    first_call_ns: tuple[int, ...] = ()
    # Samples on CUDA, in the layout of ``samples_ns``.
    # ``device_ns``: time of the call on the device, with a cold L2 cache; empty where work is enqueued outside torch.
    # ``graph_ns``: device time of the call replayed as a CUDA graph; empty without the policy ``capturable``.
    # ``late``: whether the device started the call before the host had enqueued the whole call. A spin on the device
    # should delay the start of the call until then; ``late`` is empty where no spin was possible.
    device_ns: tuple[tuple[int, ...], ...] = ()
    graph_ns: tuple[tuple[int, ...], ...] = ()
    late: tuple[tuple[bool, ...], ...] = ()
    # Clock rate of the streaming multiprocessors before the cycle, in MHz; 0 where it could not be read; empty without
    # NVML.
    clock_before_mhz: tuple[tuple[int, ...], ...] = ()
    # Clock rate of the streaming multiprocessors after the cycle, in MHz; 0 where it could not be read; empty without
    # NVML.
    clock_after_mhz: tuple[tuple[int, ...], ...] = ()
    # NVML's bits of the reasons for throttling before or after the cycle; empty without NVML.
    throttle_reasons: tuple[tuple[int, ...], ...] = ()
    # On CUDA: the source of the clock rates, or the reason why no clock rates were read.
    clock: str = ""

    @property
    def processes(self) -> int:
        """Number of processes, also of those without samples of this implementation."""
        return len(self.samples_ns)

    def select_new(self, before: "Timing | None") -> "tuple[int, Timing]":
        """Return the processes of this timing that ``before`` lacks, and the number of the first of them.

        If this timing does not begin with the samples of ``before``, or is interleaved with other implementations, all
        its processes are returned. Samples of further processes do not repeat ``interleaved_with``.
        """
        count = before.processes if before is not None else 0
        if before is None or count >= self.processes or not self._continues(before):
            return 0, self
        new = replace(
            self,
            **{name: getattr(self, name)[count:] for name in ("samples_ns", *SAMPLE_FIELDS)},
            interleaved_with=(),
            build_ns=self.build_ns[len(before.build_ns) :],
            first_call_ns=self.first_call_ns[len(before.first_call_ns) :],
            judged=self.judged - before.judged,
            twin=self.twin.select_new(before.twin)[1] if self.twin else None,
        )
        return count, new

    def _continues(self, before: "Timing") -> bool:
        same = self.samples_ns[: before.processes] == before.samples_ns
        return same and self.interleaved_with == before.interleaved_with

    def join(self, after: "Timing", first: int) -> "Timing":
        """Return this timing with the processes of ``after``, which have the numbers from ``first`` on.

        With ``first`` 0, ``after`` replaces this timing.
        """
        return join_timings([(0, self), (first, after)]) if first else after

    def shift(self, first: int) -> "Timing":
        """Return this timing with ``first`` processes before its own, which have no samples."""
        return join_timings([(first, self)]) if first else self

    def fill(self, processes: int) -> "Timing":
        """Return this timing with at least this number of processes; those that are added have no samples."""
        return join_timings([(0, self)], processes) if processes > self.processes else self


def join_timings(parts: "Sequence[tuple[int, Timing]]", processes: int = 0) -> Timing:
    """Join samples of processes to a timing with at least this number of processes.

    ``parts`` has the number of the first process of each part, ascending. Processes that no part has get empty tuples.
    """
    first, last = parts[-1]
    processes = max(processes, first + last.processes)
    twins = [(first, timing.twin) for first, timing in parts if timing.twin]
    columns: dict[str, Any] = {name: _join_column(parts, name, processes) for name in ("samples_ns", *SAMPLE_FIELDS)}
    return replace(
        last,
        **columns,
        method=_join_words(timing.method for _, timing in parts),
        clock=_join_words(timing.clock for _, timing in parts),
        # A single process with fixed values makes a timing one of fixed values.
        values="fixed" if any(timing.values == "fixed" for _, timing in parts) else last.values,
        interleaved_with=next((one.interleaved_with for _, one in parts if one.interleaved_with), ()),
        build_ns=tuple(number for _, one in parts for number in one.build_ns),
        first_call_ns=tuple(number for _, one in parts for number in one.first_call_ns),
        judged=sum(one.judged for _, one in parts),
        twin=join_timings(twins, processes) if twins else None,
    )


def _join_words(texts: Iterable[str]) -> str:
    """Return the different words of some texts, which separate theirs in the same way."""
    return SEPARATOR.join(dict.fromkeys(word for text in texts for word in text.split(SEPARATOR)))


def _join_column(parts: "Sequence[tuple[int, Timing]]", name: str, processes: int) -> tuple[tuple[int, ...], ...]:
    """Return the samples of one field in all processes; a process without samples of this field has an empty tuple."""
    column: list[tuple[int, ...]] = []
    for first, timing in parts:
        own = getattr(timing, name)
        if own:
            del column[first:]
            column += [()] * (first - len(column))
            column += own
    return (*column, *((),) * (processes - len(column))) if column else ()


# Fields of a Timing that have one number per sample, besides ``samples_ns``.
SAMPLE_FIELDS = (
    "waited_ns", "switches", "cycles", "device_ns", "graph_ns", "late", "clock_before_mhz", "clock_after_mhz",
    "throttle_reasons",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one call beyond its inputs.

    Unit: bytes. ``peak_bytes`` is the most that torch's allocator had allocated at any time during the call.
    ``saved_bytes`` is the memory of the tensors that are saved for backward.
    """

    peak_bytes: int
    saved_bytes: int | None = None
    # The part of ``peak_bytes`` that is neither output nor gradient.
    workspace_bytes: int | None = None
    # Peak of resident memory during the call, minus the resident memory before the call. It includes memory that
    # libraries map themselves.
    physical_bytes: int | None = None
    # The part of ``physical_bytes`` that torch's allocator did not allocate; None if this part is within the
    # measurement's noise.
    outside_bytes: int | None = None
    # On CUDA: memory that the caching allocator reserved on the device.
    reserved_bytes: int | None = None
    # Number of threads of the call.
    threads: int
    # How the memory was measured.
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All findings, timing and memory of one implementation on one case."""

    run: str
    implementation: str
    # Id of the case, which defines it completely: operator/sizes/flags/mask/regime/seed/dtype/device/mode.
    case: str
    findings: tuple[Finding, ...]
    # Only in runs of schemas before 8; later runs store ``Samples``.
    timing: Timing | None = None
    memory: Memory | None = None
    # Number of floating-point operations that the case needs, by a closed formula.
    flop: int | None = None
    # Smallest number of bytes that a call of the case must read and write, by a closed formula.
    bytes: int | None = None
    # Names that torch's profiler gives to the torch operators and device kernels of the call, the longest time first;
    # "aten::bmm ×2" was called twice.
    kernels: tuple[str, ...] = ()
    # Why a requested timing is missing, or why a checked call must not be timed; a text only in runs of schemas
    # before 8.
    untimed: Reason | None = None
    suite: str = ""
    # Whether the case is not in the suite's list, but a supplementary case of the implementation.
    completes: bool = False

    def __post_init__(self) -> None:
        """Refuse measurements of an implementation that did not pass all checks of the case."""
        conforms = bool(self.findings) and all(f.status == "passed" for f in self.findings)
        if (self.timing or self.memory) and not conforms:
            raise ValueError(f"{self.implementation} has measurements, but did not pass all checks of {self.case}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of a call, stored as soon as a process has timed its case.

    The result of the call is an earlier record, without timing. Readers add the samples to it, unless a check failed.
    """

    run: str
    implementation: str
    case: str
    # Number of the first process of ``timing``; 0: the samples replace those of earlier records of the call.
    first: int
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Highest rates measured on the machine, by a matrix product and by a copy; no call should exceed these rates."""

    run: str
    device: str
    dtype: str
    threads: int
    # Floating-point operations per second of the matrix product; the best of several calls.
    flop_per_s: float
    # Bytes read and written per second by the copy; the best of several calls.
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one implementation declared about the cases of a suite, and its supplementary cases.

    A suite contains every allowed combination of values of any ``strength`` factors of the operator. The supplementary
    cases are chosen from the operator's pool. They contain combinations that the implementation takes, but that are in
    no listed case that is run, or make up the number of cases that a verdict needs.
    """

    run: str
    implementation: str
    suite: str
    # ``list_digest``, ``listed``: hash and length of the list of cases about which the implementation was asked.
    list_digest: str
    listed: int
    # The refusals, each with the positions in this list of the refused cases.
    refusals: tuple[tuple[TypedRefusal, tuple[int, ...]], ...] = ()
    # Only before schema 8: the same by the text of the refusal.
    refused: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # Positions in this list of the cases without an answer: ``unsupported`` raised an exception, or was not called.
    unanswered: tuple[int, ...] = ()
    # Hash of the pool without the listed cases; empty if the implementation was not asked about the pool, and before
    # schema 8, when cases were drawn.
    pool_digest: str = ""
    # Number of factors whose values are combined: 2 for pairs, 3 for triples; 0 if the suite does not cover
    # combinations.
    strength: int = 0
    # Numbers of combinations. ``combinations``: in the suite. ``taken``: of these, in supported cases of list and pool.
    # ``covered_by_list``: of the taken ones, in listed cases that were to be run. ``covered``: of the taken ones, in
    # listed or supplementary cases that were to be run, and after the run without the cases that were not checked.
    combinations: int = 0
    taken: int = 0
    covered_by_list: int = 0
    covered: int = 0
    # Ids of the supplementary cases.
    cases: tuple[str, ...] = ()
    # ``asked``, ``unasked``: how many cases of list and pool were answered, and how many were not. ``asked_s``: time of
    # the answers in seconds.
    asked: int = 0
    asked_s: float = 0.0
    unasked: int = 0
    # ``raised``: on how many of them the declaration raised an exception. ``first_raised``: the first exception.
    raised: int = 0
    first_raised: Fact | None = None
    # Why the implementation gave no answer at all; None if it gave one.
    no_answer: Fact | None = None
    # Only before schema 8, in words. ``restrictions``: what the implementation never takes. ``notes``: what went wrong.
    restrictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Number of cases that were declared supported, but refused when called; None before the cases were run.
    refused_when_called: int | None = None

    @property
    def completion_hash(self) -> str:
        """Hash of the supplementary cases; empty if there are none."""
        return digest(self.cases) if self.cases else ""

    def list_refusals(self) -> list[tuple[TypedRefusal, tuple[int, ...]]]:
        """Return the refusals of a run of any schema, each with the positions of the refused cases."""
        return [*self.refusals, *((OtherRefusal(text=text), places) for text, places in self.refused.items())]

    def get_declarations(self, listed: Sequence[str]) -> dict[str, TypedRefusal | None]:
        """Return the declared refusal of each listed and supplementary case, None if it is supported.

        Cases without an answer are left out. ``listed`` is the list of cases about which the implementation was asked.
        """
        reasons = {place: refusal for refusal, places in self.list_refusals() for place in places}
        unanswered = set(self.unanswered)
        declared = {case: reasons.get(place) for place, case in enumerate(listed) if place not in unanswered}
        return declared | dict.fromkeys(self.cases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A mark that the run was resumed here: results that were lost from earlier lines are made again in later lines."""

    run: str
    # Time in UTC, in the format of ISO 8601.
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end of a run, as its last record. If the last record is not an End, the run was cut, or resumed and cut."""

    run: str
    # Time in UTC, in the format of ISO 8601.
    time: str
    # "interrupted": by Ctrl-C or a signal; "error": by an error that stopped the whole run.
    outcome: Literal["finished", "interrupted", "error"]
    # Exit code that follows from the results; the command's exit code can differ if a certificate was refused.
    exit_code: int


Record = Run | Result | Samples | Ceiling | Completion | Resumption | End


def explain_untimed(unfit: Finding) -> Reason:
    """Return why a case is not timed of which a check did not pass.

    If the check did not run, this is why it did not; else the finding itself says more.
    """
    if unfit.status in SILENT:
        return unfit.facts[0] if unfit.facts else unfit.reason
    return NotConforming(check=unfit.check, status=unfit.status)


def find_pass(case: str) -> Pass:
    """Return the pass that is timed in a case: "forward" in mode ``inference``, else "forward+backward"."""
    return "forward" if CaseId.parse(case).mode == "inference" else "forward+backward"


def format_reproduce_line(implementation: str, case: str, check: str) -> str:
    """Return the command that reproduces one check of one case; each word is quoted for a POSIX shell.

    A word that holds control characters or other characters that are not printed is quoted in the form of bash and zsh.
    """
    words = f"--check {_quote(check)}"
    quoted = _quote(case) if _quote(case) != case else f"'{case}'"
    if case.startswith("-") or implementation.startswith("-"):
        return f"attnbench reproduce {words} -- {quoted} {_quote(implementation)}"
    return f"attnbench reproduce {quoted} {words} {_quote(implementation)}"


def _quote(word: str) -> str:
    """Quote a word for a shell.

    A terminal may act on control characters in pasted text, even between quotes. They are written as escapes.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escape_letter(letter) for letter in word) + "'"


def _escape_letter(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    # An octal escape ends after three digits, whatever letter follows.
    return f"\\{ord(letter):03o}" if ord(letter) < 0x80 else f"\\U{ord(letter):08x}"
