"""Failures by their cause: one entry for what many checks, or many cases, say about one fault.

Findings are stored as they are; they are grouped when they are shown. Findings have one cause if they have the same
deviation from the declared policies, the same exception, the same declared refusal, or the same diagnosis. If an error
of the softmax scale or of the amplitude was measured, it explains the wrong values. All results that change with hidden
tokens have one cause. The other failures are grouped by check and status. A diagnosis names a cause only if it fits
most of the findings that could have a diagnosis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.deviations import join_deviations
from attnbench.analysis.diagnoses import (
    FEWEST,
    Diagnosis,
    DiagnosisShare,
    find_diagnosis,
    find_fact,
    find_scale,
    find_share,
    measures_diagnosis,
    names_diagnosis,
)
from attnbench.analysis.failure_groups import Failure, Key, Kind, find_outcome, join_failures
from attnbench.records.facts import Fact
from attnbench.records.types import FAILURES, GRAVEST, Finding, Result, format_reproduce_line
from attnbench.records.value_facts import PolicyDeviation, ScaleOff

__all__ = ["Attribution", "Failure", "RootCause", "find_root_causes"]

# Kinds of causes that name a mistake or a policy, and not only what failed.
_MENDING: frozenset[Kind] = frozenset({"deviation", "diagnosis", "scale"})
# Why a failure whose facts do not name a cause is counted with it: a wrong scale changes all values; only fully masked
# rows are wrong; another failure of the case, or of the check, names the cause; or one has the same worst element.
Attribution = Literal["wrong_scale", "masked_rows", "same_case", "same_check", "same_worst"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failures of one implementation that have one cause."""

    implementation: str
    kind: Kind
    # What the failures have in common: deviations from policies, a diagnosis, the largest error of a scale, or the
    # exception; empty for a leak or a check.
    facts: tuple[Fact, ...]
    # Of failures of one check: the diagnosis that most of them have.
    share: DiagnosisShare | None
    # The findings, in the order of the results.
    failures: tuple[Failure, ...]
    # The number of failed cases of each check, by check.
    checks: Mapping[str, int]
    # The number of cases with a failure.
    cases: int
    # The failures that name the cause: of a diagnosis, those that have it; of a scale, the one with ``facts``; of a
    # check, those without a diagnosis, unless all have the same one; else those that are not in ``attributed``.
    evidence: tuple[Failure, ...]
    # The failures that do not name the cause. They may have another cause, see ``count_attributions``.
    attributed: tuple[Failure, ...]

    def count_attributions(self) -> Counter[Attribution]:
        """Return why the failures in ``attributed`` are counted with this cause, with their numbers."""
        cases = {failure.case for failure in self.evidence}
        checks = {failure.finding.check for failure in self.evidence}

        def attribute(failure: Failure) -> Attribution:
            if self.kind == "scale":
                return "wrong_scale"
            if self.kind == "deviation":
                return "masked_rows"
            if failure.case in cases:
                return "same_case"
            return "same_check" if failure.finding.check in checks else "same_worst"

        return Counter(map(attribute, self.attributed))

    @property
    def case(self) -> str:
        """The case of the first failure that names the cause."""
        return self.evidence[0].case

    @property
    def finding(self) -> Finding:
        """The first failure that names the cause."""
        return self.evidence[0].finding

    @property
    def rank(self) -> tuple[int, int, bool]:
        """By what causes are sorted: the gravest status first, then the most failures, then what says what to mend."""
        statuses = {failure.finding.status for failure in self.failures}
        gravest = min(map(GRAVEST.index, statuses))
        return gravest, -len(self.failures), not self.says_what_to_mend

    @property
    def says_what_to_mend(self) -> bool:
        """Whether the cause names a mistake in the formula or a policy, and not only what failed."""
        return self.kind in _MENDING or find_diagnosis(self.finding) is not None

    @property
    def reproduce(self) -> str:
        """Command that reproduces ``finding`` on ``case``."""
        return format_reproduce_line(self.implementation, self.case, self.finding.check)


def find_root_causes(results: Iterable[Result]) -> list[RootCause]:
    """Return the causes of the failures of each implementation, by ``RootCause.rank``, then as they first occur."""
    failures: defaultdict[str, list[Failure]] = defaultdict(list)
    for result in results:
        failures[result.implementation] += (
            Failure(result.case, finding) for finding in result.findings if finding.status in FAILURES
        )
    causes = [_make_cause(name, key, own) for name, found in failures.items() for key, own in join_failures(found)]
    return sorted(causes, key=lambda cause: cause.rank)


def _make_cause(implementation: str, key: Key, failures: Sequence[Failure]) -> RootCause:
    if key[0] == "check" and (common := _find_common_diagnosis(failures)):
        key = ("diagnosis", common)
    evidence = tuple(_select_evidence(key, failures))
    return RootCause(
        implementation=implementation,
        kind=key[0],
        facts=_list_facts(key, failures),
        share=find_share(failure.finding for failure in failures) if key[0] == "check" else None,
        failures=tuple(failures),
        checks=dict(Counter(failure.finding.check for failure in failures).most_common()),
        cases=len({failure.case for failure in failures}),
        evidence=evidence,
        attributed=tuple(failure for failure in failures if not _supports(key, failure)),
    )


def _list_facts(key: Key, failures: Sequence[Failure]) -> tuple[Fact, ...]:
    """Return what the failures of a group have in common, see ``RootCause.facts``."""
    kind, common = key
    if kind == "deviation":
        found = (find_fact(failure.finding, PolicyDeviation) for failure in failures)
        return join_deviations(deviation for deviation in found if deviation)
    if kind == "exception":
        outcome = find_outcome(failures[0].finding)
        return (outcome,) if outcome else ()
    return (common,) if kind in ("diagnosis", "scale") else ()


def _select_evidence(key: Key, failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the failures that name the cause, see ``RootCause.evidence``."""
    kind, common = key
    if kind == "diagnosis":
        return [failure for failure in failures if names_diagnosis(failure.finding, common)]
    if kind == "scale":
        return [next(failure for failure in failures if find_fact(failure.finding, ScaleOff) == common)]
    if kind == "check":
        return [failure for failure in failures if not find_diagnosis(failure.finding)] or failures
    return [failure for failure in failures if _supports(key, failure)] or failures


def _supports(key: Key, failure: Failure) -> bool:
    """Whether a failure names the cause or is evidence for it; of an exception, a leak or a check, each does."""
    kind, common = key
    if kind == "diagnosis":
        return names_diagnosis(failure.finding, common) or measures_diagnosis(failure.finding, common)
    if kind == "scale":
        return find_scale(failure.finding) is not None
    return kind != "deviation" or find_fact(failure.finding, PolicyDeviation) is not None


def _find_common_diagnosis(failures: Sequence[Failure]) -> Diagnosis | None:
    """Return the diagnosis that all of several failures have; None if they have different ones."""
    if len(failures) < FEWEST:
        return None
    diagnoses = {find_diagnosis(failure.finding) for failure in failures}
    return diagnoses.pop() if len(diagnoses) == 1 else None
