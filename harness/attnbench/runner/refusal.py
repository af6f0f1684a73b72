"""Reasons not to start a case, and the test that an implementation raises on a case that it declares unsupported.

An implementation is also called on the cases that it declares unsupported. Such a call must raise an exception, and
must not return a wrong tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_answer

from attnbench.cases import COMPILED_MODES, CaseId
from attnbench.processes.candidate_requests import Declaration, Outcome
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import (
    AnsweredThoughRefused,
    ComputesRefusedCase,
    DeclarationChanged,
    NoGradient,
    OverWorkLimit,
    ReturnsNoGradients,
    ReturnsNoWeights,
)
from attnbench.records.types import DEADLY, Finding
from attnbench.records.value_facts import store_number
from attnbench.refusals import TypedRefusal
from attnbench.runner.check_outcomes import make_finding
from attnbench.runner.session import Plan

__all__ = ["apply_refusal", "check_work_limit", "find_refusal", "keep_declaration", "select_refusal_checks"]

# Checks that compare an output with its expected values; at least one of these checks applies to every case.
PARITY = (
    "forward_parity",
    "autocast_parity",
    "exact_uniform_mean",
    "exact_selection",
    "exact_zero_leak",
    "dropout_is_unbiased",
)
# Name of the check whether attention weights are returned exactly when the call requests them. The check ignores the
# values of the weights.
SHAPE_ONLY = "weights_only_on_request"
# Checks of attention weights and of gradients, which also run on a case that the implementation declares unsupported.
FURTHER = ("weights_parity", SHAPE_ONLY, "input_gradients")


def find_refusal(described: Declaration | Outcome, limit_s: float) -> Outcome | None:
    """Return an outcome that says why a case is not started, or None if it may be started.

    ``described`` is the worker's reply, which says what the implementation declares for the case.
    """
    if isinstance(described, Outcome):
        return described
    if described.unsupported is not None:
        return Outcome(status="unsupported", facts=(described.unsupported,))
    return check_work_limit(described.predicted_s, limit_s)


def keep_declaration(
    described: Declaration | Outcome, planned: TypedRefusal | None
) -> tuple[Declaration | Outcome, DeclarationChanged | None]:
    """Return the declaration that counts, and how the implementation's answer has changed.

    The answer from when the run was planned (``planned``) counts. If the implementation still gives this answer, or
    raised an exception, return ``described`` and None.
    """
    if isinstance(described, Outcome) or described.unsupported == planned:
        return described, None
    changed = DeclarationChanged(before=planned, now=described.unsupported)
    return replace_answer(described, unsupported=planned), changed


def check_work_limit(predicted_s: float | None, limit_s: float) -> Outcome | None:
    """Return the outcome ``not_run`` if the predicted time of a call exceeds the work limit, else None."""
    if predicted_s is None or predicted_s <= limit_s:
        return None
    return Outcome(status="not_run", facts=(OverWorkLimit(predicted_s=store_number(predicted_s), limit_s=limit_s),))


def select_refusal_checks(plan: Plan) -> tuple[str, ...]:
    """Return the checks that show whether a case is refused with an exception; the first of them compares outputs.

    The checks are selected from all that apply to the case, so that a filter of checks does not change the findings.
    No check is selected for a compiled case: compiling takes seconds, and an implementation refuses the case for the
    same reason in the other modes.
    """
    applicable = plan.applicable or plan.checks
    first = next((check for check in PARITY if check in applicable), None)
    if first is None or CaseId.parse(plan.case).mode in COMPILED_MODES:
        return ()
    further = FURTHER if "weights_parity" in applicable else FURTHER[2:]
    return (first, *(check for check in further if check in applicable))


def apply_refusal(checks: Sequence[str], refusal: Outcome, tried: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the findings of a refused case, by check.

    ``tried`` contains the findings of the few checks that called the implementation nevertheless, to see whether the
    call raises. Crashes, time-outs and wrong results in ``tried`` are returned. All other checks get the status and the
    facts of ``refusal``; if the call returned the right output, the first check also gets warnings.
    """
    findings = {check: make_finding(check, refusal) for check in checks}
    if not tried:
        return findings
    (declared,) = (fact for fact in refusal.facts if isinstance(fact, TypedRefusal))
    if SHAPE_ONLY in tried and tried[SHAPE_ONLY].status == "failed":
        # The call returned no attention weights, so the gradients lack the part that flows through these weights. The
        # finding of ``input_gradients`` is therefore ignored.
        tried = {check: finding for check, finding in tried.items() if check != "input_gradients"}
    for check, finding in tried.items():
        if finding.status in DEADLY:
            answered = AnsweredThoughRefused(refusal=declared, how="no_exception")
            findings[check] = replace(finding, facts=(answered, *finding.facts))
        elif finding.status == "failed" and check != SHAPE_ONLY and not _lacks_gradient(finding):
            answered = AnsweredThoughRefused(refusal=declared, how="wrong_result")
            findings[check] = replace(finding, facts=(answered, *finding.facts))
    first = next(iter(tried.values()))
    if first.status == "passed" and first.check in findings:
        findings[first.check] = replace(findings[first.check], warnings=tuple(_find_warnings(tried)))
    return {check: findings[check] for check in checks}


def _lacks_gradient(finding: Finding) -> bool:
    return any(isinstance(fact, NoGradient) for fact in finding.facts)


def _find_warnings(tried: Mapping[str, Finding]) -> Iterator[Fact]:
    """Yield warnings about a call that returns the right output on a case that is declared unsupported."""
    shape, gradients = tried.get(SHAPE_ONLY), tried.get("input_gradients")
    if all(finding.status == "passed" for finding in tried.values()):
        yield ComputesRefusedCase()
    if shape is not None and shape.status == "failed":
        yield ReturnsNoWeights()
    if gradients is not None and _lacks_gradient(gradients):
        yield ReturnsNoGradients()
