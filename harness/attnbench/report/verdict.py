"""The verdict of a report: what a reader must know first, by name, in sentences for each machine and device."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnbench.analysis.completeness import describe_gaps, judge_completeness
from attnbench.analysis.coverage import FEWEST_CHECKED, count_checked
from attnbench.analysis.plain_names import clean_name
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, FRONTIER, PERF, Result, Status
from attnbench.report.numbers import format_count, format_thousands, join_words

__all__ = ["PlaceVerdict", "Sentence", "Verdict", "collect_verdict", "format_lines"]

# Most implementations that fail and are named with their checks; the others are counted.
NAMED_FAILING = 4
# Most names in any other sentence; if there are more, all are counted.
NAMED = 6
# Most checks that are named for one implementation, and longest quoted reason, in characters.
NAMED_CHECKS = 2
LONGEST_REASON = 90
# Statuses of findings whose check did not run.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})
# What is said of an implementation with failures: of its statuses, the first in this order.
FAILING: dict[Status, str] = {
    "failed": "is wrong",
    "error": "raises exceptions",
    "crashed": "crashes",
    "timeout": "does not end in time",
    "out_of_memory": "runs out of memory",
    "unexpected_pass": "passes what it is declared to fail",
}
# Words of the second line for statuses that are neither passed nor a failure.
WORDS: dict[Status, str] = {
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}
# A reason of an implementation that needs another device, such as "needs a CUDA device" or
# "device=cpu (supported: {'cuda'})". Reasons are free text, so this is a guess; the reason itself is in the report.
NEEDS_CUDA = re.compile(r"\b(cuda|gpu)\b", re.IGNORECASE)

Kind = Literal["bad", "gap", "good", "other"]
# What is said of a group of implementations: the kind of the sentence, and its words for one and for several.
TOLD: dict[str, tuple[Kind, str, str]] = {
    "conforms": ("good", "{names} conforms.", "{names} conform."),
    "expected": (
        "good",
        "{names} conforms, except for failures that it declares.",
        "{names} conform, except for failures that they declare.",
    ),
    "timed": (
        "good",
        "{names} passes the checks before timing; a profile is no verdict on conformance.",
        "{names} pass the checks before timing; a profile is no verdict on conformance.",
    ),
    "few": (
        "other",
        "No verdict on {names}: nothing failed, but a verdict needs {reason} checked cases.",
        "No verdict on {names}: nothing failed, but a verdict needs {reason} checked cases of each.",
    ),
    "elsewhere": ("other", "{names} cannot run here (needs {reason}).", "{names} cannot run here (need {reason})."),
    "refuses": ("other", "{names} refuses every case ({reason}).", "{names} refuse every case ({reason})."),
    "left": ("other", "{names} was not run ({reason}).", "{names} were not run ({reason})."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of the verdict. Kind: a failure, something missing, conformance, or anything else."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceVerdict:
    """The verdict on one machine, and on one of its devices if the runs used several."""

    # The machine, with the device if the machine has several in the report; empty if there is only one place.
    label: str
    sentences: tuple[Sentence, ...]
    # What was checked, and how many calls were timed; empty if nothing was.
    checked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of a report, by place."""

    places: tuple[PlaceVerdict, ...]
    # Whether nothing is known to be missing from any run.
    complete: bool


class _Where(NamedTuple):
    """A machine and a device; the device is empty for a run without results or with several devices."""

    machine: str
    device: str


def collect_verdict(runs: Sequence[StoredRun], results: Iterable[Result]) -> Verdict:
    """Return the verdict on these runs; ``results`` are the merged results of all runs."""
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    by_place: defaultdict[_Where, list[Result]] = defaultdict(list)
    for result in results:
        if result.suite != FRONTIER:
            by_place[_Where(machines[result.run], CaseId.parse(result.case).device)].append(result)
    gaps: defaultdict[_Where, list[Sentence]] = defaultdict(list)
    # What each machine lacks: the implementation, and whether checks are missing or only timings.
    lacking: defaultdict[str, set[tuple[str, bool]]] = defaultdict(set)
    complete = True
    for stored in runs:
        found = judge_completeness(stored)
        complete &= found.complete
        lacking[found.machine].update((one.implementation, one.unchecked) for one in found.unfinished)
        where = _locate(stored)
        gaps[where] += [Sentence(kind="gap", text=text) for text in describe_gaps(found, named=len(runs) > 1)]
    places = sorted({*by_place, *(where for where, own in gaps.items() if own)}) or [_Where(min(machines.values()), "")]
    labels = _label_places(places)
    return Verdict(
        places=tuple(
            PlaceVerdict(
                label=labels[where],
                sentences=tuple(_describe_place(by_place[where], gaps[where], lacking[where.machine])),
                checked=_describe_checked(by_place[where]),
            )
            for where in places
        ),
        complete=complete,
    )


def format_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the lines of the verdict as plain text: for each place what is known, then what was checked."""
    for place in verdict.places:
        start = f"{place.label}: " if place.label else ""
        yield start + " ".join(sentence.text for sentence in place.sentences)
        if place.checked:
            yield start + place.checked


def _locate(stored: StoredRun) -> _Where:
    devices = {CaseId.parse(result.case).device for result in stored.results if result.suite != FRONTIER}
    return _Where(stored.run.machine.name, devices.pop() if len(devices) == 1 else "")


def _label_places(places: Sequence[_Where]) -> dict[_Where, str]:
    """Return the label of each place: only as much of machine and device as differs."""
    machines = {where.machine for where in places}
    labels = {}
    for where in places:
        devices = {other.device for other in places if other.machine == where.machine}
        parts = ([where.machine] if len(machines) > 1 or not where.device else []) + (
            [where.device] if len(devices) > 1 and where.device else []
        )
        labels[where] = ", ".join(map(clean_name, parts)) if len(places) > 1 else ""
    return labels


def _describe_place(
    results: Sequence[Result], gaps: Sequence[Sentence], unfinished: Set[tuple[str, bool]]
) -> Iterator[Sentence]:
    """Yield the sentences about the implementations of one place: failures, gaps, conformance, the others."""
    if not any(result.findings for result in results):
        yield from gaps
        yield Sentence(kind="gap", text="Nothing was checked.")
        return
    by_name: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_name[result.implementation].append(result)
    yield from _describe_failing(by_name)
    yield from gaps
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, own in by_name.items():
        only_timed = all(result.suite == PERF for result in own)
        finished = (name, True) not in unfinished and not (only_timed and (name, False) in unfinished)
        if group := _classify(own, finished=finished):
            groups[group].append(name)
    kinds = list(TOLD)
    for kind, reason in sorted(groups, key=lambda group: (kinds.index(group[0]), -len(groups[group]), group[1])):
        names = groups[kind, reason]
        counts = [count_checked(r for r in by_name[name] if r.suite != PERF) for name in names] if kind == "few" else []
        yield _describe_group(kind, reason, names, counts)


def _describe_failing(by_name: dict[str, list[Result]]) -> Iterator[Sentence]:
    """Yield a sentence for each failing implementation, the one with the most failing cases first."""
    failing = []
    for name, own in by_name.items():
        cases, checks, statuses = set(), defaultdict(set), set()
        for result in own:
            for finding in result.findings:
                if finding.status in FAILURES:
                    cases.add(result.case)
                    checks[finding.check].add(result.case)
                    statuses.add(finding.status)
        if cases:
            failing.append(
                (name, next(words for status, words in FAILING.items() if status in statuses), cases, checks)
            )
    order = list(FAILING.values())
    failing.sort(key=lambda one: (order.index(one[1]), -len(one[2]), one[0]))
    for name, words, cases, checks in failing[:NAMED_FAILING]:
        ranked = sorted(checks, key=lambda check: (-len(checks[check]), check))
        shown = [clean_name(check) for check in ranked[:NAMED_CHECKS]]
        left = len(ranked) - len(shown)
        shown += [f"{left} more check{'s' * (left > 1)}"] if left else []
        text = f"{clean_name(name)} {words}: {join_words(shown)}, {format_count(len(cases), 'case')}."
        yield Sentence(kind="bad", text=text)
    left = len(failing) - NAMED_FAILING
    if left > 0:
        yield Sentence(kind="bad", text=f"{left} more fail{'s' * (left == 1)}.")


def _classify(results: Sequence[Result], *, finished: bool) -> tuple[str, str] | None:
    """Return the group of an implementation, and the reason; None if it fails or is not finished."""
    statuses: Counter[Status] = Counter()
    reasons: Counter[tuple[Status, str]] = Counter()
    for result in results:
        for finding in result.findings:
            statuses[finding.status] += 1
            if finding.status in SILENT:
                reasons[finding.status, finding.reason] += 1
    if statuses.keys() & FAILURES or not statuses:
        return None
    if not statuses.keys() - SILENT:
        return _classify_silent(reasons)
    if not finished:
        return None
    listed = [result for result in results if result.suite != PERF]
    if not listed:
        return "timed", ""
    if count_checked(listed) < FEWEST_CHECKED:
        return "few", str(FEWEST_CHECKED)
    return ("expected" if statuses["expected_failure"] else "conforms"), ""


def _classify_silent(reasons: Counter[tuple[Status, str]]) -> tuple[str, str]:
    """Return the group of an implementation of which no check ran."""
    if any(NEEDS_CUDA.search(reason) for _, reason in reasons):
        return "elsewhere", "CUDA"
    (status, reason), _ = reasons.most_common(1)[0]
    return ("refuses" if status == "unsupported" else "left"), _shorten(reason)


def _describe_group(kind: str, reason: str, names: Sequence[str], counts: Sequence[int]) -> Sentence:
    """Return the sentence about a group of implementations; ``counts`` are their numbers of checked cases, if told."""
    meaning, one, several = TOLD[kind]
    shown = [clean_name(name) for name in names]
    if counts:
        shown = [f"{name} ({format_count(count, 'case')})" for name, count in zip(shown, counts, strict=True)]
    words = join_words(shown) if len(names) <= NAMED else format_thousands(len(names))
    return Sentence(kind=meaning, text=(several if len(names) > 1 else one).format(names=words, reason=reason))


def _describe_checked(results: Sequence[Result]) -> str:
    """Return what was checked at one place, and how many calls were timed."""
    if not any(result.findings for result in results):
        return ""
    suites = sorted({clean_name(result.suite) for result in results if result.suite not in (PERF, "")})
    statuses = Counter(finding.status for result in results for finding in result.findings)
    checks = {finding.check for result in results for finding in result.findings}
    counted = (
        (len({result.implementation for result in results}), "implementation"),
        (len({result.case for result in results}), "case"),
        (len(checks), "check"),
        (sum(statuses.values()), "finding"),
    )
    start = f"in suite{'s' * (len(suites) > 1)} {join_words(suites)}" if suites else "before timing"
    others = [f"{format_thousands(statuses[status])} {words}" for status, words in WORDS.items() if statuses[status]]
    findings = f" ({', '.join(others)})" if others else ""
    timed = sum(result.timing is not None for result in results)
    if timed:
        calls = f"{format_count(timed, 'call')} timed"
    elif any(result.untimed for result in results):
        calls = "no call was timed, for the reasons below"
    else:
        calls = "no call was timed"
    return f"Checked {start}: {', '.join(format_count(*one) for one in counted)}{findings}; {calls}."


def _shorten(reason: str) -> str:
    words = "".join(mark if mark.isprintable() else " " for mark in reason[: 2 * LONGEST_REASON]).split()
    text = " ".join(words)
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
