"""Evaluating the observations of a check: one finding per check, readable without the check's source."""

from dataclasses import dataclass

from attnbench.checks.evaluation.deviations import find_deviation
from attnbench.checks.evaluation.diagnosis import diagnose
from attnbench.checks.evaluation.measurement import Comparison, compare, find_expected
from attnbench.checks.observations import Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.types import Finding

__all__ = ["evaluate"]

# A passing check that uses more than this fraction of the allowed error gets a warning.
NOTEWORTHY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """A comparison, with the observation and the expected values that it compared."""

    comparison: Comparison
    observation: Observation | None = None
    expected: Expected | None = None


def evaluate(
    check: str,
    requirement: str,
    observations: list[Observation],
    case_oracle: CaseOracle,
    policies: Policies,
    *,
    explain: bool = True,
) -> Finding:
    """Evaluate the observations of one check.

    The finding of a failed check reports the fault with the largest ratio of measured to allowed
    error. If the first fault has no measured error, as for a wrong shape, the finding reports the
    first fault. The finding of a passed check reports the comparison with the largest ratio of
    measured to allowed error. ``explain`` adds the policies under which a failure would be right, or its diagnosis,
    which takes a few dozen evaluations of the oracle.
    """
    evaluations = [one for observation in observations for one in _evaluate_one(observation, case_oracle, policies)]
    faults = [one for one in evaluations if one.comparison.fault]
    passed = _Evaluation(comparison=Comparison())
    worst = max(faults or evaluations, key=lambda one: one.comparison.share, default=passed)
    if faults:
        worst = faults[0] if faults[0].comparison.measured is None else worst
        cause = ""
        if explain and worst.observation and worst.expected:
            cause = find_deviation(worst.observation, case_oracle, policies) or diagnose(
                worst.observation, worst.expected, case_oracle, policies
            )
        return Finding(
            check=check,
            status="failed",
            reason=" ".join(part for part in (requirement, worst.comparison.fault, cause) if part),
            measured=worst.comparison.measured,
            allowed=worst.comparison.allowed,
        )
    share = worst.comparison.share
    near = f"uses {share:.0%} of the error allowed" if share > NOTEWORTHY else ""
    return Finding(
        check=check,
        status="passed",
        measured=worst.comparison.measured,
        allowed=worst.comparison.allowed,
        warnings=(near,) if near else (),
    )


def _evaluate_one(observation: Observation, case_oracle: CaseOracle, policies: Policies) -> list[_Evaluation]:
    expected = find_expected(observation, case_oracle)
    found = compare(observation, expected, case_oracle, policies)
    if isinstance(observation, Match) and observation.drawn_once and any(comparison.fault for comparison in found):
        # Whether drawn values fail is decided by their own allowed errors.
        expected = find_expected(observation, case_oracle, own_allowances=True)
        found = compare(observation, expected, case_oracle, policies)
    return [_Evaluation(comparison=comparison, observation=observation, expected=expected) for comparison in found]
