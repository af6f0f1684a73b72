"""Joining failures of one implementation that have one cause, by their facts."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from attnbench.analysis.deviations import HIDDEN_ROW_POLICIES, find_remedy
from attnbench.analysis.diagnoses import (
    Diagnosis,
    concerns_masked_rows,
    find_fact,
    find_scale,
    fits_most,
    has_wrong_numbers,
    has_wrong_values,
    list_diagnoses,
    may_have_diagnosis,
)
from attnbench.records.facts import Fact
from attnbench.records.outcome_facts import Crashed, Raised
from attnbench.records.types import Finding
from attnbench.records.value_facts import LooksLike, NotEvaluated, PolicyDeviation, ScaleOff, ValueFact, ValuesOff

__all__ = ["LEAKS", "Failure", "Key", "Kind", "find_outcome", "join_failures"]

Kind = Literal["deviation", "exception", "diagnosis", "scale", "leak", "check"]
# Of two causes that explain equally many findings, the one whose kind comes first in this tuple is reported.
_PREFERRED: tuple[Kind, ...] = ("deviation", "exception", "diagnosis", "scale", "leak", "check")
# A diagnosis, a scale or a leak joins findings of this many checks or more; the findings of fewer checks are grouped by
# check.
_JOINED_CHECKS = 2
# Stands for the numbers in the message of an exception, which differ from case to case.
NUMBER = "…"
# What may stand between two numbers of a list, such as a shape.
_SEPARATORS = (".", "e-", "e+", "e", ", ", ",", " x ", "x", " × ", "×", " ")
# Checks that fail if a hidden token has an effect. They allow no error.
LEAKS = frozenset(
    {
        "padding_cannot_leak", "attn_mask_cannot_leak", "future_cannot_leak", "hidden_keys_get_no_gradient",
        "weights_of_hidden_keys_are_zero",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding that makes a run fail, with its case."""

    case: str
    finding: Finding


# The kind of a cause, and what its findings have in common: a diagnosis, an error of a scale, or what tells a policy,
# an exception or a check from others.
Key = tuple[Kind, Any]
# A key, and the numbers of the failures that have one cause.
_Group = tuple[Key, list[int]]


def join_failures(failures: Sequence[Failure]) -> list[tuple[Key, list[Failure]]]:
    """Return the causes of the failures of one implementation, each with its failures, in the order of the failures."""
    keys = [_list_keys(failure.finding) for failure in failures]
    left = set(range(len(failures)))
    groups = list(_join_by_key(failures, keys, left))
    _join_hidden_rows(groups, failures, left)
    _join_same_check(groups, failures, left)
    groups = list(_keep_fitting(groups, failures, left))
    _join_same_case(groups, failures, left)
    _join_same_worst(groups, failures, left)
    groups += [*_join_scale(failures, left), *_join_leaks(failures, left)]
    by_check: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for number in sorted(left):
        finding = failures[number].finding
        by_check[finding.check, finding.status].append(number)
    groups += [(("check", check), members) for check, members in by_check.items()]
    groups.sort(key=lambda group: group[1][0])
    return [(key, [failures[number] for number in members]) for key, members in groups]


def find_outcome(finding: Finding) -> Fact | None:
    """Return the fact about the call itself, such as an exception; None if values were compared."""
    return next(
        (fact for fact in finding.facts if isinstance(fact, NotEvaluated) or not isinstance(fact, ValueFact)), None
    )


def _list_keys(finding: Finding) -> list[Key]:
    """Return what a finding may have in common with other findings."""
    deviation, outcome = find_fact(finding, PolicyDeviation), find_outcome(finding)
    found: list[Key] = [("deviation", policy) for policy in find_remedy(deviation).items()] if deviation else []
    if outcome is not None:
        return [*found, ("exception", (finding.status, _make_outcome_key(outcome)))]
    return found or [("diagnosis", diagnosis) for diagnosis in list_diagnoses(finding)]


def _make_outcome_key(outcome: Fact) -> bytes:
    """Return what outcomes have in common that differ only in numbers of a text, in place and in arguments."""
    if isinstance(outcome, Raised):
        outcome = Raised(kind=outcome.kind, message=_blank_numbers(outcome.message))
    elif isinstance(outcome, NotEvaluated):
        outcome = replace(outcome, message=_blank_numbers(outcome.message))
    elif isinstance(outcome, Crashed):
        outcome = replace(outcome, text=_blank_numbers(outcome.text))
    return msgspec.json.encode(outcome)


def _blank_numbers(message: str) -> str:
    """Return the message of an exception with a mark for each number, or for each list of numbers."""
    text = "".join(NUMBER if number else "".join(part) for number, part in groupby(message, str.isdigit))
    for separator in _SEPARATORS:
        while (pair := f"{NUMBER}{separator}{NUMBER}") in text:
            text = text.replace(pair, NUMBER)
    return text


def _join_by_key(failures: Sequence[Failure], keys: Sequence[Sequence[Key]], left: set[int]) -> Iterator[_Group]:
    """Yield the key that most of the failures in ``left`` have, with these failures, and remove them from ``left``.

    This is repeated until no key joins any of the failures that are left. Of keys that equally many failures have, the
    preferred kind comes first, then the key that occurs first.
    """
    members: defaultdict[Key, list[int]] = defaultdict(list)
    for number, own in enumerate(keys):
        for key in own:
            members[key].append(number)

    def rank(key: Key) -> tuple[int, int, int, int]:
        first = members[key][0]
        return -len(members[key]), _PREFERRED.index(key[0]), first, keys[first].index(key)

    # A rank only becomes worse as failures are removed, so a key is ranked again only when its turn comes. Ranking
    # every key again in each round takes minutes for 10,000 failures that all have different messages.
    waiting = [(rank(key), number, key) for number, key in enumerate(members)]
    heapify(waiting)
    while waiting:
        ranked, number, key = heappop(waiting)
        joined = members[key] = [number for number in members[key] if number in left]
        checks = {failures[number].finding.check for number in joined}
        if not joined or (key[0] == "diagnosis" and len(checks) < _JOINED_CHECKS):
            continue
        if rank(key) == ranked:
            yield key, joined
            left.difference_update(joined)
        else:
            heappush(waiting, (rank(key), number, key))


def _join_hidden_rows(groups: list[_Group], failures: Sequence[Failure], left: set[int]) -> None:
    """Join the groups about fully masked rows whose policies do not contradict one another.

    Failures that are confined to fully masked rows, and that name no policy, join the largest of these groups.
    """
    about = sorted((group for group in groups if _is_about_rows(group[0])), key=lambda group: -len(group[1]))
    if not about:
        return
    ((_, (policy, _)), members), *others = about
    names = {policy}
    for group in others:
        name = group[0][1][0]
        if name not in names:
            names.add(name)
            members += group[1]
            groups.remove(group)
    confined = [number for number in left if concerns_masked_rows(failures[number].finding)]
    members += confined
    left.difference_update(confined)
    members.sort()


def _is_about_rows(key: Key) -> bool:
    return key[0] == "deviation" and key[1][0] in HIDDEN_ROW_POLICIES


def _join_same_check(groups: list[_Group], failures: Sequence[Failure], left: set[int]) -> None:
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


def _keep_fitting(groups: Sequence[_Group], failures: Sequence[Failure], left: set[int]) -> Iterator[_Group]:
    """Yield the groups without diagnoses that fit only few of their failures; these failures are in ``left`` again.

    Where a diagnosis does not fit most of its group, it keeps the checks of which it fits most failures, if there are
    enough checks.
    """
    for key, members in groups:
        if key[0] != "diagnosis" or fits_most(key[1], [failures[number].finding for number in members]):
            yield key, members
            continue
        by_check: defaultdict[str, list[int]] = defaultdict(list)
        for number in members:
            by_check[failures[number].finding.check].append(number)
        kept = [own for own in by_check.values() if fits_most(key[1], [failures[number].finding for number in own])]
        joined = sorted(number for own in kept for number in own) if len(kept) >= _JOINED_CHECKS else []
        left.update({*members}.difference(joined))
        if joined:
            yield key, joined


def _join_same_case(groups: Sequence[_Group], failures: Sequence[Failure], left: set[int]) -> None:
    """Join failures to a diagnosis that explains other failures of the same case, if the fault may cause them too.

    A wrong formula makes other values of the case wrong, and changes what is measured as one number. A diagnosis of a
    mask also explains that hidden tokens have an effect. Of several diagnoses of a case, the one with the most failures
    gets the others.
    """
    of_case: dict[str, _Group] = {}
    for group in sorted(groups, key=lambda group: -len(group[1])):
        (kind, diagnosis), members = group
        if kind == "diagnosis":
            for number in members:
                if may_have_diagnosis(diagnosis, failures[number].finding):
                    of_case.setdefault(failures[number].case, group)
    for number in sorted(left):
        if (found := of_case.get(failures[number].case)) and _may_follow(failures[number].finding, found[0][1]):
            found[1].append(number)
            left.discard(number)
    for _, members in groups:
        members.sort()


def _join_same_worst(groups: Sequence[_Group], failures: Sequence[Failure], left: set[int]) -> None:
    """Join failures whose case, worst element and values there equal those of a failure with a diagnosis.

    Two checks that see the same wrong value on the same case see one fault.
    """
    of_worst: dict[tuple[object, ...], _Group] = {}
    for group in groups:
        if group[0][0] == "diagnosis":
            for number in group[1]:
                if worst := _find_worst(failures[number]):
                    of_worst.setdefault(worst, group)
    for number in sorted(left):
        worst = _find_worst(failures[number])
        if worst in of_worst:
            of_worst[worst][1].append(number)
            left.discard(number)
    for _, members in groups:
        members.sort()


def _find_worst(failure: Failure) -> tuple[object, ...]:
    """Return case, place and values of the worst element; empty if no values are off."""
    found = find_fact(failure.finding, ValuesOff)
    return (failure.case, found.place, found.value, found.expected) if found else ()


def _may_follow(finding: Finding, diagnosis: Diagnosis) -> bool:
    """Whether a fault of the formula may also cause this failure on a case whose values it explains."""
    of_mask = isinstance(diagnosis, LooksLike) and any(fault.of_mask for fault in diagnosis.faults)
    return has_wrong_numbers(finding) or (of_mask and _is_leak(finding))


def _is_leak(finding: Finding) -> bool:
    return finding.check in LEAKS and finding.status == "failed"


def _join_scale(failures: Sequence[Failure], left: set[int]) -> Iterator[_Group]:
    """Yield the failures that a measured error of a scale explains, and remove them from ``left``.

    These are the failures of checks that compare values within an error budget, since a wrong scale changes all values.
    If the values have another fault, too, it is not told apart from the wrong scale.
    """
    measured = {n: scale for n in sorted(left) if (scale := find_scale(failures[n].finding))}
    if not measured:
        return
    off = [n for n in left if has_wrong_values(failures[n].finding)]
    joined = sorted({*measured, *off})
    if len({failures[n].finding.check for n in joined}) < _JOINED_CHECKS:
        return
    left.difference_update(joined)
    yield ("scale", max(measured.values(), key=_rank_scale)), joined


def _rank_scale(scale: ScaleOff) -> tuple[bool, float]:
    return scale.probe == "softmax_scale", abs(float(scale.off))


def _join_leaks(failures: Sequence[Failure], left: set[int]) -> Iterator[_Group]:
    """Yield the failures of results that change with hidden tokens, and remove them from ``left``."""
    joined = sorted(n for n in left if _is_leak(failures[n].finding))
    if len({failures[n].finding.check for n in joined}) >= _JOINED_CHECKS:
        left.difference_update(joined)
        yield ("leak", None), joined
