"""Judging claims against the oracle: one finding per check, with numbers that can be read without its source."""

from dataclasses import dataclass

from attnbench.checks.claims import Claim, Match
from attnbench.checks.diagnosis import diagnosis
from attnbench.checks.measurement import Verdict, verdicts
from attnbench.interface import Policies
from attnbench.records import Finding
from attnbench.truth import Known, Truth

__all__ = ["judge"]

# A passing error beyond this share of what is allowed is worth a look.
NOTEWORTHY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A verdict, and what it is on."""

    verdict: Verdict
    claim: Claim | None = None
    truth: Truth | None = None


def judge(
    check: str, requirement: str, claims: list[Claim], known: Known, policies: Policies, *, explain: bool = True
) -> Finding:
    """Finding of one check from its claims: failed with the first fault, else passed with the largest share used.

    To ``explain`` a failure costs a few dozen evaluations of the oracle.
    """
    judged = [one for claim in claims for one in _judged(claim, known, policies)]
    faults = [one for one in judged if one.verdict.fault]
    worst = max(faults or judged, key=lambda one: one.verdict.share, default=_Judged(verdict=Verdict()))
    if faults:
        worst = faults[0] if faults[0].verdict.measured is None else worst
        cause = ""
        if explain and worst.claim and worst.truth:
            cause = diagnosis(worst.claim, worst.truth, known, policies)
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


def _judged(claim: Claim, known: Known, policies: Policies) -> list[_Judged]:
    given = known.given(claim.keep) if isinstance(claim, Match) and claim.keep is not None else known.truth
    return [_Judged(verdict=verdict, claim=claim, truth=given) for verdict in verdicts(claim, given, known, policies)]
