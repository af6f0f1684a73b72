"""Judging the observations of a check: what is wrong, as facts, and the finding of the check.

``judge`` is a function of a problem with its inputs (``CaseOracle``) and of observations. It needs no worker process
and no case id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from attnbench.checks.evaluation.causes import Causes
from attnbench.checks.evaluation.diagnosis import find_fitting_scales
from attnbench.checks.evaluation.measurement import QuantityComparison, compare, find_expected
from attnbench.checks.observations import Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.types import Finding
from attnbench.records.value_facts import NearLimit, ScaleOff, ValueFact

__all__ = ["Judgement", "evaluate", "judge"]

# A passing check that uses more than this fraction of the allowed error gets a warning.
NOTEWORTHY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is wrong with observations; they are right if ``facts`` is empty."""

    facts: tuple[ValueFact, ...] = ()
    # The largest error, and the allowed error; None if no number was measured.
    measured: float | None = None
    allowed: float | None = None
    warnings: tuple[NearLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A comparison, with the observation and the expected values that it compared."""

    comparison: QuantityComparison
    observation: Observation
    expected: Expected


def evaluate(
    check: str,
    observations: Sequence[Observation],
    case_oracle: CaseOracle,
    policies: Policies,
    *,
    causes: Causes | None = None,
) -> Finding:
    """Judge the observations of one check, and return the check's finding."""
    found = judge(observations, case_oracle, policies, causes=causes)
    return Finding(
        check=check,
        status="failed" if found.facts else "passed",
        facts=found.facts,
        measured=found.measured,
        allowed=found.allowed,
        warnings=found.warnings,
    )


def judge(
    observations: Sequence[Observation], case_oracle: CaseOracle, policies: Policies, *, causes: Causes | None = None
) -> Judgement:
    """Judge observations of a problem with its inputs, under the declared policies.

    Of several faults, the one with the largest ratio of measured to allowed error is returned, or the first if it has
    no measured error, as for a wrong shape. If nothing is wrong, the comparison with the largest such ratio is
    returned. ``causes`` finds the policies under which a failure would be right, or its diagnosis; None: neither.
    """
    every = [one for observation in observations for one in _compare(observation, case_oracle, policies)]
    if not every:
        return Judgement()
    faults = [one for one in every if one.comparison.facts]
    worst = max(faults or every, key=lambda one: one.comparison.share)
    if faults and faults[0].comparison.measured is None:
        worst = faults[0]
    share = worst.comparison.share
    return Judgement(
        facts=_explain(worst, case_oracle, policies, causes) if faults and causes else worst.comparison.facts,
        measured=worst.comparison.measured,
        allowed=worst.comparison.allowed,
        warnings=() if faults or share <= NOTEWORTHY else (NearLimit(share=share),),
    )


def _explain(fault: _Compared, case_oracle: CaseOracle, policies: Policies, causes: Causes) -> tuple[ValueFact, ...]:
    """Return the facts of a fault, and the policies under which it would be right, or its diagnosis."""
    facts = tuple(
        replace(fact, fitting=find_fitting_scales(float(fact.off), fact.quantity, case_oracle))
        if isinstance(fact, ScaleOff) and fact.probe == "softmax_scale"
        else fact
        for fact in fault.comparison.facts
    )
    cause = causes.find(fault.observation, fault.expected, case_oracle, policies)
    return (*facts, cause) if cause else facts


def _compare(observation: Observation, case_oracle: CaseOracle, policies: Policies) -> list[_Compared]:
    expected = find_expected(observation, case_oracle)
    found = compare(observation, expected, case_oracle, policies)
    if isinstance(observation, Match) and observation.drawn_once and any(comparison.facts for comparison in found):
        # Whether drawn values fail is decided by their own allowed errors.
        expected = find_expected(observation, case_oracle, own_allowances=True)
        found = compare(observation, expected, case_oracle, policies)
    return [_Compared(comparison=comparison, observation=observation, expected=expected) for comparison in found]
