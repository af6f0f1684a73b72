"""The causes of an implementation's failures: other policies, or a known fault.

Most failures of one implementation have one cause. A search for a cause takes a few dozen evaluations of the oracle, so
a cause that explained a failure is tried before a search.
"""

from attnbench.checks.evaluation.deviations import find_deviation
from attnbench.checks.evaluation.diagnosis import diagnose
from attnbench.checks.observations import Observation
from attnbench.interface import Policies
from attnbench.oracle.expected import CaseOracle, Expected
from attnbench.records.value_facts import LooksLike, NotDiagnosed, PolicyDeviation, StridesMisread

__all__ = ["Causes"]

# Number of causes that are tried before a search. Each takes one or two evaluations of the oracle.
KNOWN = 4
# Number of searches that find nothing after which only known causes are tried. A search takes about a third of the time
# in which an implementation runs all checks of a case.
SEARCHES = 20

_Cause = LooksLike | PolicyDeviation
_Found = _Cause | StridesMisread | NotDiagnosed | None


class Causes:
    """Finds why observations of one implementation failed, and remembers what explained them."""

    def __init__(self) -> None:
        # The latest first.
        self._known: list[_Cause] = []
        self._unexplained = 0

    def find(self, observation: Observation, expected: Expected, case_oracle: CaseOracle, policies: Policies) -> _Found:
        """Return the policies under which a failed observation would be right, what it looks like, or None."""
        failed = (observation, expected, case_oracle, policies)
        for cause in self._known:
            if known := _try_cause(cause, *failed):
                self._remember(known, in_place_of=cause)
                return known
        if self._unexplained == SEARCHES:
            return None
        found = find_deviation(*failed) or diagnose(*failed)
        if isinstance(found, _Cause):
            self._remember(found)
        else:
            self._unexplained += found is None
        return found

    def _remember(self, found: _Cause, *, in_place_of: _Cause | None = None) -> None:
        self._known = [found, *(one for one in self._known if one not in (found, in_place_of))][:KNOWN]


def _try_cause(
    cause: _Cause, observation: Observation, expected: Expected, case_oracle: CaseOracle, policies: Policies
) -> _Cause | None:
    """Return what of a known cause explains the failure, or None."""
    if isinstance(cause, PolicyDeviation):
        change = {policy.name: policy.seen for policy in cause.policies}
        return find_deviation(observation, expected, case_oracle, policies, changes=[change])
    names = {fault.model.key for fault in cause.faults}
    found = diagnose(observation, expected, case_oracle, policies, only=names)
    return found if isinstance(found, LooksLike) else None
