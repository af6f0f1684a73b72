"""What a finding says, in one sentence; the requirement of its check is left to the caller."""

from attnbench.checks.catalogue import read_checks
from attnbench.records.types import Finding

__all__ = ["describe_finding"]


def describe_finding(finding: Finding) -> str:
    """Return what was found, without the requirement; empty for a finding that passed."""
    known = read_checks().get(finding.check)
    requirement = known.requirement if known else ""
    return finding.reason.removeprefix(requirement).strip().removeprefix("But ")
