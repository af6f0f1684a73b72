"""What facts about calls without values say: exceptions, refusals, and why something was not run or not timed."""

from typing import assert_never

from attnbench.records.outcome_facts import (
    AnsweredThoughRefused,
    CallOverLimit,
    CannotJudge,
    CannotLoad,
    ClockChanged,
    ComputesRefusedCase,
    Crashed,
    DeathScope,
    DeclarationChanged,
    EmptyBatchRefused,
    EndedProcesses,
    ExcludedFromTiming,
    ExpectedToFail,
    FailsAfterOthersOnly,
    Flaky,
    Implausible,
    Interrupted,
    InvarianceGrade,
    KeepsWorking,
    LimitedMemory,
    MalformedAnswer,
    MissingData,
    NoGradient,
    NotConforming,
    NotReproduced,
    OracleEnded,
    OtherOperator,
    OutcomeFact,
    OverMemoryLimit,
    OverWorkLimit,
    PassedUnexpectedly,
    ProcessChanged,
    Raised,
    ReturnsNoGradients,
    ReturnsNoWeights,
    SamplesChanged,
    SlowsOthers,
    TimedOut,
    TooLargeForMachine,
    TooManyDeaths,
    UnknownFact,
)
from attnbench.refusals import TypedRefusal
from attnbench.words.calls import CHANGES, JUDGING, MALFORMED
from attnbench.words.checks import fill_phrase
from attnbench.words.exclusions import describe_fault
from attnbench.words.invariance import describe_grade
from attnbench.words.refusals import describe_refusal
from attnbench.words.say import say

__all__ = ["describe_outcome_fact"]

_RAISED = "{kind}: {message}"
_RAISED_AT = "{kind}: {message} (at {file}:{line} in {function})"
_ARGUMENTS = "{raised}. Arguments of the case: {arguments}."
_ARGUMENT = "{name} {shape}"
_ARGUMENT_OF_DTYPE = "{name} {shape} {dtype}"
_LIMITED = "The limit is {limit} (--memory-limit)."
_MALFORMED = "{what}."
_NO_GRADIENT = "no gradient reaches the inputs: the outputs do not require grad."
_EMPTY = "a batch without sequences is refused, as the policies declare"
_EXIT = "the process exited with code {code}{last}"
_LAST = " ({text})"
_CRASHES = {
    "signal": "the process was killed by {signal}",
    "closed": "the process closed its connection without an answer, and was killed",
    "answer": "something other than an answer was written to the process's connection{last}",
    "flood": "more than {text} were written to the process's connection",
    "start": "no process can be started: {text}",
}
_TIMED_OUT = "no answer within {limit:g} s (--timeout)"
_CANNOT_LOAD = "{message}"
_NOT_REPRODUCED = "This came after checks of other cases; no check of this case reproduces it in a fresh process."
_ORACLE_ENDED = "the oracle worker's process ended: {crash}"
_DEATHS: dict[DeathScope, str] = {
    "check": "this check ended the worker's process in {count} cases in a row, the last time: {last}",
    "case": "checks of this case ended the worker's process ({count} in a row), the last time: {last}",
    "implementation": "the worker's process ended {count} times in a row, the last time: {last}",
}
_INTERRUPTED = "the run was interrupted"
_OVER_WORK = "predicted {predicted:.3g} s a call, over the limit of {limit:g} s (--work-limit)"
_OVER_CALL = "a call took {took:.3g} s, over the limit of {limit:g} s (--work-limit)"
_OVER_MEMORY = {
    "tensors": "the inputs and outputs alone take {need}, over the limit of {limit} (--memory-limit)",
    "predicted": "predicted memory {need}, over the limit of {limit} (--memory-limit)",
}
_TOO_LARGE = {
    "expected": "computing the expected values needs about {need} of memory, but only {free} are free: "
    "use a shorter length",
    "tensors": "inputs, parameters and outputs in float64, of which expected values are computed, take at least {need} "
    "of memory, but only {free} are free: use smaller sizes",
}
_GIB = "{gib:.3g} GiB"
_MISSING = "{remedy}"
_OTHER_OPERATOR = "the implementation computes {operator}, not {other}"
_ANSWERED = {
    "no_exception": "declared unsupported ({refusal}), yet the call raised no exception:",
    "wrong_result": "declared unsupported ({refusal}), yet the call returned a wrong result instead of raising an "
    "exception:",
}
_COMPUTES = "computes this case correctly; let unsupported(case) return None for it"
_NO_WEIGHTS = "returns no attention weights although the call requests them; raise an exception instead"
_NO_GRADIENTS = "returns an output without gradients although the case needs them; raise an exception instead"
_DECLARATION = "unsupported(case) changed its answer: {before} when the run was planned, now {now}"
_SUPPORTED, _REFUSED = "supported", "refused ({refusal})"
_EXPECTED = "{reason} ({link}):"
_UNEXPECTED = (
    "expected to fail ({reason}, {link}), but passed: remove {entry}, or exclude this case from the entry's patterns"
)
_ENTRY, _ENTRY_OF = "the entry", "entry {number} of {file}"
_FLAKY = "Flaky: passed when re-run."
_AFTER_OTHERS = "Fails only after other checks or cases have run."
_SAMPLES = (
    "the samples and the time between them add up to {total:.3f} ms, but {elapsed:.3f} ms passed: samples were changed "
    "after they were taken"
)
_CLOCK = "the process counted {counted:.3f} s while {passed:.3f} s passed: its clock was changed"
_SLOWS = (
    "beside it, a call of {baseline} took {beside:.3g} ms, but {alone:.3g} ms in a process of its own: it slows others "
    "down"
)
_ENDED = "it ended {count} timing processes"
_KEEPS_WORKING = "its threads still need {cores:.1f} cores after the call has returned"
_NOT_CONFORMING = "{check}: {status}"
_IMPLAUSIBLE = "left out: {fault}"
_EXCLUDED = "in a timing process: {fault}"
_NOT_ATTRIBUTED = "in a timing process: {fault}; no subset of the implementations reproduced it"
_UNKNOWN = "unknown fact ({name})"


def describe_outcome_fact(fact: OutcomeFact) -> str:  # noqa: C901  # one case for each fact
    """Return what a fact says."""
    if isinstance(fact, TypedRefusal):
        return describe_refusal(fact)
    match fact:
        case Raised():
            return _describe_raised(fact)
        case LimitedMemory(limit_bytes=limit):
            return say(_LIMITED, limit=_format_gib(limit))
        case MalformedAnswer(what=what):
            return say(_MALFORMED, what=fill_phrase(MALFORMED, what))
        case NoGradient():
            return say(_NO_GRADIENT)
        case CannotJudge(why=why):
            return fill_phrase(JUDGING, why)
        case EmptyBatchRefused():
            return say(_EMPTY)
        case Crashed():
            return _describe_crash(fact)
        case TimedOut(limit_s=limit):
            return say(_TIMED_OUT, limit=limit)
        case CannotLoad(message=message):
            return say(_CANNOT_LOAD, message=message)
        case NotReproduced():
            return say(_NOT_REPRODUCED)
        case OracleEnded(how=how):
            return say(_ORACLE_ENDED, crash=_describe_crash(how))
        case TooManyDeaths(count=count, last=last, of=of):
            return say(_DEATHS[of], count=count, last=describe_outcome_fact(last))
        case Interrupted():
            return say(_INTERRUPTED)
        case OverWorkLimit():
            return say(_OVER_WORK, predicted=float(fact.predicted_s), limit=fact.limit_s)
        case CallOverLimit():
            return say(_OVER_CALL, took=fact.took_s, limit=fact.limit_s)
        case OverMemoryLimit():
            return say(_OVER_MEMORY[fact.what], need=_format_gib(fact.need_bytes), limit=_format_gib(fact.limit_bytes))
        case TooLargeForMachine():
            return say(_TOO_LARGE[fact.what], need=_format_gib(fact.need_bytes), free=_format_gib(fact.free_bytes))
        case MissingData(remedy=remedy):
            return say(_MISSING, remedy=remedy)
        case OtherOperator():
            return say(_OTHER_OPERATOR, operator=fact.operator, other=fact.case_operator)
        case AnsweredThoughRefused():
            return say(_ANSWERED[fact.how], refusal=describe_refusal(fact.refusal))
        case ComputesRefusedCase():
            return say(_COMPUTES)
        case ReturnsNoWeights():
            return say(_NO_WEIGHTS)
        case ReturnsNoGradients():
            return say(_NO_GRADIENTS)
        case DeclarationChanged(before=before, now=now):
            return say(_DECLARATION, before=_describe_declaration(before), now=_describe_declaration(now))
        case ExpectedToFail():
            return say(_EXPECTED, reason=fact.reason, link=fact.link)
        case PassedUnexpectedly():
            entry = say(_ENTRY_OF, number=fact.entry, file=fact.file) if fact.file else say(_ENTRY)
            return say(_UNEXPECTED, reason=fact.reason, link=fact.link, entry=entry)
        case Flaky():
            return say(_FLAKY)
        case FailsAfterOthersOnly():
            return say(_AFTER_OTHERS)
        case ProcessChanged(what=what):
            return say(_MALFORMED, what=fill_phrase(CHANGES, what))
        case SamplesChanged():
            return say(_SAMPLES, total=fact.total_ns / 1e6, elapsed=fact.elapsed_ns / 1e6)
        case ClockChanged():
            return say(_CLOCK, counted=fact.counted_ns / 1e9, passed=fact.passed_ns / 1e9)
        case SlowsOthers():
            return say(_SLOWS, baseline=fact.baseline, beside=fact.beside_ns / 1e6, alone=fact.alone_ns / 1e6)
        case EndedProcesses(count=count):
            return say(_ENDED, count=count)
        case KeepsWorking(cores=cores):
            return say(_KEEPS_WORKING, cores=cores)
        case NotConforming():
            return say(_NOT_CONFORMING, check=fact.check, status=fact.status)
        case Implausible(fault=fault):
            return say(_IMPLAUSIBLE, fault=describe_fault(fault))
        case ExcludedFromTiming():
            return say(_EXCLUDED if fact.attributed else _NOT_ATTRIBUTED, fault=describe_outcome_fact(fact.fault))
        case InvarianceGrade():
            return describe_grade(fact)
        case UnknownFact(name=name):
            return say(_UNKNOWN, name=name)
    assert_never(fact)


def _describe_raised(raised: Raised) -> str:
    text = say(
        _RAISED_AT if raised.file else _RAISED,
        kind=raised.kind, message=raised.message, file=raised.file, line=raised.line, function=raised.function,
    )  # fmt: skip
    if not raised.arguments:
        return text
    first = raised.arguments[0].dtype
    arguments = ", ".join(
        say(_ARGUMENT if one.dtype == first else _ARGUMENT_OF_DTYPE, name=one.name, shape=one.shape, dtype=one.dtype)
        for one in raised.arguments
    )
    return say(_ARGUMENTS, raised=text.removesuffix("."), arguments=arguments)


def _describe_crash(crash: Crashed) -> str:
    last = say(_LAST, text=crash.text) if crash.text else ""
    if crash.how == "exit":
        return say(_EXIT, code=crash.code, last=last)
    return say(_CRASHES[crash.how], signal=crash.signal, text=crash.text, last=last)


def _describe_declaration(refusal: TypedRefusal | None) -> str:
    return say(_SUPPORTED) if refusal is None else say(_REFUSED, refusal=describe_refusal(refusal))


def _format_gib(count: int) -> str:
    return say(_GIB, gib=count / 2**30)
