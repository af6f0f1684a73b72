"""Joining failures of one implementation that have one cause, by what their reasons say."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from attnbench.analysis.deviations import FULLY_MASKED, HIDDEN_ROW_POLICIES, find_declaration, find_sentence
from attnbench.analysis.diagnoses import fits_most, list_faults, may_have_fault
from attnbench.records.types import Finding

__all__ = ["LEAKS", "Failure", "Key", "Kind", "describe_scale", "find_raised", "is_refusal", "join_failures"]

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
_REFUSAL = re.compile(r"declared unsupported \(.*?\), yet the call [^:]*")
# What a check of scales measured: the softmax scale or the amplitude, a quantity, and its relative error.
_SCALE = re.compile(
    r"the (?P<what>softmax scale|amplitude) estimated from \S+ is off by (?P<off>[-+]\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
)
# What a check measures as one number: an error of a scale, or of the sums of rows. The number says how large a fault
# is, and not which fault it is.
_QUANTIFIED = re.compile(rf"{_SCALE.pattern}|the sum of a row of \S+ is off by")
# The worst element, the value there and the right value.
_WORST = re.compile(r"the worst by [^;]*?, must be [^)]*\)")
# Words of a check that compares values within an error budget.
_OFF = " are off"
# Checks that fail if a hidden token has an effect. They allow no error.
LEAKS = frozenset(
    {
        "padding_cannot_leak", "attn_mask_cannot_leak", "future_cannot_leak", "hidden_keys_get_no_gradient",
        "weights_of_hidden_keys_are_zero",
    }
)  # fmt: skip
# A word in the name of each fault model of a mask.
_MASK = "mask"
# What a check requires, and what was found instead, are joined by this word.
_BUT = " But "


@dataclass(frozen=True, slots=True)
class Failure:
    """A finding that makes a run fail, with its case."""

    case: str
    finding: Finding


# The kind of a cause, and what its findings have in common.
Key = tuple[Kind, str]
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
    by_check: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(left):
        by_check[failures[number].finding.check].append(number)
    groups += [(("check", check), members) for check, members in by_check.items()]
    groups.sort(key=lambda group: group[1][0])
    return [(key, [failures[number] for number in members]) for key, members in groups]


def is_refusal(text: str) -> bool:
    """Whether a text begins with the words about a declared refusal whose call raised no exception."""
    return _REFUSAL.match(text) is not None


def _list_keys(finding: Finding) -> list[Key]:
    """Return what a finding may have in common with other findings."""
    reason = finding.reason
    sentence = find_sentence(reason)
    found: list[Key] = [("deviation", f"{name}={value}") for name, value in find_declaration(sentence).items()]
    if refusal := _REFUSAL.match(reason):
        return [*found, ("exception", refusal.group())]
    if not sentence:
        found += [("diagnosis", fault) for fault in list_faults(reason)]
    if (finding.status != "failed" or _BUT not in reason) and (raised := find_raised(finding)):
        found.append(("exception", f"{finding.status}: {_NUMBERS.sub(NUMBER, raised)}"))
    return found


def find_raised(finding: Finding) -> str:
    """Return the exception in a finding's reason, without its place in the source and the arguments of the case."""
    raised = finding.reason.replace(find_sentence(finding.reason), "")
    return " ".join(_PLACE.sub("", _ARGUMENTS.sub("", raised)).split()).removesuffix(".")


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


def _join_hidden_rows(groups: list[_Group], failures: Sequence[Failure], left: set[int]) -> None:
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


def _is_about_rows(key: Key) -> bool:
    return key[0] == "deviation" and key[1].partition("=")[0] in HIDDEN_ROW_POLICIES


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
        (kind, fault), members = group
        if kind == "diagnosis":
            for number in members:
                if may_have_fault(fault, failures[number].finding):
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
    of_worst: dict[tuple[str, str], _Group] = {}
    for group in groups:
        if group[0][0] == "diagnosis":
            for number in group[1]:
                if found := _WORST.search(failures[number].finding.reason):
                    of_worst.setdefault((failures[number].case, found[0]), group)
    for number in sorted(left):
        worst = _WORST.search(failures[number].finding.reason)
        if worst and (failures[number].case, worst[0]) in of_worst:
            of_worst[failures[number].case, worst[0]][1].append(number)
            left.discard(number)
    for _, members in groups:
        members.sort()


def _may_follow(finding: Finding, fault: str) -> bool:
    """Whether a fault of the formula may also cause this failure on a case whose values it explains."""
    if _has_wrong_values(finding) or _QUANTIFIED.search(finding.reason):
        return True
    return _MASK in fault and _is_leak(finding)


def _has_wrong_values(finding: Finding) -> bool:
    """Whether a finding says that values differ from others by more than an allowed error above 0."""
    return bool(finding.allowed) and _OFF in finding.reason


def _is_leak(finding: Finding) -> bool:
    return finding.check in LEAKS and finding.status == "failed"


def _join_scale(failures: Sequence[Failure], left: set[int]) -> Iterator[_Group]:
    """Yield the failures that a measured error of a scale explains, and remove them from ``left``.

    These are the failures of checks that compare values within an error budget, since a wrong scale changes all values.
    If the values have another fault, too, it is not told apart from the wrong scale.
    """
    measured = {n: found for n in sorted(left) if (found := _SCALE.search(failures[n].finding.reason))}
    if not measured:
        return
    off = [n for n in left if _has_wrong_values(failures[n].finding)]
    joined = sorted({*measured, *off})
    if len({failures[n].finding.check for n in joined}) < _JOINED_CHECKS:
        return
    left.difference_update(joined)
    best = max(measured.values(), key=lambda found: (found["what"] == "softmax scale", abs(float(found["off"]))))
    yield ("scale", describe_scale(best.string)), joined


def describe_scale(reason: str) -> str:
    """Return the error of a scale that a reason tells; empty if it tells none."""
    found = _SCALE.search(reason)
    return f"the {found['what']} is off by {100 * float(found['off']):+.3g} %" if found else ""


def _join_leaks(failures: Sequence[Failure], left: set[int]) -> Iterator[_Group]:
    """Yield the failures of results that change with hidden tokens, and remove them from ``left``."""
    joined = sorted(n for n in left if _is_leak(failures[n].finding))
    if len({failures[n].finding.check for n in joined}) >= _JOINED_CHECKS:
        left.difference_update(joined)
        yield ("leak", "hidden tokens change results"), joined
