"""Finding policies, other than the declared policies, under which a failed observation is right."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.analysis.deviations import make_deviation
from attnbench.checks.evaluation.measurement import QuantityComparison, compare, find_expected
from attnbench.checks.observations import Average, Match, Observation
from attnbench.interface import Policies
from attnbench.oracle.expected import WEIGHTS, CaseOracle, Expected
from attnbench.records.value_facts import PolicyDeviation

__all__ = ["find_deviation"]

# A case with more query-key pairs than this is not tried under other policies, because each trial computes the expected
# values of the case again.
PAIRS = 1_000_000


def find_deviation(
    observation: Observation,
    expected: Expected,
    case_oracle: CaseOracle,
    policies: Policies,
    *,
    changes: Iterable[Mapping[str, Any]] | None = None,
) -> PolicyDeviation | None:
    """Return the policies under which an observation is right, or None.

    The observation failed against ``expected``, under the declared policies ``policies``. ``changes`` are the changed
    policies to try, in order; None: all that matter in the case, those of fewer policies first.
    """
    if not isinstance(observation, Match | Average) or case_oracle.operator.work(case_oracle.case).pairs > PAIRS:
        return None
    if changes is None:
        changes = sorted(_list_changes(case_oracle, policies), key=len)
    declared = _measure(compare(observation, expected, case_oracle, policies))
    for change in changes:
        if _is_right(observation, expected, case_oracle, replace(policies, **change), declared):
            return make_deviation(policies, **change)
    return None


def _list_changes(case_oracle: CaseOracle, policies: Policies) -> Iterator[dict[str, Any]]:
    """Yield changes of the declared policies that matter in the case: new values by the names of policies."""
    rows: list[dict[str, Any]] = [{}]
    if "output" in case_oracle.expected.hidden_rows:
        pairs = sorted({("zero", "exact"), *case_oracle.operator.row_policies})
        rows += [_find_differences(policies, hidden_rows=r, hidden_row_gradients=g) for r, g in pairs]
    weights: list[dict[str, Any]] = [{}]
    if case_oracle.case.differentiates and WEIGHTS in case_oracle.inputs.cotangents:
        weights.append({"detached_weights": not policies.detached_weights})
    seen: list[dict[str, Any]] = [{}]
    for change in (row | weight for row in rows for weight in weights):
        if change not in seen:
            seen.append(change)
            yield change


def _find_differences(policies: Policies, **values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if getattr(policies, name) != value}


def _measure(found: Sequence[QuantityComparison]) -> tuple[int, float]:
    """Return how wrong an observation is: the number of faults without a measured error, and the largest error."""
    unmeasured = sum(bool(one.facts) and one.measured is None for one in found)
    return unmeasured, max((one.share for one in found), default=0.0)


def _is_right(
    observation: Match | Average,
    declared: Expected,
    case_oracle: CaseOracle,
    policies: Policies,
    declared_error: tuple[int, float],
) -> bool:
    """Whether an observation passes under the given policies.

    Their own allowed errors are computed only if the observation is nearer to their values than to those of the
    declared policies, ``declared_error``. It is not if the policies do not matter in the case.
    """
    other = case_oracle.choose(policies.choices)
    if other is not case_oracle:
        changed, keep = (observation.changed, observation.keep) if isinstance(observation, Match) else ({}, None)
        near = other.estimate(changed, keep, declared)
        if not _measure(compare(observation, near, other, policies)) < declared_error:
            return False
    expected = find_expected(observation, other)
    return not any(found.facts for found in compare(observation, expected, other, policies))
