"""Failures by their cause: one entry for what many checks, or many cases, say about one fault.

Findings are stored as they are; they are grouped when they are printed. Findings have one cause if their reasons have
the same deviation from the declared policies, the same exception, the same declared refusal, or the same diagnosis. If
an error of the softmax scale or of the amplitude was measured, it explains the wrong values. All results that change
with hidden tokens have one cause. The other failures are grouped by check.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from attnbench.analysis.deviations import (
    FULLY_MASKED,
    HIDDEN_ROW_POLICIES,
    find_declaration,
    find_sentence,
    join_sentences,
)
from attnbench.records.types import FAILURES, Finding, Result, format_reproduce_line

__all__ = ["Failure", "RootCause", "find_root_causes"]

Kind = Literal["deviation", "exception", "diagnosis", "scale", "leak", "check"]
# Of two causes that explain equally many findings, the one whose kind comes first in this tuple is reported.
_PREFERRED: tuple[Kind, ...] = ("deviation", "exception", "diagnosis", "scale", "leak", "check")
# A diagnosis, a scale or a leak joins findings of this many checks or more; the findings of fewer checks are grouped by
# check.
_JOINED_CHECKS = 2
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:[\s,x×]+\d+(?:\.\d+)?(?:e[+-]?\d+)?)*")
# Stands for numbers in a text that several findings have in common.
NUMBER = "…"
_PLACE = re.compile(r" \(at [^()]*:\d+ in [^()]*\)")
# The shapes of the arguments, which ``describe_arguments`` appends to an exception.
_ARGUMENTS = re.compile(r" Arguments of the case: [^.:]*\.")
_DIAGNOSIS = re.compile(r"Diagnosis: (?:looks like )?(?P<faults>.*)\.$")
_REFUSAL = re.compile(r"declared unsupported \(.*?\), yet the call [^:]*")
# What a check of scales measured: the softmax scale or the amplitude, a quantity, and its relative error.
_SCALE = re.compile(
    r"the (?P<what>softmax scale|amplitude) estimated from \S+ is off by (?P<off>[-+]\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
)
# Words of a check that compares values within an error budget.
_OFF = " are off"
# Checks that fail if a hidden token has an effect. They allow no error.
_LEAKS = frozenset(
    {"padding_cannot_leak", "attn_mask_cannot_leak", "future_cannot_leak", "hidden_keys_get_no_gradient"}
)
# What a check requires, and what was found instead, are joined by this word.
_BUT = " But "


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding that makes a run fail, with its case."""

    case: str
    finding: Finding


# The kind of a cause, and what its findings have in common.
_Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The failures of one implementation that have one cause."""

    implementation: str
    kind: Kind
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
    # ``case``, ``finding``: the first failure; of a diagnosis or a scale, the first failure whose reason contains it.
    case: str
    finding: Finding

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
    """Return the causes of the failures of each implementation, in the order in which they first occur.

    Causes with a diagnosis or a deviation, which say what to mend, come before all others.
    """
    failures: defaultdict[str, list[Failure]] = defaultdict(list)
    for result in results:
        failures[result.implementation] += (
            Failure(result.case, finding) for finding in result.findings if finding.status in FAILURES
        )
    causes = [cause for name, found in failures.items() for cause in _explain(name, found)]
    return sorted(causes, key=lambda cause: not (_DIAGNOSIS.search(cause.reason) or find_sentence(cause.reason)))


def _explain(implementation: str, failures: Sequence[Failure]) -> list[RootCause]:
    keys = [_list_keys(failure.finding) for failure in failures]
    left = set(range(len(failures)))
    groups = list(_join_by_key(failures, keys, left))
    _join_hidden_rows(groups, failures, left)
    _join_same_check(groups, failures, left)
    groups += [*_join_scale(failures, left), *_join_leaks(failures, left)]
    by_check: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(left):
        by_check[failures[number].finding.check].append(number)
    groups += [(("check", check), members) for check, members in by_check.items()]
    groups.sort(key=lambda group: group[1][0])
    return [_make_cause(implementation, key, [failures[number] for number in own]) for key, own in groups]


def _list_keys(finding: Finding) -> list[_Key]:
    """Return what a finding may have in common with other findings."""
    reason = finding.reason
    sentence = find_sentence(reason)
    found: list[_Key] = [("deviation", f"{name}={value}") for name, value in find_declaration(sentence).items()]
    if refusal := _REFUSAL.match(reason):
        return [*found, ("exception", refusal.group())]
    diagnosis = _DIAGNOSIS.search(reason)
    if diagnosis and not sentence:
        found += [("diagnosis", fault) for fault in dict.fromkeys(diagnosis["faults"].split(" or "))]
    if (finding.status != "failed" or _BUT not in reason) and (raised := _find_raised(finding)):
        found.append(("exception", f"{finding.status}: {_NUMBERS.sub(NUMBER, raised)}"))
    return found


def _find_raised(finding: Finding) -> str:
    """Return the exception in a finding's reason, without its place in the source and the arguments of the case."""
    raised = finding.reason.replace(find_sentence(finding.reason), "")
    return " ".join(_PLACE.sub("", _ARGUMENTS.sub("", raised)).split()).removesuffix(".")


def _join_by_key(
    failures: Sequence[Failure], keys: Sequence[Sequence[_Key]], left: set[int]
) -> Iterator[tuple[_Key, list[int]]]:
    """Yield the key that most of the failures in ``left`` have, with these failures, and remove them from ``left``.

    This is repeated until no key joins any of the failures that are left. Of keys that equally many failures have, the
    preferred kind comes first, then the key that occurs first.
    """
    members: defaultdict[_Key, list[int]] = defaultdict(list)
    for number, own in enumerate(keys):
        for key in own:
            members[key].append(number)

    def rank(key: _Key) -> tuple[int, int, int, int]:
        first = members[key][0]
        return -len(members[key]), _PREFERRED.index(key[0]), first, keys[first].index(key)

    # A rank only becomes worse as failures are removed, so a key is ranked again only when its turn comes. Ranking
    # every key again in each round takes minutes for 10,000 failures that all have different messages.
    waiting = [(rank(key), key) for key in members]
    heapify(waiting)
    while waiting:
        ranked, key = heappop(waiting)
        joined = members[key] = [number for number in members[key] if number in left]
        checks = {failures[number].finding.check for number in joined}
        if not joined or (key[0] == "diagnosis" and len(checks) < _JOINED_CHECKS):
            continue
        if rank(key) == ranked:
            yield key, joined
            left.difference_update(joined)
        else:
            heappush(waiting, (rank(key), key))


def _join_hidden_rows(groups: list[tuple[_Key, list[int]]], failures: Sequence[Failure], left: set[int]) -> None:
    """Join the groups about fully masked rows whose policies do not contradict one another.

    Failures that are confined to fully masked rows, and that name no policy, join the largest of these groups.
    """
    about = sorted((group for group in groups if _is_about_rows(group[0])), key=lambda group: -len(group[1]))
    if not about:
        return
    (first, members), *others = about
    names = {first[1].partition("=")[0]}
    for group in others:
        name = group[0][1].partition("=")[0]
        if name not in names:
            names.add(name)
            members += group[1]
            groups.remove(group)
    confined = [number for number in left if FULLY_MASKED in failures[number].finding.reason]
    members += confined
    left.difference_update(confined)
    members.sort()


def _is_about_rows(key: _Key) -> bool:
    return key[0] == "deviation" and key[1].partition("=")[0] in HIDDEN_ROW_POLICIES


def _join_same_check(groups: list[tuple[_Key, list[int]]], failures: Sequence[Failure], left: set[int]) -> None:
    """Join failures without a diagnosis to the diagnosis that most other failures of the same check have."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for place, ((kind, _), members) in enumerate(groups):
        if kind == "diagnosis":
            for number in members:
                counts[failures[number].finding.check][place] += 1
    for number in sorted(left):
        if found := counts[failures[number].finding.check]:
            groups[found.most_common(1)[0][0]][1].append(number)
            left.discard(number)
    for _, members in groups:
        members.sort()


def _join_scale(failures: Sequence[Failure], left: set[int]) -> Iterator[tuple[_Key, list[int]]]:
    """Yield the failures that a measured error of a scale explains, and remove them from ``left``.

    These are the failures of checks that compare values within an error budget, since a wrong scale changes all values.
    If the values have another fault, too, it is not told apart from the wrong scale.
    """
    measured = {n: found for n in sorted(left) if (found := _SCALE.search(failures[n].finding.reason))}
    if not measured:
        return
    off = [n for n in left if failures[n].finding.allowed and _OFF in failures[n].finding.reason]
    joined = sorted({*measured, *off})
    if len({failures[n].finding.check for n in joined}) < _JOINED_CHECKS:
        return
    left.difference_update(joined)
    best = max(measured.values(), key=lambda found: (found["what"] == "softmax scale", abs(float(found["off"]))))
    yield ("scale", f"the {best['what']} is off by {100 * float(best['off']):+.3g} %"), joined


def _join_leaks(failures: Sequence[Failure], left: set[int]) -> Iterator[tuple[_Key, list[int]]]:
    """Yield the failures of results that change with hidden tokens, and remove them from ``left``."""
    joined = sorted(n for n in left if failures[n].finding.check in _LEAKS and failures[n].finding.status == "failed")
    if len({failures[n].finding.check for n in joined}) >= _JOINED_CHECKS:
        left.difference_update(joined)
        yield ("leak", "hidden tokens change results"), joined


def _make_cause(implementation: str, key: _Key, failures: Sequence[Failure]) -> RootCause:
    kind = key[0]
    first = failures[0]
    reason = first.finding.reason
    if kind == "deviation":
        sentences = dict.fromkeys(find_sentence(failure.finding.reason) for failure in failures)
        reason = join_sentences([sentence for sentence in sentences if sentence])
    elif kind == "scale":
        first = next(failure for failure in failures if _SCALE.search(failure.finding.reason))
        reason = first.finding.reason
    elif kind == "diagnosis":
        first = next(failure for failure in failures if _DIAGNOSIS.search(failure.finding.reason))
        reason = first.finding.reason
    counts = Counter(failure.finding.check for failure in failures)
    return RootCause(
        implementation=implementation,
        kind=kind,
        reason=reason,
        shared=reason if kind == "deviation" else _find_shared(key, failures),
        failures=tuple(failures),
        checks=dict(counts.most_common()),
        cases=len({failure.case for failure in failures}),
        case=first.case,
        finding=first.finding,
    )


def _find_shared(key: _Key, failures: Sequence[Failure]) -> str:
    """Return what the failures of a group have in common, in words; an empty text if it is only their check."""
    kind, text = key
    if kind in ("scale", "leak"):
        return f"{text[0].upper()}{text[1:]}."
    if kind == "diagnosis":
        told = sum(text in failure.finding.reason for failure in failures)
        some = f" (in {told} of {len(failures)} findings)" if told < len(failures) else ""
        return f"Diagnosis: {text}{some}."
    if kind == "exception":
        if _REFUSAL.match(text):
            return f"{text}."
        raised = {_find_raised(failure.finding) for failure in failures}
        return f"{raised.pop() if len(raised) == 1 else text.partition(': ')[2]}."
    diagnoses = {found["faults"] if (found := _DIAGNOSIS.search(f.finding.reason)) else "" for f in failures}
    common = diagnoses.pop() if len(diagnoses) == 1 else ""
    return f"Diagnosis: {common}." if common else ""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
