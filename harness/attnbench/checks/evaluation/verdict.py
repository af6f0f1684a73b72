"""Judging claims against the oracle: one finding per check, with numbers that can be read without its source."""

from dataclasses import dataclass

from attnbench.checks.evaluation.diagnosis import diagnosis
from attnbench.checks.evaluation.measurement import Verdict, verdicts
from attnbench.checks.observations import Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.types import Finding

__all__ = ["evaluate"]

# A passing error beyond this share of what is allowed is worth a look.
NOTEWORTHY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A verdict, and what it is on."""

    verdict: Verdict
    observation: Observation | None = None
    truth: Expected | None = None


def evaluate(
    check: str,
    requirement: str,
    observations: list[Observation],
    known: CaseOracle,
    policies: Policies,
    *,
    explain: bool = True,
) -> Finding:
    """Finding of one check from its claims: failed with the first fault, else passed with the largest share used.

    To ``explain`` a failure costs a few dozen evaluations of the oracle.
    """
    judged = [one for observation in observations for one in _judged(observation, known, policies)]
    faults = [one for one in judged if one.verdict.fault]
    worst = max(faults or judged, key=lambda one: one.verdict.share, default=_Judged(verdict=Verdict()))
    if faults:
        worst = faults[0] if faults[0].verdict.measured is None else worst
        cause = ""
        if explain and worst.observation and worst.truth:
            cause = diagnosis(worst.observation, worst.truth, known, policies)
        return Finding(
            check=check,
            status="failed",
            reason=" ".join(part for part in (requirement, worst.verdict.fault, cause) if part),
            measured=worst.verdict.measured,
            allowed=worst.verdict.allowed,
        )
    share = worst.verdict.share
    near = f"uses {share:.0%} of the error allowed" if share > NOTEWORTHY else ""
    return Finding(
        check=check,
        status="passed",
        measured=worst.verdict.measured,
        allowed=worst.verdict.allowed,
        warnings=(near,) if near else (),
    )


def _judged(observation: Observation, known: CaseOracle, policies: Policies) -> list[_Judged]:
    given = (
        known.given(observation.keep)
        if isinstance(observation, Match) and observation.keep is not None
        else known.truth
    )
    return [
        _Judged(verdict=verdict, observation=observation, truth=given)
        for verdict in verdicts(observation, given, known, policies)
    ]
