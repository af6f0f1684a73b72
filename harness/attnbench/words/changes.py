"""What changed between two sides of a comparison, in words."""

from typing import assert_never

from attnbench.analysis.run_diff import (
    Change,
    ComparedRatios,
    ComparedTimes,
    Counted,
    Gone,
    NotTimed,
    OtherCalls,
    RatioFault,
    StatusChange,
    UnusableRatios,
)
from attnbench.analysis.speed_verdict import NoVerdict
from attnbench.analysis.stats import Estimate
from attnbench.analysis.unmatched import Lack
from attnbench.records.facts import Reason
from attnbench.records.types import FAILURES
from attnbench.words.findings import describe_finding, describe_reason
from attnbench.words.say import say
from attnbench.words.speed import explain_no_verdict

__all__ = ["describe_change", "describe_lack", "list_kernel_changes"]

_NO_FINDING = "no finding of {check}"
_NO_REASON = "no reason was stored"
_STATUS = "{status}: {why}"

_UNITS = {"flop": "flop", "kernel_calls": "calls"}
_OTHER_CALLS = {
    "parameters": "the parameters were frozen in the calls of one run, and not in those of the other run",
    "values": "the calls of one run had input values of their own, those of the other run had all the same values",
}


def describe_change(change: Change) -> str:
    """Say what changed; the value of the key ``told`` of ``attnbench compare --json``."""
    match change.fact:
        case StatusChange(before=before, finding=finding):
            why = say(": {reason}", reason=describe_finding(finding)) if finding.status in FAILURES else ""
            return say("{before} → {now}{why}", before=before, now=finding.status, why=why)
        case Gone():
            return say("the new run has no result")
        case Counted() as counted:
            return _describe_counted(counted, _UNITS.get(change.aspect, "bytes"))
        case ComparedTimes(found=found):
            ratio = say("{ratio} × the base's time, ", ratio=_format_interval(found.ratio)) if found.ratio else ""
            why = say(": {reason}", reason=explain_no_verdict(found.reason)) if found.reason else ""
            template = "{ratio}{counted} of {of} processes are usable{why}"
            return say(template, ratio=ratio, counted=found.counted, of=found.of, why=why)
        case NotTimed(missing=missing):
            return "; ".join(_describe_untimed(*one) for one in missing)
        case OtherCalls(kind=kind):
            return say(_OTHER_CALLS[kind])
        case UnusableRatios(base=base, new=new):
            sides = (("base", base), ("new", new))
            faults = ((side, _describe_fault(fault)) for side, fault in sides if fault is not None)
            return "; ".join(say("the {side} run: {fault}", side=side, fault=fault) for side, fault in faults)
        case ComparedRatios(was=was, is_now=is_now):
            template = "{was} → {now} × the reference's time"
            return say(template, was=_format_interval(was), now=_format_interval(is_now))
        case _:
            assert_never(change.fact)


def describe_lack(lack: Lack) -> str:
    """Return why a side of a comparison lacks a check or a timing."""
    if lack.check:
        return say(_NO_FINDING, check=lack.check)
    why = describe_reason(lack.reason) if lack.reason else say(_NO_REASON)
    return say(_STATUS, status=lack.status, why=why) if lack.status else why


def list_kernel_changes(counted: Counted) -> str:
    """List the kernels whose number of calls changed; empty if there are none."""
    return ", ".join(say("{name} {was} → {now}", name=name, was=was, now=now) for name, was, now in counted.kernels)


def _describe_counted(counted: Counted, unit: str) -> str:
    kernels = list_kernel_changes(counted)
    more = say(": {kernels}", kernels=kernels) if kernels else ""
    return say("{was} → {now} {unit}{more}", was=counted.was, now=counted.is_now, unit=unit, more=more)


def _describe_untimed(name: str, why: Reason | None) -> str:
    told = describe_reason(why) if why else say(_NO_REASON)
    return say("{name} was not timed: {why}", name=name, why=told)


def _describe_fault(fault: RatioFault) -> str:
    if isinstance(fault, NoVerdict):
        return explain_no_verdict(fault)
    return say("it was timed in other processes than {baseline}", baseline=fault.baseline)


def _format_interval(found: Estimate) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
