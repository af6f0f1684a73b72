"""Why a case is not started; and what is declared unsupported must be refused aloud.

It is tried all the same, and must not return a wrong tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.cases import CALL_MODES
from attnbench.records.types import Finding
from attnbench.runner.session import Outcome, Plan

__all__ = ["declined", "refused", "too_long", "tried_on"]

# Checks that compare an output with the oracle's; a case has at least one of them.
PARITY = (
    "forward_parity",
    "autocast_parity",
    "exact_uniform_mean",
    "exact_selection",
    "exact_zero_leak",
    "dropout_is_unbiased",
)
# Says only whether there are weights.
SHAPE_ONLY = "weights_only_on_request"
# What else is looked at where the output is right.
FURTHER = ("weights_parity", SHAPE_ONLY, "input_gradients")
# How a finding begins where nothing reaches the inputs.
NO_GRADIENT = "no gradient reaches"
# Statuses of a call that ended its process, or had to be ended.
NOT_ALOUD = ("crashed", "timeout")


def declined(described: Outcome, limit_s: float) -> Outcome | None:
    """Why a case is not started, from the implementation's own word on it, or None."""
    if "status" in described:
        return described
    if described["unsupported"]:
        return {"status": "unsupported", "reason": described["unsupported"]}
    return too_long(described["predicted_s"], limit_s)


def too_long(predicted_s: float | None, limit_s: float) -> Outcome | None:
    """Why a call that is predicted to take so long is not started, or None."""
    if predicted_s is None or predicted_s <= limit_s:
        return None
    reason = f"predicted {predicted_s:.3g} s a call, over the limit of {limit_s:g} s (--work-limit)"
    return {"status": "not_run", "reason": reason}


def tried_on(plan: Plan) -> tuple[str, ...]:
    """Checks that show whether a case is refused aloud, the comparison of outputs first; none where it is compiled.

    Which checks were asked for does not matter: a filter makes nothing wrong. Compiling takes seconds, and the same
    reason is heard in the modes that do not.
    """
    mode, applicable = plan.case.rpartition("/")[2], plan.applicable or plan.checks
    first = next((check for check in PARITY if check in applicable), None)
    if first is None or any(mode == name and call_mode.compiler for name, call_mode in CALL_MODES.items()):
        return ()
    further = FURTHER if "weights_parity" in applicable else FURTHER[2:]
    return (first, *(check for check in further if check in applicable))


def refused(checks: Sequence[str], refusal: Outcome, tried: Mapping[str, Finding]) -> dict[str, Finding]:
    """Findings of a case that is declared unsupported, from what came of trying it, if it was tried."""
    findings = {check: Finding(check=check, **refusal) for check in checks}
    if not tried:
        return findings
    declared = f"declared unsupported ({refusal['reason']}), yet"
    if SHAPE_ONLY in tried and tried[SHAPE_ONLY].status == "failed":
        # Without weights there is nothing to take their share of the gradients from.
        tried = {check: finding for check, finding in tried.items() if check != "input_gradients"}
    for check, finding in tried.items():
        if finding.status in NOT_ALOUD:
            findings[check] = replace(finding, reason=f"{declared} it did not refuse: {finding.reason}")
        elif finding.status == "failed" and check != SHAPE_ONLY and not finding.reason.startswith(NO_GRADIENT):
            reason = f"{declared} it returned a wrong result instead of refusing: {finding.reason}"
            findings[check] = replace(finding, reason=reason)
    first = next(iter(tried.values()))
    if first.status == "passed" and first.check in findings:
        findings[first.check] = replace(findings[first.check], warnings=tuple(_warnings(tried)))
    return {check: findings[check] for check in checks}


def _warnings(tried: Mapping[str, Finding]) -> Iterator[str]:
    """What is no wrong tensor, and yet worth saying, of a call whose output is right."""
    shape, gradients = tried.get(SHAPE_ONLY), tried.get("input_gradients")
    if all(finding.status == "passed" for finding in tried.values()):
        yield "works: declare it"
    if shape is not None and shape.status == "failed":
        yield "returns no weights where they are asked for, instead of refusing"
    if gradients is not None and gradients.reason.startswith(NO_GRADIENT):
        yield "returns an output without gradients where they are asked for, instead of refusing"
