"""The request that only a worker of ``attninvariance`` answers."""

from attnbench.processes.candidate_requests import CandidateRequest
from attnbench.records.outcome_facts import InvarianceGrade
from attninvariance.sweep import Sweep

__all__ = ["MeasureInvariance"]


class MeasureInvariance(CandidateRequest[InvarianceGrade], frozen=True, kw_only=True):
    """Asks the worker to compare the results of pairs of calls bit by bit, at every point of a sweep."""

    implementation: str
    # Name of the property.
    name: str
    # A case with the operator, dtype, device and call mode of the calls.
    case: str
    sweep: Sweep
