"""What a check found, in one sentence for each fact about values."""

from collections.abc import Mapping
from typing import assert_never

from attnbench.analysis.deviations import find_remedy, is_default
from attnbench.interface import Policies
from attnbench.records.value_facts import (
    BitsDiffer,
    ConditionViolated,
    DeclaredNanMissing,
    Limit,
    LooksLike,
    MeanAmplitudeOff,
    MeanOff,
    NearLimit,
    NotDiagnosed,
    NotEvaluated,
    NotFinite,
    NothingDropped,
    Number,
    PolicyDeviation,
    RowSumOff,
    ScaleOff,
    SlopeOff,
    StridesMisread,
    TimedCallChecked,
    UnexpectedQuantity,
    ValueFact,
    ValuesOff,
    WrongDtype,
    WrongShape,
)
from attnbench.words.checks import describe_violation, name_compared
from attnbench.words.faults import describe_diagnosis
from attnbench.words.places import describe_place, describe_shared
from attnbench.words.say import say

__all__ = ["describe_value_fact", "name_scale", "name_seen"]

# Number of significant digits that tell any two numbers in float64 apart.
LONGEST_DIGITS = 17
_SHAPE = "{what} has shape {shape}, must be {expected}."
_DTYPE = "{what} has dtype {dtype}, must be {expected}."
_UNEXPECTED = "the call returned {quantity}, which this case does not have."
_OFF = (
    "{share} of {what} are off{shared}; the worst by {worst:.3g} at {place} ({value}, must be {expected}); "
    "allowed {allowed:.3g}{origin}."
)
_BITS = "{share} of {what} differ{shared}, the worst at {place}: {value}, must be exactly {expected}."
_NOT_FINITE = "{what} is {value:g} at {place}, must be {expected:g} ({share} differ in NaN or infinity{shared})."
_ORIGIN = " = {origin}"
_SHARE = "{count} of {total} elements ({share:.1%})"
_BUDGET = "{factor:.3g} × the larger of the rounding model's error {model:.3g} and the reference's own {yardstick:.3g}"
_ORIGINS = {"budget": "{budget}", "two_runs": "twice {budget}", "join": "the rounding of a join by logsumexp"}
_SCALE = "the {probe} estimated from {quantity} is off by {off:+.3g}; allowed {allowed:.3g}."
_SCALE_NAME = "the {probe} is off by {percent:+.3g} %"
_PROBES = {"softmax_scale": "softmax scale", "amplitude": "amplitude"}
_ROW_SUM = "the sum of a row of {what} is off by {off:.3g}; allowed {allowed:.3g}."
_SLOPE = "{what} differs by {off:.3g} from the central difference {slope:.3g}; allowed {allowed:.3g}."
_ROUNDED_SLOPE = (
    "{what} differs by {off:.3g} from the central difference {slope:.3g}; allowed {allowed:.3g}, by the rounding of "
    "the loss."
)
_MEAN = "the mean of {draws} draws of {quantity} is {off:.1f} standard errors off at {place}; allowed {allowed:g}."
_AMPLITUDE = (
    "the mean of {draws} draws of {quantity} is off by a common factor: {share:+.1%} of the part that dropout changes. "
    "This is {off:.1f} standard errors; allowed {allowed:g}."
)
_NOTHING_DROPPED = "{draws} draws gave the same {quantity}: nothing was dropped."
_NAN_MISSING = "no gradient is NaN, although the case has fully masked rows."
_SENTENCE = "{text}."
_DIAGNOSIS = "Diagnosis: {diagnosis}."
_NOT_DIAGNOSED = "Not diagnosed: the case has more than {limit:,} query-key pairs."
_DECLARE = "Deviation: {seen}{declared}; if this is meant, declare Policies({remedy})."
_REMOVE = "Deviation: {seen}{declared}: remove Policies({remedy})."
_DECLARED = ", but Policies({policies}) is declared"
_AND = " and "
_SEEN: dict[tuple[str, str | bool], str] = {
    ("hidden_rows", "zero"): "a fully masked row is zero",
    ("hidden_rows", "nan"): "a fully masked row is NaN",
    ("hidden_rows", "mean"): "a fully masked row is the mean of all values, hidden ones included",
    ("hidden_row_gradients", "exact"): "the gradients of a fully masked row are those of its value",
    (
        "hidden_row_gradients",
        "softmax",
    ): "the gradients of a fully masked row are those of a softmax with equal weights",
    ("hidden_row_gradients", "nan"): "the gradients of a fully masked row are NaN",
    ("returned_weights", "before_dropout"): "the returned weights are those before dropout",
    ("returned_weights", "after_dropout"): "the returned weights are those after dropout",
    ("detached_weights", True): "the returned weights are detached from the graph",
    ("detached_weights", False): "the returned weights carry a gradient",
    ("empty_batches", "refused"): "a batch without sequences raises an exception",
    ("empty_batches", "computed"): "a batch without sequences raises no exception",
    ("transforms", "refused"): "a call under a transform of torch.func raises an exception",
}
_OTHER_SEEN = "{name} is {value}"
_TIMED = "Checked in one of {calls} timed calls, chosen at random, and in a call after them."
_NEAR = "uses {share:.0%} of the error allowed"
_NOT_EVALUATED = "what the check observed cannot be evaluated: {raised}: {message}"


def describe_value_fact(fact: ValueFact, *, origins: bool = True) -> str:  # noqa: C901  # one case for each fact
    """Return what a fact says, as a sentence; a warning has no full stop.

    ``origins``: say how an allowed error was computed.
    """
    match fact:
        case WrongShape():
            return say(_SHAPE, what=name_compared(fact.compared), shape=fact.shape, expected=fact.expected)
        case WrongDtype():
            return say(_DTYPE, what=name_compared(fact.compared), dtype=fact.dtype, expected=fact.expected)
        case UnexpectedQuantity():
            return say(_UNEXPECTED, quantity=fact.quantity)
        case ValuesOff():
            origin = _describe_origin(fact.limit) if origins else ""
            return _describe_apart(_OFF, fact, worst=float(fact.worst), allowed=fact.limit.allowed, origin=origin)
        case BitsDiffer():
            return _describe_apart(_BITS, fact)
        case NotFinite():
            value, expected = float(fact.value), float(fact.expected)
            return say(_NOT_FINITE, **_describe_wrong(fact), value=value, expected=expected)
        case ScaleOff():
            numbers = {"off": float(fact.off), "allowed": fact.allowed}
            return say(_SCALE, probe=say(_PROBES[fact.probe]), quantity=fact.quantity, **numbers)
        case RowSumOff():
            return say(_ROW_SUM, what=name_compared(fact.compared), off=float(fact.off), allowed=fact.allowed)
        case SlopeOff():
            numbers = {"off": float(fact.off), "slope": float(fact.slope), "allowed": float(fact.allowed)}
            return say(_ROUNDED_SLOPE if fact.rounded else _SLOPE, what=name_compared(fact.compared), **numbers)
        case MeanOff():
            place, off = describe_place(fact.place), float(fact.off)
            return say(_MEAN, draws=fact.draws, quantity=fact.quantity, off=off, place=place, allowed=fact.allowed)
        case MeanAmplitudeOff():
            numbers = {"share": float(fact.share), "off": float(fact.off), "allowed": fact.allowed}
            return say(_AMPLITUDE, draws=fact.draws, quantity=fact.quantity, **numbers)
        case NothingDropped():
            return say(_NOTHING_DROPPED, draws=fact.draws, quantity=fact.quantity)
        case DeclaredNanMissing():
            return say(_NAN_MISSING)
        case ConditionViolated():
            return say(_SENTENCE, text=describe_violation(fact.violation, fact.rows))
        case LooksLike() | StridesMisread():
            return say(_DIAGNOSIS, diagnosis=describe_diagnosis(fact))
        case NotDiagnosed():
            return say(_NOT_DIAGNOSED, limit=fact.limit)
        case PolicyDeviation():
            return _describe_deviation(fact)
        case TimedCallChecked():
            return say(_TIMED, calls=fact.calls)
        case NotEvaluated():
            return say(_NOT_EVALUATED, raised=fact.raised, message=fact.message)
        case NearLimit():
            return say(_NEAR, share=fact.share)
    assert_never(fact)


def name_scale(scale: ScaleOff) -> str:
    """Return the error of a scale, as in "the softmax scale is off by +9.62 %"."""
    return say(_SCALE_NAME, probe=say(_PROBES[scale.probe]), percent=100 * float(scale.off))


def name_seen(deviation: PolicyDeviation) -> str:
    """Return what was seen, as the beginning of a sentence."""
    return say(_AND).join(
        say(_SEEN.get((policy.name, policy.seen), _OTHER_SEEN), name=policy.name, value=policy.seen)
        for policy in deviation.policies
    )


def _describe_deviation(deviation: PolicyDeviation) -> str:
    remedy, remove = find_remedy(deviation), is_default(deviation)
    defaults = Policies()
    declared = {
        policy.name: policy.declared
        for policy in deviation.policies
        if policy.declared != getattr(defaults, policy.name, None)
    }
    but = say(_DECLARED, policies=_format_policies(declared)) if declared else ""
    return say(
        _REMOVE if remove else _DECLARE, seen=name_seen(deviation), declared=but, remedy=_format_policies(remedy)
    )


def _format_policies(policies: Mapping[str, str | bool]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in policies.items())


def _describe_apart(template: str, fact: ValuesOff | BitsDiffer, **numbers: float | str) -> str:
    value, expected = _format_apart(fact.value, fact.expected)
    return say(template, **_describe_wrong(fact), value=value, expected=expected, **numbers)


def _describe_wrong(fact: ValuesOff | BitsDiffer | NotFinite) -> dict[str, str]:
    """Return the texts that say which elements are wrong, and where."""
    share = fact.count / max(fact.total, 1)
    return {
        "what": name_compared(fact.compared),
        "share": say(_SHARE, count=fact.count, total=fact.total, share=share),
        "place": describe_place(fact.place),
        "shared": describe_shared(fact.shared),
    }


def _describe_origin(limit: Limit) -> str:
    budget = say(_BUDGET, factor=limit.factor, model=limit.model, yardstick=limit.yardstick)
    return say(_ORIGIN, origin=say(_ORIGINS[limit.origin], budget=budget))


def _format_apart(value: Number, expected: Number) -> tuple[str, str]:
    """Format a number and the expected number, with as many digits as tell them apart, and at least 6."""
    numbers = float(value), float(expected)
    for digits in range(6, LONGEST_DIGITS + 1):
        first, second = (f"{number:.{digits}g}" for number in numbers)
        if first != second:
            break
    return first, second
