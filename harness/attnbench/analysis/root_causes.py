"""Failures by their cause: one entry for what many checks, or many cases, say about one fault.

Findings are stored as they are; they are grouped when they are printed. Findings have one cause if their reasons have
the same deviation from the declared policies, the same exception, the same declared refusal, or the same diagnosis. If
an error of the softmax scale or of the amplitude was measured, it explains the wrong values. All results that change
with hidden tokens have one cause. The other failures are grouped by check. A diagnosis names a cause only if it fits
most of the findings that could have a diagnosis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.deviations import find_sentence, join_sentences
from attnbench.analysis.diagnoses import FEWEST_TOLD, describe_share, list_faults, read_diagnosis
from attnbench.analysis.failure_groups import (
    Failure,
    Key,
    Kind,
    describe_scale,
    find_raised,
    is_refusal,
    join_failures,
)
from attnbench.analysis.plain_names import join_words
from attnbench.analysis.scale_faults import agrees_with_fault
from attnbench.records.types import FAILURES, Finding, Result, Status, format_reproduce_line

__all__ = ["Failure", "RootCause", "find_root_causes"]

# Kinds of causes that name a mistake or a policy, and not only what failed.
_MENDING: frozenset[Kind] = frozenset({"deviation", "diagnosis", "scale"})
# Statuses of failures, the gravest first: wrong values may go unnoticed, an exception does not.
_GRAVEST: tuple[Status, ...] = ("failed", "error", "crashed", "timeout", "out_of_memory", "unexpected_pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failures of one implementation that have one cause."""

    implementation: str
    kind: Kind
    # The faults of a diagnosis, the measured error of a scale, or what a leak is; empty for any other kind.
    name: str
    # The sentences about a deviation, joined; for any other kind, the reason of ``finding``.
    reason: str
    # What the findings have in common, in words, without the numbers of a single case; may be empty.
    shared: str
    # The findings, in the order of the results.
    failures: tuple[Failure, ...]
    # The number of failed cases of each check, by check.
    checks: Mapping[str, int]
    # The number of cases with a failure.
    cases: int
    # The failures that what the cause is called is about: of a diagnosis, those whose reasons name it; of a scale, the
    # one whose error is quoted; of a check, those without a diagnosis, unless all have the same one; else those that
    # are not in ``following``.
    telling: tuple[Failure, ...]
    # The failures whose reasons do not name the cause of a diagnosis, a scale or a deviation. They may have another
    # cause, see ``tie``.
    following: tuple[Failure, ...]

    @property
    def tie(self) -> str:
        """Why the failures in ``following`` are counted with this cause, in words; empty if there are none."""
        if not self.following:
            return ""
        if self.kind == "scale":
            return "A wrong scale changes all values, so they may follow from it."
        if self.kind == "deviation":
            return "They are wrong in fully masked rows only."
        cases = {failure.case for failure in self.telling}
        checks = {failure.finding.check for failure in self.telling}
        same_case = sum(failure.case in cases for failure in self.following)
        same_check = sum(one.case not in cases and one.finding.check in checks for one in self.following)
        same_worst = len(self.following) - same_case - same_check
        parts = [f"{same_case} on cases on which another finding names it"] * bool(same_case)
        parts += [f"{same_check} of checks of which another finding names it"] * bool(same_check)
        parts += [f"{same_worst} with the same worst element as another finding of the case"] * bool(same_worst)
        return f"They may follow from the same fault: {join_words(parts)}."

    @property
    def case(self) -> str:
        """The case of the first telling failure."""
        return self.telling[0].case

    @property
    def finding(self) -> Finding:
        """The first telling failure."""
        return self.telling[0].finding

    @property
    def rank(self) -> tuple[int, int, bool]:
        """By what causes are sorted: the gravest status first, then the most failures, then what says what to mend."""
        statuses = {failure.finding.status for failure in self.failures}
        gravest = min(map(_GRAVEST.index, statuses))
        return gravest, -len(self.failures), not self.says_what_to_mend

    @property
    def says_what_to_mend(self) -> bool:
        """Whether the cause names a mistake in the formula or a policy, and not only what failed."""
        return self.kind in _MENDING or bool(read_diagnosis(self.reason))

    @property
    def title(self) -> str:
        """Check, status and number of cases; for several checks, their number and the number of cases."""
        if len(self.checks) > 1:
            return f"{len(self.checks)} checks failed for one cause, on {_count(self.cases, 'case')}"
        others = sum(self.checks.values()) - 1
        more = f", and on {_count(others, 'more case')}" if others else ""
        return f"{self.finding.check}: {self.finding.status}{more}"

    @property
    def reproduce(self) -> str:
        """Command that reproduces ``finding`` on ``case``."""
        return format_reproduce_line(self.implementation, self.case, self.finding.check)

    @property
    def listing(self) -> str:
        """The checks behind the cause, each with its number of cases; an empty text for a single check."""
        if len(self.checks) == 1:
            return ""
        return "failed: " + ", ".join(f"{check} on {count}" for check, count in self.checks.items())


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
    kind = key[0]
    telling = tuple(_select_telling(key, failures))
    reason = telling[0].finding.reason
    if kind == "deviation":
        sentences = dict.fromkeys(find_sentence(failure.finding.reason) for failure in failures)
        reason = join_sentences([sentence for sentence in sentences if sentence])
    counts = Counter(failure.finding.check for failure in failures)
    return RootCause(
        implementation=implementation,
        kind=kind,
        name=key[1] if kind in ("diagnosis", "scale", "leak") else "",
        reason=reason,
        shared=reason if kind == "deviation" else _find_shared(key, failures),
        failures=tuple(failures),
        checks=dict(counts.most_common()),
        cases=len({failure.case for failure in failures}),
        telling=telling,
        following=tuple(failure for failure in failures if not _tells(key, failure)),
    )


def _select_telling(key: Key, failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the failures that the key is about, see ``RootCause.telling``."""
    kind, text = key
    if kind == "diagnosis":
        return [failure for failure in failures if _names(failure, text)]
    if kind == "scale":
        return [next(failure for failure in failures if describe_scale(failure.finding.reason) == text)]
    if kind == "check":
        return [failure for failure in failures if not read_diagnosis(failure.finding.reason)] or failures
    return [failure for failure in failures if _tells(key, failure)] or failures


def _find_shared(key: Key, failures: Sequence[Failure]) -> str:
    """Return what the failures of a group have in common, in words; an empty text if it is only their check."""
    kind, text = key
    if kind in ("scale", "leak"):
        return f"{text[0].upper()}{text[1:]}."
    if kind == "diagnosis":
        told = sum(_tells(key, failure) for failure in failures)
        some = f" (named by {_count(told, 'finding')})" if told < len(failures) else ""
        return f"Diagnosis: {text}{some}."
    if kind == "exception":
        if is_refusal(text):
            return f"{text}."
        raised = {find_raised(failure.finding) for failure in failures}
        return f"{raised.pop() if len(raised) == 1 else text.partition(': ')[2]}."
    return describe_share(failure.finding for failure in failures)


def _tells(key: Key, failure: Failure) -> bool:
    """Whether the reason of a failure names the cause; of an exception, a leak or a check, every reason does."""
    kind, text = key
    if kind == "diagnosis":
        # A measured scale that is the scale of the fault is evidence for it, although its reason has no diagnosis.
        return _names(failure, text) or agrees_with_fault(failure.case, failure.finding.reason, text)
    if kind == "scale":
        return bool(describe_scale(failure.finding.reason))
    return kind != "deviation" or bool(find_sentence(failure.finding.reason))


def _names(failure: Failure, diagnosis: str) -> bool:
    """Whether the diagnosis of a failure is this one, or names this fault among others."""
    reason = failure.finding.reason
    return diagnosis == read_diagnosis(reason) or diagnosis in list_faults(reason)


def _find_common_diagnosis(failures: Sequence[Failure]) -> str:
    """Return the faults that all of several failures name, joined by "or"; empty if they name different faults."""
    if len(failures) < FEWEST_TOLD:
        return ""
    diagnoses = {read_diagnosis(failure.finding.reason) for failure in failures}
    return diagnoses.pop() if len(diagnoses) == 1 else ""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
