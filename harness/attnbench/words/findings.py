"""What a finding says; the requirement of its check is left to the caller."""

from collections.abc import Iterable

from attnbench.checks.catalogue import read_checks
from attnbench.records.facts import Fact, Reason
from attnbench.records.types import Finding
from attnbench.records.value_facts import ValueFact
from attnbench.words.outcomes import describe_outcome_fact
from attnbench.words.values import describe_value_fact

__all__ = ["describe_fact", "describe_facts", "describe_finding", "describe_reason"]

# What runs of schemas before 8 stored: the requirement, this word, and the fault.
_OLD_BUT = "But "


def describe_finding(finding: Finding, *, origins: bool = True) -> str:
    """Return what was found, without the requirement; empty for a finding that passed.

    ``origins``: say how an allowed error was computed.
    """
    known = read_checks().get(finding.check)
    text = finding.reason.removeprefix(known.requirement if known else "").strip().removeprefix(_OLD_BUT)
    return " ".join(filter(None, (text, describe_facts(finding.facts, origins=origins))))


def describe_facts(facts: Iterable[Fact], *, origins: bool = True) -> str:
    """Return what facts say, one sentence after the other."""
    return " ".join(describe_fact(fact, origins=origins) for fact in facts)


def describe_reason(reason: Reason) -> str:
    """Return what a fact says; a run of a schema before 8 has a text in its place."""
    return reason if isinstance(reason, str) else describe_fact(reason)


def describe_fact(fact: Fact, *, origins: bool = True) -> str:
    """Return what a fact says."""
    if isinstance(fact, ValueFact):
        return describe_value_fact(fact, origins=origins)
    return describe_outcome_fact(fact)
