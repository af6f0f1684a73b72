"""What the reasons of findings say about their diagnosis: the faults that a result looks like."""

import re
from collections import Counter
from collections.abc import Iterable

from attnbench.records.types import Finding

__all__ = [
    "FEWEST_TOLD",
    "NOT_DIAGNOSED",
    "describe_share",
    "fits_most",
    "list_faults",
    "looks_like_fault",
    "may_have_fault",
    "read_diagnosis",
]

# Begins the sentence of a finding of which no diagnosis was tried.
NOT_DIAGNOSED = "Not diagnosed: "
_DIAGNOSIS = re.compile(r"Diagnosis: (?P<looks>looks like )?(?P<faults>.*)\.$")
# What a diagnosis adds to a fault that changes no output of the case. On other cases, the same fault lacks these words.
_AT_LEAST = re.compile(r" \(in the backward pass at least: [^()]*\)$")
# Fewest findings with which a fault is told that is no cause of several checks.
FEWEST_TOLD = 2


def read_diagnosis(reason: str) -> str:
    """Return what the diagnosis at the end of a reason says, without "looks like"; empty without a diagnosis."""
    found = _DIAGNOSIS.search(reason)
    return found["faults"] if found else ""


def looks_like_fault(reason: str) -> bool:
    """Whether the diagnosis in a reason names fault models; any other diagnosis is a sentence of its own."""
    found = _DIAGNOSIS.search(reason)
    return found is not None and found["looks"] is not None


def list_faults(reason: str) -> tuple[str, ...]:
    """Return the faults that the diagnosis in a reason names; none without a diagnosis.

    A fault of the backward pass at least is also listed without these words.
    """
    found = _DIAGNOSIS.search(reason)
    if not found:
        return ()
    named = found["faults"].split(" or ") if found["looks"] else [found["faults"]]
    return tuple(dict.fromkeys((*named, *(_AT_LEAST.sub("", fault) for fault in named))))


def fits_most(fault: str, findings: Iterable[Finding]) -> bool:
    """Whether more than half of the findings that could have a diagnosis have this fault in theirs."""
    able = [finding for finding in findings if _can_be_diagnosed(finding)]
    return 2 * sum(fault in list_faults(finding.reason) for finding in able) > len(able)


def may_have_fault(fault: str, finding: Finding) -> bool:
    """Whether the diagnosis of a finding names this fault, or no diagnosis was tried."""
    return fault in list_faults(finding.reason) or not _can_be_diagnosed(finding)


def describe_share(findings: Iterable[Finding]) -> str:
    """Return how many findings have the fault that most diagnoses name; empty if fewer than two have it."""
    able = [finding for finding in findings if _can_be_diagnosed(finding)]
    counts = Counter(fault for finding in able for fault in list_faults(finding.reason))
    fault, count = counts.most_common(1)[0] if counts else ("", 0)
    return f"{count} of {len(able)} findings look like {fault}." if count >= FEWEST_TOLD else ""


def _can_be_diagnosed(finding: Finding) -> bool:
    """Whether a diagnosis was tried: not after an exception or a crash, and not on a case that is too large."""
    return finding.status == "failed" and NOT_DIAGNOSED not in finding.reason
