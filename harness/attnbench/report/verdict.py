"""The verdict of a report: what a reader must know first, in sentences for each machine and device."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from attnbench.analysis.completeness import Completeness
from attnbench.analysis.coverage import FEWEST_CHECKED, count_cases, count_checked
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, FRONTIER, PERF, SILENT, Result, Status
from attnbench.report.checked import describe_checked, find_checked
from attnbench.report.checking_advice import advise_checking
from attnbench.report.extent import describe_basis, describe_extent
from attnbench.report.failing import describe_failing
from attnbench.report.next_step import RESULTS, NextStep, read_folders
from attnbench.report.numbers import format_count, format_thousands
from attnbench.report.series import label_devices
from attnbench.words.completeness import describe_gaps

__all__ = ["UNDECIDED", "PlaceVerdict", "Sentence", "Verdict", "collect_verdict", "format_lines"]

# Most names in any other sentence, or one more; if there are even more, the sentence has only their number.
NAMED = 6
# Longest quoted reason, in characters.
LONGEST_REASON = 90
# Most commands for finishing runs that are shown.
NEXT_STEPS = 12
# What is known about the end of a run that is not finished.
ENDS = {
    "cut": "The run has no end on record: its process was killed, or is still running.",
    "interrupted": "The run was stopped by Ctrl-C or by a signal.",
    "error": "An error stopped the run.",
}
# Start of the sentence of ``describe_gaps`` about a run that ended before it timed any call.
TIMING = "Timing had not begun"
# A reason of an implementation that needs another device, such as "needs a CUDA device" or
# "device=cpu (supported: {'cuda'})". Reasons are free text, so this is a guess; the reason itself is in the report.
NEEDS_CUDA = re.compile(r"\b(cuda|gpu)\b", re.IGNORECASE)

NO_FAILURE = "No check failed unexpectedly."

Kind = Literal["bad", "gap", "good", "other"]
# What is said of a group of implementations: the kind of the sentence, and its words for one and for several.
TOLD: dict[str, tuple[Kind, str, str]] = {
    "conforms": ("good", "{names} conforms.", "{names} conform."),
    "part": (
        "good",
        "{names} conforms on {reason}; the others were not run.",
        "{names} conform on {reason}; the others were not run.",
    ),
    "expected": (
        "good",
        "{names} conforms, except for {reason} that it declares.",
        "{names} conform, except for {reason} that each declares.",
    ),
    "timed": (
        "other",
        "{names} passes the checks before timing; a profile is no verdict on conformance.",
        "{names} pass the checks before timing; a profile is no verdict on conformance.",
    ),
    "few": (
        "gap",
        "No verdict on {names}: nothing failed, but it {reason}.",
        "No verdict on {names}: nothing failed, but each {reason}.",
    ),
    "elsewhere": ("other", "{names} cannot run here (needs {reason}).", "{names} cannot run here (need {reason})."),
    "refuses": ("other", "{names} refuses every case ({reason}).", "{names} refuse every case ({reason})."),
    "left": ("gap", "{names} was not run ({reason}).", "{names} were not run ({reason})."),
}
# Groups on whose conformance there is no verdict, and why.
UNDECIDED = {"few": "too few cases were checked", "timed": "no case of a suite was checked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of the verdict. Kind: a failure, something missing, conformance, or anything else."""

    kind: Kind
    text: str
    # Machine and name of the implementation whose failures the sentence is about; None for any other sentence.
    about: tuple[str, str] | None = None
    # What is said of the named implementations: a key of ``TOLD``; empty for a failure or a gap of a run.
    group: str = ""
    names: tuple[str, ...] = ()
    # The command that adds what the sentence says is missing; None if there is none.
    step: NextStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceVerdict:
    """The verdict on one machine, and on one of its devices if the runs used several."""

    # The machine and the device, as far as the places differ in them; empty if there is only one place.
    label: str
    sentences: tuple[Sentence, ...]
    # What was checked, and how many calls were timed; empty if nothing was.
    checked: str
    # Whether planned calls were not timed, so that the report has reasons for it.
    has_untimed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of a report, by place."""

    places: tuple[PlaceVerdict, ...]
    # Which runs are incomplete, in words without a full stop; empty if nothing is known to be missing from any run.
    incomplete: str = ""
    # Whether no check is known to be missing from any run.
    checks_complete: bool = True
    # If something is missing: how many timed calls the recommendations rest on; else empty.
    basis: str = ""
    # If something is missing: what of the checks, the times and the memory is complete, in a sentence; else empty.
    extent: str = ""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing from any run."""
        return not self.incomplete


class _Where(NamedTuple):
    """A machine and a device; the device is empty for a run without results or with several devices."""

    machine: str
    device: str


def collect_verdict(runs: Sequence[StoredRun], results: Iterable[Result], judged: Sequence[Completeness]) -> Verdict:
    """Return the verdict on these runs.

    ``results`` are the merged results of all runs, and ``judged`` says of each run whether it is complete.
    """
    machines = {stored.run.id: stored.run.machine.name for stored in runs}
    by_place: defaultdict[_Where, list[Result]] = defaultdict(list)
    for result in results:
        if result.suite != FRONTIER:
            by_place[_Where(machines[result.run], CaseId.parse(result.case).device)].append(result)
    gaps: defaultdict[_Where, list[Sentence]] = defaultdict(list)
    # By machine, the implementations that were not finished, each with True if checks are missing, not only timings.
    lacking: defaultdict[str, set[tuple[str, bool]]] = defaultdict(set)
    incomplete, missing, unreached, checks_complete = 0, 0, 0, True
    steps = 0
    # The implementations of the runs of each place.
    wanted: defaultdict[_Where, set[str]] = defaultdict(set)
    for stored, found in zip(runs, judged, strict=True):
        incomplete += not found.complete
        checks_complete &= found.checks_complete
        missing += sum(one.timings for one in found.unfinished)
        unreached += sum(one.unreached for one in found.unfinished)
        lacking[found.machine].update((one.implementation, one.unchecked) for one in found.unfinished)
        where = _locate(stored)
        wanted[where] |= {*stored.run.implementations}
        own = [Sentence(kind="gap", text=text) for text in describe_gaps(found, named=len(runs) > 1)]
        if own and found.resuming and steps < NEXT_STEPS:
            steps += 1
            own[-1] = replace(own[-1], step=_make_resuming(found, several=len({*machines.values()}) > 1))
        gaps[where] += own
    devices = label_devices((where.machine, where.device) for where in by_place)
    places = sorted({*by_place, *(where for where, own in gaps.items() if own)}) or [_Where(min(machines.values()), "")]
    labels = _label_places(places)
    told = [
        PlaceVerdict(
            label=labels[where],
            sentences=tuple(
                _describe_place(devices.get(where, where.machine), by_place[where], gaps[where], lacking[where.machine])
            ),
            checked=describe_checked(
                by_place[where], wanted[where], untold=not any(TIMING in gap.text for gap in gaps[where])
            ),
            has_untimed=any(result.suite == PERF and result.timing is None for result in by_place[where]),
        )
        for where in places
    ]
    every = [result for own in by_place.values() for result in own]
    timed = sum(result.timing is not None for result in every)
    basis = describe_basis(timed, missing) if incomplete else ""
    if basis and timed and len(runs) > 1:
        basis = f"All runs together: {basis}"
    return Verdict(
        places=tuple(_merge_alike(_add_checking(told, runs))),
        incomplete=_describe_incomplete(incomplete, len(runs)),
        checks_complete=checks_complete,
        basis=basis,
        extent=describe_extent(timed, missing, every, unreached, checked=checks_complete) if incomplete else "",
    )


def format_lines(verdict: Verdict, *, commands: bool = True) -> Iterator[str]:
    """Yield the lines of the verdict as plain text: for each place what is known, then what was checked.

    ``commands``: a command that adds what is missing follows the line that says so. The last line says on how many
    timed calls the recommendations of incomplete runs rest.
    """
    for place in verdict.places:
        start = f"{place.label}: " if place.label else ""
        for sentence in place.sentences:
            yield start + sentence.text
            if sentence.step and commands:
                yield f"{sentence.step.words} {sentence.step.command}"
        if place.checked:
            yield start + place.checked
    if verdict.basis:
        yield f"{verdict.basis} {verdict.extent}"


def _merge_alike(places: Iterable[PlaceVerdict]) -> Iterator[PlaceVerdict]:
    """Yield the verdicts; places of which the same is said share one, under the labels of all."""
    alike: defaultdict[tuple[object, ...], list[PlaceVerdict]] = defaultdict(list)
    for place in places:
        said = ((sentence.kind, sentence.text, sentence.step) for sentence in place.sentences)
        alike[*said, place.checked].append(place)
    for first, *others in alike.values():
        # The numbers are those of one place.
        start = "Checked on each: " if others else "Checked: "
        label = "; ".join([first.label, *(other.label for other in others)])
        yield replace(first, label=label, checked=first.checked.replace("Checked: ", start, 1))


def _make_resuming(found: Completeness, *, several: bool) -> NextStep:
    """Return how a run is finished; ``several``: the report has runs of several machines."""
    results = dict(read_folders(found.resuming)).get("--results", RESULTS)
    on = f"on {clean_name(found.machine)}, " if several else ""
    where = f"in the folder where it was started (its results are in {clean_name(results)})"
    return NextStep(words=f"{ENDS[found.end]} To finish the run, {on}{where}:", command=found.resuming)


def _add_checking(places: Iterable[PlaceVerdict], runs: Sequence[StoredRun]) -> Iterator[PlaceVerdict]:
    """Yield the places; after the sentences without a verdict comes the command that checks more cases of them all."""
    for place in places:
        told = list(place.sentences)
        lacking = [number for number, sentence in enumerate(told) if sentence.group in UNDECIDED]
        names = [name for number in lacking for name in told[number].names]
        if lacking and (step := advise_checking(names, runs)):
            told[lacking[-1]] = replace(told[lacking[-1]], step=step)
        yield replace(place, sentences=tuple(told))


def _describe_incomplete(count: int, of: int) -> str:
    """Return that ``count`` of all runs are incomplete; empty if none is."""
    if not count:
        return ""
    return f"{count} of {of} runs {'is' if count == 1 else 'are'} incomplete" if of > 1 else "The run is incomplete"


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
    machine: str, results: Sequence[Result], gaps: Sequence[Sentence], unfinished: Set[tuple[str, bool]]
) -> Iterator[Sentence]:
    """Yield the sentences about the implementations of one place: failures, gaps, conformance, the others.

    ``machine`` is the machine as the failures of this place name it.
    """
    if not any(result.findings for result in results):
        yield from gaps
        yield Sentence(kind="gap", text="Nothing was checked.")
        return
    by_name: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_name[result.implementation].append(result)
    failing = list(describe_failing(by_name))
    for name, text in failing:
        yield Sentence(kind="bad", text=text, about=(machine, name) if name else None)
    yield from gaps
    groups = list(_describe_groups(by_name, unfinished))
    # Where nothing is open, those that conform say it.
    if not failing and find_checked(results) and any(one.kind == "gap" for one in (*gaps, *groups)):
        yield Sentence(kind="good", text=NO_FAILURE)
    yield from groups


def _describe_groups(by_name: Mapping[str, Sequence[Result]], unfinished: Set[tuple[str, bool]]) -> Iterator[Sentence]:
    """Yield the sentences about implementations without failures, those of the same kind together."""
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, own in by_name.items():
        only_timed = all(result.suite == PERF for result in own)
        finished = (name, True) not in unfinished and not (only_timed and (name, False) in unfinished)
        if group := _classify(own, finished=finished):
            groups[group].append(name)
    kinds = list(TOLD)
    for kind, reason in sorted(groups, key=lambda group: (kinds.index(group[0]), -len(groups[group]), group[1])):
        yield _describe_group(kind, reason, groups[kind, reason])


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
        return "few", _describe_few(listed)
    if statuses["expected_failure"]:
        return "expected", format_count(statuses["expected_failure"], "failure")
    counts = count_cases(listed)
    return ("part", f"{counts.checked} of {counts.cases} cases") if counts.not_run else ("conforms", "")


def _classify_silent(reasons: Counter[tuple[Status, str]]) -> tuple[str, str]:
    """Return the group of an implementation on which no check ran, and the reason."""
    if any(NEEDS_CUDA.search(reason) for _, reason in reasons):
        return "elsewhere", "CUDA"
    (status, reason), _ = reasons.most_common(1)[0]
    return ("refuses" if status == "unsupported" else "left"), _shorten(reason)


def _describe_few(results: Sequence[Result]) -> str:
    """Return why the cases of one implementation are too few for a verdict."""
    counts, suites = count_cases(results), sorted({clean_name(result.suite) for result in results if result.suite})
    of = f" of {join_words(suites)}" if suites else ""
    cases = format_count(counts.cases, "case")
    start = f"refuses {counts.refused} of the {cases}{of}" if counts.refused else f"was given {cases}{of}"
    parts = [f"{counts.checked} were checked"] * bool(counts.refused)
    parts += [f"{counts.not_run} {'was' if counts.not_run == 1 else 'were'} not run"] * bool(counts.not_run)
    return ", ".join([start, *parts, f"and a verdict needs {FEWEST_CHECKED}"])


def _describe_group(kind: str, reason: str, names: Sequence[str]) -> Sentence:
    """Return the sentence about a group of implementations."""
    meaning, one, several = TOLD[kind]
    words = join_words(map(clean_name, names)) if len(names) <= NAMED + 1 else format_thousands(len(names))
    told = several if len(names) > 1 else one
    return Sentence(kind=meaning, text=told.format(names=words, reason=reason), group=kind, names=tuple(names))


def _shorten(reason: str) -> str:
    words = "".join(mark if mark.isprintable() else " " for mark in reason[: 2 * LONGEST_REASON]).split()
    text = " ".join(words)
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
