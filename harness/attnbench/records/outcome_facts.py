"""Facts about calls without values to compare: exceptions, refusals, and why something was not run or not timed."""

from typing import Literal

import msgspec

from attnbench.records.value_facts import Number, Phrase
from attnbench.refusals import TypedRefusal

__all__ = [
    "AnsweredThoughRefused",
    "Argument",
    "CallOverLimit",
    "CannotJudge",
    "CannotLoad",
    "ClockChanged",
    "ComputesRefusedCase",
    "Crashed",
    "Death",
    "DeathScope",
    "DeclarationChanged",
    "EmptyBatchRefused",
    "EndedProcesses",
    "ExcludedFromTiming",
    "ExpectedToFail",
    "FailsAfterOthersOnly",
    "Flaky",
    "Implausible",
    "Interrupted",
    "InvarianceGrade",
    "KeepsWorking",
    "LimitedMemory",
    "MalformedAnswer",
    "MissingData",
    "NoGradient",
    "NotConforming",
    "NotReproduced",
    "OracleEnded",
    "OtherOperator",
    "OutcomeFact",
    "OverMemoryLimit",
    "OverWorkLimit",
    "PassedUnexpectedly",
    "ProcessChanged",
    "Raised",
    "ReturnsNoGradients",
    "ReturnsNoWeights",
    "SamplesChanged",
    "Size",
    "SizeName",
    "SlowsOthers",
    "SweptSize",
    "TimedOut",
    "TimingFault",
    "TooLargeForMachine",
    "TooManyDeaths",
    "UnknownFact",
]


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor argument of a call."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An exception, with the innermost place in the source that is not in torch; ``file`` is empty without a place."""

    kind: str
    message: str
    file: str = ""
    line: int = 0
    function: str = ""
    # The arguments of the case; empty if the exception was not raised by a call.
    arguments: tuple[Argument, ...] = ()


class LimitedMemory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The memory of the process was limited to this number of bytes."""

    limit_bytes: int


class MalformedAnswer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the implementation returned, or declared, does not have the required form."""

    what: Phrase


class NoGradient(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No gradient reaches the inputs, because the outputs do not require one."""


class CannotJudge(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check cannot judge the implementation on this case."""

    why: Phrase


class EmptyBatchRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A batch without sequences is refused, as the policies declare."""


class Crashed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process ended without an answer.

    exit: with the code ``code``. signal: killed by ``signal``. closed: it closed its connection. answer: it wrote
    something else than an answer. flood: it wrote too much. start: it could not be started.
    """

    how: Literal["exit", "signal", "closed", "answer", "flood", "start"]
    code: int = 0
    signal: str = ""
    # Its last line of output, or what the system or the decoder says.
    text: str = ""


class TimedOut(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There was no answer within the time limit, in seconds."""

    limit_s: float


class CannotLoad(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation cannot be loaded; ``message`` is that of the exception."""

    message: str


class OracleEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The oracle worker's process ended."""

    how: Crashed


class NotReproduced(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The crash came after checks of other cases, and no check of this case reproduces it in a fresh process."""


Death = Crashed | TimedOut | CannotLoad


# What is left out after deaths: a check on all further cases, the other checks of a case, or all that was left.
DeathScope = Literal["check", "case", "implementation"]


class TooManyDeaths(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker's process ended this many times in a row, so that what ``of`` names was not run any further."""

    count: int
    last: Death
    of: DeathScope = "implementation"


class Interrupted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The run was interrupted."""


class OverWorkLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The predicted time of a call exceeds the limit on work, so the case was not started."""

    predicted_s: Number
    limit_s: float


class CallOverLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A call took longer than the limit on work."""

    took_s: float
    limit_s: float


class OverMemoryLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The memory of the tensors alone, or the predicted memory, exceeds the limit, so the case was not started."""

    what: Literal["tensors", "predicted"]
    need_bytes: int
    limit_bytes: int


class TooLargeForMachine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The oracle's expected values, or the case's inputs and outputs, need more memory than this machine has free."""

    what: Literal["expected", "tensors"]
    need_bytes: int
    free_bytes: int


class MissingData(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This machine lacks what the operator needs to make the inputs; ``remedy`` is the operator's text."""

    remedy: str


class OtherOperator(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation computes another operator than that of the case."""

    operator: str
    case_operator: str


class AnsweredThoughRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The case is declared unsupported, but the call raised no exception, or returned a wrong result."""

    refusal: TypedRefusal
    how: Literal["no_exception", "wrong_result"]


class ComputesRefusedCase(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The case is declared unsupported, but the call is right."""


class ReturnsNoWeights(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The case is declared unsupported, and the call returns no weights in place of raising an exception."""


class ReturnsNoGradients(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The case is declared unsupported, and the call returns an output without gradients in place of an exception."""


class DeclarationChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """``unsupported(case)`` has another answer than when the run was planned; None: supported."""

    before: TypedRefusal | None
    now: TypedRefusal | None


class ExpectedToFail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The finding is an expected failure; ``reason`` and ``link`` are from the user's file."""

    reason: str
    link: str


class PassedUnexpectedly(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The finding was expected to fail, but passed; ``entry`` is the number of the entry in the user's file, or 0."""

    reason: str
    link: str
    file: str = ""
    entry: int = 0


class Flaky(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check passed when it was run again."""


class FailsAfterOthersOnly(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The check fails only after other checks or cases have run."""


class ProcessChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A timed call changed the process, or its result cannot be judged, so its timing is not valid."""

    what: Phrase


class SamplesChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The samples and the time between them do not add up to the time that passed."""

    total_ns: int
    elapsed_ns: int


class ClockChanged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process counted another time than passed."""

    counted_ns: int
    passed_ns: int


class SlowsOthers(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Beside the implementation, a call of the baseline takes longer than in a process of its own."""

    baseline: str
    beside_ns: float
    alone_ns: float


class EndedProcesses(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation ended this many timing processes."""

    count: int


class KeepsWorking(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The implementation's threads still need this many cores after the call has returned."""

    cores: float


class NotConforming(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A check did not pass on this case; its finding says why."""

    check: str
    status: str


class Implausible(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A stored timing cannot be right, and is left out; ``fault`` says why, as a text in other versions."""

    fault: Phrase | str


TimingFault = (
    TypedRefusal
    | Raised
    | MalformedAnswer
    | NoGradient
    | Crashed
    | TimedOut
    | CannotLoad
    | TooManyDeaths
    | Interrupted
    | ProcessChanged
    | SamplesChanged
    | ClockChanged
    | SlowsOthers
)


class ExcludedFromTiming(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A fault in a timing process, for which the implementation was excluded from the timing of the case."""

    fault: TimingFault
    # Whether the fault was found to be the implementation's; if not, all that were timed together are excluded.
    attributed: bool = True


SizeName = Literal["batch", "length", "head_dim", "padding", "chunk", "keys_per_part", "threads"]


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a comparison."""

    name: SizeName
    value: int


class SweptSize(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one size among the comparisons of a sweep, ascending."""

    name: SizeName
    values: tuple[int, ...]


class InvarianceGrade(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far results change in a sweep of sizes, by a change of the call that changes nothing but the rounding."""

    # Largest difference of two numbers, counted in the floating-point numbers from one to the other; 0: all bits are
    # equal.
    largest_ulp: int
    # Largest difference of two numbers, in the units of the output or gradient.
    largest_difference: Number = 0.0
    # Sizes of the first comparison that differs; empty if none does.
    first: tuple[Size, ...] = ()
    # Numbers of comparisons that were made, that differ, and that the implementation refused.
    compared: int
    differing: int = 0
    refused: int = 0
    swept: tuple[SweptSize, ...]
    # Whether the sweep ended before its time limit.
    complete: bool = True
    # Whether the policies of the implementation declare bitwise equality.
    declared: bool = False


class UnknownFact(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A fact that this version does not know, as of a newer version; ``name`` is its tag."""

    name: str


# Facts of a call that gave nothing to compare, or was not made. The union is closed: a struct is told apart by its tag.
OutcomeFact = (
    TimingFault
    | LimitedMemory
    | CannotJudge
    | EmptyBatchRefused
    | NotReproduced
    | OracleEnded
    | OverWorkLimit
    | CallOverLimit
    | OverMemoryLimit
    | TooLargeForMachine
    | MissingData
    | OtherOperator
    | AnsweredThoughRefused
    | ComputesRefusedCase
    | ReturnsNoWeights
    | ReturnsNoGradients
    | DeclarationChanged
    | ExpectedToFail
    | PassedUnexpectedly
    | Flaky
    | FailsAfterOthersOnly
    | EndedProcesses
    | KeepsWorking
    | NotConforming
    | Implausible
    | ExcludedFromTiming
    | InvarianceGrade
    | UnknownFact
)
