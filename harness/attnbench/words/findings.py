"""What a finding says; the requirement of its check is left to the caller."""

from collections.abc import Iterable

from attnbench.checks.catalogue import read_checks
from attnbench.records.facts import Fact, UnknownFact
from attnbench.records.outcome_facts import OverWorkLimit
from attnbench.records.types import Finding
from attnbench.words.say import say
from attnbench.words.values import describe_value_fact

__all__ = ["describe_fact", "describe_facts", "describe_finding", "describe_warning"]

# What runs of schemas before 8 stored: the requirement, this word, and the fault.
_OLD_BUT = "But "
_UNKNOWN = "unknown fact ({kind})"
_OVER_WORK = "predicted to take {predicted:.3g} s, but the limit on work is {limit:.3g} s"


def describe_finding(finding: Finding) -> str:
    """Return what was found, without the requirement; empty for a finding that passed."""
    known = read_checks().get(finding.check)
    text = finding.reason.removeprefix(known.requirement if known else "").strip().removeprefix(_OLD_BUT)
    return " ".join(filter(None, (text, describe_facts(finding.facts))))


def describe_facts(facts: Iterable[Fact]) -> str:
    """Return what facts say, one sentence after the other."""
    return " ".join(map(describe_fact, facts))


def describe_warning(warning: Fact | str) -> str:
    """Return a warning of a finding; a run of a schema before 8, and a plug-in, has a text."""
    return warning if isinstance(warning, str) else describe_fact(warning)


def describe_fact(fact: Fact) -> str:
    """Return what a fact says."""
    if isinstance(fact, OverWorkLimit):
        return say(_OVER_WORK, predicted=fact.predicted_s, limit=fact.limit_s)
    if isinstance(fact, UnknownFact):
        return say(_UNKNOWN, kind=fact.kind)
    return describe_value_fact(fact)
