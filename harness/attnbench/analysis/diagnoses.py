"""The facts of a finding that name its cause: diagnosis, measured scale, deviation from policies, exception."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from attnbench.records.types import Finding
from attnbench.records.value_facts import (
    ConditionViolated,
    LooksLike,
    NotDiagnosed,
    RowSumOff,
    ScaleOff,
    StridesMisread,
    ValuesOff,
)

__all__ = [
    "Diagnosis",
    "DiagnosisShare",
    "concerns_masked_rows",
    "find_diagnosis",
    "find_fact",
    "find_scale",
    "find_share",
    "fits_most",
    "has_wrong_numbers",
    "has_wrong_values",
    "list_diagnoses",
    "may_have_diagnosis",
    "measures_diagnosis",
    "names_diagnosis",
]

Found = TypeVar("Found")
Diagnosis = LooksLike | StridesMisread
# Fewest findings with which a diagnosis is reported that is no cause of several checks.
FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisShare:
    """The diagnosis that most findings of a group have, with their number and the number that could have one."""

    diagnosis: Diagnosis
    count: int
    total: int


def find_fact(finding: Finding, kind: type[Found]) -> Found | None:
    """Return the first fact of a kind, or None."""
    return next((fact for fact in finding.facts if isinstance(fact, kind)), None)


def find_diagnosis(finding: Finding) -> Diagnosis | None:
    """Return the diagnosis of a finding, with all faults that fit; None without a diagnosis."""
    return find_fact(finding, LooksLike) or find_fact(finding, StridesMisread)


def list_diagnoses(finding: Finding) -> tuple[Diagnosis, ...]:
    """Return the diagnoses of a finding, each with one fault.

    A fault of the backward pass at least is also returned as a fault of the pass, as it may be on other cases.
    """
    found = find_diagnosis(finding)
    if not isinstance(found, LooksLike):
        return (found,) if found else ()
    whole = (replace(one, acts="pass") if one.acts == "backward_at_least" else one for one in found.faults)
    return tuple(LooksLike(faults=(fault,)) for fault in dict.fromkeys((*found.faults, *whole)))


def names_diagnosis(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Whether a finding has this diagnosis, alone or among others."""
    return diagnosis == find_diagnosis(finding) or diagnosis in list_diagnoses(finding)


def measures_diagnosis(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Whether a finding measured a softmax scale that this diagnosis explains."""
    scale = find_scale(finding)
    if scale is None or not isinstance(diagnosis, LooksLike):
        return False
    return any(fault.acts == "pass" and fault.model in scale.fitting for fault in diagnosis.faults)


def fits_most(diagnosis: Diagnosis, findings: Iterable[Finding]) -> bool:
    """Whether more than half of the findings that could have a diagnosis have this one."""
    able = [finding for finding in findings if _can_be_diagnosed(finding)]
    return 2 * sum(diagnosis in list_diagnoses(finding) for finding in able) > len(able)


def may_have_diagnosis(diagnosis: Diagnosis, finding: Finding) -> bool:
    """Whether a finding has this diagnosis, or no diagnosis was tried."""
    return diagnosis in list_diagnoses(finding) or not _can_be_diagnosed(finding)


def find_share(findings: Iterable[Finding]) -> DiagnosisShare | None:
    """Return the diagnosis that most findings have; None if fewer than two have it."""
    able = [finding for finding in findings if _can_be_diagnosed(finding)]
    for diagnosis, count in Counter(one for finding in able for one in list_diagnoses(finding)).most_common(1):
        if count >= FEWEST:
            return DiagnosisShare(diagnosis=diagnosis, count=count, total=len(able))
    return None


def find_scale(finding: Finding) -> ScaleOff | None:
    """Return the error of a softmax scale or of an amplitude that a finding measured; None if it is no number."""
    found = find_fact(finding, ScaleOff)
    return found if found and math.isfinite(float(found.off)) else None


def has_wrong_values(finding: Finding) -> bool:
    """Whether values differ from others by more than an allowed error above 0."""
    return bool(finding.allowed) and find_fact(finding, ValuesOff) is not None


def has_wrong_numbers(finding: Finding) -> bool:
    """Whether values are off, or one number that is measured of them: such a number shows how large a fault is."""
    return has_wrong_values(finding) or find_scale(finding) is not None or find_fact(finding, RowSumOff) is not None


def concerns_masked_rows(finding: Finding) -> bool:
    """Whether a failure is confined to fully masked rows and what they reach, or may be."""
    return any(_list_rows(finding))


def _list_rows(finding: Finding) -> Iterator[str]:
    for fact in finding.facts:
        yield fact.rows if isinstance(fact, ConditionViolated) else getattr(getattr(fact, "compared", None), "rows", "")


def _can_be_diagnosed(finding: Finding) -> bool:
    """Whether a diagnosis was tried: not after an exception or a crash, and not on a case that is too large."""
    return finding.status == "failed" and find_fact(finding, NotDiagnosed) is None
