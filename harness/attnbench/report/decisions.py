"""What to use here: the crossover map of a report, as tables for each place and as rows of decisions.csv."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pandas as pd

from attnbench.analysis.coverage import FEWEST_CHECKED, is_checked
from attnbench.analysis.crossover import (
    DECISIVE,
    Answer,
    Contender,
    Entry,
    Interval,
    choose,
    count_compared,
    find_flips,
)
from attnbench.analysis.limits import Limits, describe_limits, find_limits
from attnbench.analysis.plain_names import format_command
from attnbench.analysis.speed_verdict import State
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FRONTIER, PERF, Result, Status, find_pass
from attnbench.report.forms import describe_form, describe_length, describe_pass, read_lengths, split_numbers
from attnbench.report.numbers import format_bytes, format_estimate, join_words
from attnbench.report.series import Place, Series
from attnbench.report.tables import list_rows

__all__ = [
    "Choice",
    "ChoiceRow",
    "Decisions",
    "FlipRow",
    "PlaceTable",
    "collect_decisions",
    "describe_choice",
    "describe_undecided",
    "make_row",
    "tabulate_decisions",
]

# Most rows of one table of the page: far more than anybody reads, and few enough for the page to stay small.
MOST_ROWS = 200
# Most names in a sentence; the others are counted. The table of measures has all names.
SHOWN = 3
# Statuses with which an implementation is no choice. An implementation that runs out of time or memory at one length
# may still be a choice at other lengths.
WRONG: frozenset[Status] = frozenset({"failed", "error", "crashed"})
# What helps where the samples decide nothing: in words, and the command. In each process, the suites ``core`` and
# ``full`` time more calls than ``quick``.
ADVICE = {
    "unknown": ("Unknown: time again in more processes", "attnbench profile --suite core --processes 30"),
    "inconclusive": (
        "Inconclusive: time again while nothing else runs on the machine, with more calls in each process, and without "
        "--case-budget",
        "attnbench profile --suite full",
    ),
}
COLUMNS = (
    "machine", "device", "dtype", "threads", "form", "queries", "keys", "mode", "pass", "reference", "answer",
    "implementations", "gain", "gain_low", "gain_high", "processes", "reason", "undecided", "refused", "refusals_known",
    "checked", "excluded", "conforming_answer", "conforming", "peak_bytes", "reference_peak_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A cell in words: what to use, the gain over the reference, and notes such as what the winner refuses."""

    # Kind of the answer; empty where nothing was timed.
    kind: str
    words: str
    gain: str = ""
    notes: tuple[str, ...] = ()
    # Which of the named implementations are not known to conform; empty if all do, or if the answer names no choice.
    conformance: str = ""
    # What to use instead, and its gain: the fastest that conforms; empty if all named implementations conform.
    conforming: str = ""
    conforming_gain: str = ""
    # Peak memory of the fastest implementation and of the reference; empty without a winner or a tie, and where the
    # peak was not measured.
    memory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRow:
    """Neighbouring lengths of one form that have the same answers in all passes."""

    form: str
    length: str
    # One choice for each pass of the table.
    choices: tuple[Choice, ...]
    # Number of neighbouring rows with this form, in the first of these rows; 0 in the others.
    span: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTable:
    """What to use at one place."""

    place: Place
    passes: tuple[str, ...]
    # At most ``MOST_ROWS`` rows.
    rows: tuple[ChoiceRow, ...]
    # Number of rows that are left out.
    left_out: int
    # Implementations that were timed, but are no choice because they fail checks; the reference may be among them.
    excluded: tuple[str, ...] = ()
    # Whether any implementation of the table was checked on a suite.
    checked: bool = True
    # Implementations among the answers whose timed calls all had the same input values.
    fixed: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """Which implementations were timed but are no choice, and whether nothing was checked; may be empty."""
        parts = ["Nothing here was checked on a suite in this report, so no name is known to conform."]
        if self.checked:
            parts = []
        if self.excluded:
            verb = "fails checks and is" if len(self.excluded) == 1 else "fail checks and are"
            parts.append(f"Timed, but {verb} no choice: {join_words(self.excluded)}.")
        if self.fixed:
            parts.append(
                f"The timed calls of {join_words(self.fixed)} all had the same input values, so results may have been "
                "kept from earlier calls."
            )
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRow:
    """A form, length and pass for which places have different answers."""

    form: str
    length: str
    pass_: str
    # One answer for each place of ``Decisions.places``; a dash for a place without an answer.
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The section "What to use here"."""

    entries: tuple[Entry, ...]
    tables: tuple[PlaceTable, ...]
    # The place of each table, in the order of ``tables``.
    places: tuple[Place, ...]
    # ``flips``: at most ``MOST_ROWS`` flips. ``flips_left_out``: number of further flips.
    flips: tuple[FlipRow, ...]
    flips_left_out: int
    # Number of shapes, lengths and passes with a decided answer at two places or more.
    compared: int
    # What to do where the answer is open; empty if every answer is decided.
    advice: tuple[str, ...]
    # Names of the references, in words.
    reference: str

    @property
    def is_decided(self) -> bool:
        """Whether any answer says what to use."""
        return any(entry.answer.kind in DECISIVE for entry in self.entries)

    @property
    def agreement(self) -> str:
        """How far places without flips agree."""
        if not self.compared:
            return "No shape has a decided answer at two places with the same dtype and number of threads."
        of = f"the {self.compared} shapes" if self.compared > 1 else "the one shape"
        return f"Nowhere: for {of} with decided answers at several places, the answers share a name."


def collect_decisions(runs: Sequence[StoredRun], results: Iterable[Result], series: Sequence[Series]) -> Decisions:
    """Return what to use at each place where something was timed; ``results`` are the merged results of all runs."""
    limits, conformance = _LimitsOfRuns(runs), _Conformance(runs, results)
    entries = tuple(entry for one in series for entry in _list_entries(one, limits, conformance))
    places = tuple(dict.fromkeys(_get_place(entry) for entry in entries))
    tables = tuple(_make_table(place, [one for one in entries if _get_place(one) == place]) for place in places)
    flips = tuple(_make_flips(entries, places))
    references = sorted({entry.reference for entry in entries})
    return Decisions(
        entries=entries,
        tables=tables,
        places=places,
        flips=flips[:MOST_ROWS],
        flips_left_out=len(flips[MOST_ROWS:]),
        compared=count_compared(entries),
        advice=tuple(_advise(entries)),
        reference=join_words(references) if references else "",
    )


def _advise(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield what to do about unknown and about inconclusive answers, each if there is one."""
    of_kind = {kind: [one.answer.names for one in entries if one.answer.kind == kind] for kind in ADVICE}
    for kind, found in of_kind.items():
        if found:
            words, command = ADVICE[kind]
            names = dict.fromkeys(name for own in found for name in own)
            yield f"{words}: {format_command(command, [*names])}"


def tabulate_decisions(decisions: Decisions) -> pd.DataFrame:
    """Return the rows of decisions.csv: one for each place, form, length, mode and pass, none of them merged."""
    return pd.DataFrame([make_row(entry) for entry in decisions.entries], columns=list(COLUMNS))


class _LimitsOfRuns:
    """What each implementation refuses on a device: from the run that timed it, or from a run of the same code."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self._runs = {stored.run.id: stored for stored in runs}
        self._results: dict[tuple[str, str], list[Result]] = {}
        for stored in runs:
            for result in stored.results:
                self._results.setdefault((stored.run.id, result.implementation), []).append(result)
        # By machine, implementation and hash of its source files, the runs of this code.
        self._of_code: dict[tuple[str, str, str], list[str]] = {}
        for stored in runs:
            for name, source in stored.run.sources.items():
                self._of_code.setdefault((stored.run.machine.name, name, source), []).append(stored.run.id)
        self._found: dict[tuple[str, str, str], Limits] = {}
        self._own: dict[tuple[str, str, str], Limits] = {}

    def find(self, implementation: str, run: str, device: str) -> Limits:
        """Return what an implementation that was timed in a run refuses."""
        key = implementation, run, device
        if key not in self._found:
            known = (self._read(implementation, other, device) for other in self._list_runs(implementation, run))
            self._found[key] = next((limits for limits in known if limits.known), Limits(known=False))
        return self._found[key]

    def _list_runs(self, implementation: str, run: str) -> Iterator[str]:
        """Yield the run, and then the runs on the same machine whose source files of the implementation are equal."""
        if run not in self._runs:
            return
        yield run
        own = self._runs[run].run
        if source := own.sources.get(implementation):
            same_code = self._of_code[own.machine.name, implementation, source]
            yield from (name for name in same_code if name != run)

    def _read(self, implementation: str, run: str, device: str) -> Limits:
        """Return what the results of one run say; it is found once, because many runs may ask for it."""
        key = implementation, run, device
        if key not in self._own:
            completions = {one.implementation: one for one in self._runs[run].completions}
            results = self._results.get((run, implementation), ())
            self._own[key] = find_limits(results, completions.get(implementation), device)
        return self._own[key]


class _Conformance:
    """How many cases of each implementation were checked on a machine and a device, and which implementations fail."""

    def __init__(self, runs: Sequence[StoredRun], results: Iterable[Result]) -> None:
        machines = {stored.run.id: stored.run.machine.name for stored in runs}
        self._checked: dict[tuple[str, str, str], int] = {}
        self._wrong: set[tuple[str, str, str]] = set()
        for result in results:
            if result.suite == FRONTIER:
                continue
            key = machines[result.run], CaseId.parse(result.case).device, result.implementation
            self._checked[key] = self._checked.get(key, 0) + (result.suite != PERF and is_checked(result))
            if any(finding.status in WRONG for finding in result.findings):
                self._wrong.add(key)

    def is_wrong(self, place: Place, name: str) -> bool:
        """Whether an implementation fails a check on the machine and device of a place."""
        return (place.machine, place.device, name) in self._wrong

    def count(self, place: Place, name: str) -> int:
        """Return how many cases of suites were checked on the machine and device of a place."""
        return self._checked.get((place.machine, place.device, name), 0)


def _list_entries(series: Series, limits: _LimitsOfRuns, conformance: _Conformance) -> Iterator[Entry]:
    """Yield the entries of a series by mode and length; a case without timings has none."""
    place, reference = series.place, series.reference
    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in list_rows(series.timings):
        by_case.setdefault(str(row["case"]), []).append(row)
    peaks = {
        (str(case), str(name)): float(peak)
        for case, name, peak in zip(
            series.memory["case"], series.memory["implementation"], series.memory["peak_bytes"], strict=True
        )
        if peak == peak
    }
    for case, rows in sorted(by_case.items(), key=lambda item: _order_case(item[0])):
        every = [_make_contender(row) for row in rows]
        wrong = {one.implementation for one in every if conformance.is_wrong(place, one.implementation)}
        # A reference that fails checks stays a contender, because all times are compared with the reference's time.
        contenders = [one for one in every if one.implementation not in wrong - {reference}]
        if not contenders:
            continue
        answer = choose(contenders, reference)
        checked = {one.implementation: conformance.count(place, one.implementation) for one in contenders}
        timed_in = {one.implementation: one.run for one in contenders}
        parsed = CaseId.parse(case)
        queries, keys = read_lengths(parsed)
        device = place.device
        conforming = _choose_conforming(contenders, reference, answer, checked, wrong)
        yield Entry(
            machine=series.place.machine,
            device=device,
            dtype=series.place.dtype,
            threads=series.place.threads,
            form=series.form,
            queries=queries,
            keys=keys,
            mode=parsed.mode,
            pass_=find_pass(case),
            reference=series.reference,
            answer=answer,
            excluded=tuple(sorted(wrong)),
            conforming=conforming,
            case=case,
            contenders=tuple(contenders),
            contender_limits={name: limits.find(name, run, device) for name, run in timed_in.items()},
            contender_checked=checked,
            peak_bytes=peaks.get((case, answer.names[0])),
            reference_peak_bytes=peaks.get((case, reference)),
            conforming_peak_bytes=peaks.get((case, conforming.names[0])) if conforming else None,
            timed=frozenset(timed_in),
            fixed=frozenset(str(row["implementation"]) for row in rows if row["values"] == "fixed"),
        )


def _choose_conforming(
    contenders: Sequence[Contender], reference: str, answer: Answer, checked: Mapping[str, int], wrong: Set[str]
) -> Answer | None:
    """Return the answer among the reference and the implementations that conform.

    Return None if all implementations in ``answer`` conform, or if no implementation that conforms is the answer.
    """
    conform = [one for one in contenders if checked[one.implementation] >= FEWEST_CHECKED]
    if not conform or all(checked[name] >= FEWEST_CHECKED for name in answer.names):
        return None
    found = choose([one for one in contenders if one in conform or one.implementation == reference], reference)
    # A reference that fails checks, or on which too few cases were checked, is compared with, but never recommended.
    named = found.kind in DECISIVE and found.names[0] in {one.implementation for one in conform} - wrong
    return found if named else None


def _order_case(case: str) -> tuple[str, int, int, int]:
    parsed = CaseId.parse(case)
    queries, keys = read_lengths(parsed)
    return parsed.mode, max(queries, keys), queries, keys


def _make_contender(row: Mapping[str, Any]) -> Contender:
    ratio = None
    if row["ratio"] == row["ratio"]:
        ratio = Interval(
            value=row["ratio"], low=row["ratio_low"], high=row["ratio_high"], processes=int(row["counted"])
        )
    state: State = row["state"]
    return Contender(
        implementation=str(row["implementation"]),
        time_ns=float(row["median_ns"]),
        ratio=ratio,
        state=state,
        reason=str(row["reason"]),
        run=str(row["run"]),
    )


def _get_place(entry: Entry) -> Place:
    return Place(entry.machine, entry.device, entry.dtype, entry.threads)


def _get_pass(entry: Entry) -> str:
    return describe_pass(entry.pass_, entry.mode)


def _make_table(place: Place, entries: Sequence[Entry]) -> PlaceTable:
    """Return the table of a place; neighbouring lengths with the same answers in all passes share a row."""
    passes = tuple(dict.fromkeys(map(_get_pass, sorted(entries, key=lambda one: (one.pass_, one.mode != "inference")))))
    by_shape: dict[tuple[str, int, int], dict[str, Entry]] = {}
    for entry in sorted(
        entries, key=lambda one: (split_numbers(one.form), max(one.queries, one.keys), one.queries, one.keys)
    ):
        by_shape.setdefault((entry.form, entry.queries, entry.keys), {})[_get_pass(entry)] = entry

    def get_answers(shape: tuple[str, int, int]) -> tuple[object, ...]:
        return shape[0], *(_get_essence(by_shape[shape].get(name)) for name in passes)

    rows = []
    for _, group in groupby(by_shape, key=get_answers):
        shapes = list(group)
        lengths = [describe_length(queries, keys) for _, queries, keys in shapes]
        cells = ([by_shape[shape][name] for shape in shapes if name in by_shape[shape]] for name in passes)
        rows.append(
            ChoiceRow(
                form=describe_form(shapes[0][0]),
                length=lengths[0] if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}",
                choices=tuple(map(describe_choice, cells)),
            )
        )
    shown = tuple(_set_spans(rows[:MOST_ROWS]))
    excluded = tuple(dict.fromkeys(name for entry in entries for name in entry.excluded))
    return PlaceTable(
        place=place,
        passes=passes,
        rows=shown,
        left_out=len(rows) - len(shown),
        excluded=excluded,
        checked=any(entry.checked for entry in entries),
        fixed=tuple(dict.fromkeys(name for entry in entries for name in entry.answer.names if name in entry.fixed)),
    )


def _set_spans(rows: Sequence[ChoiceRow]) -> Iterator[ChoiceRow]:
    """Yield the rows with their spans: among neighbouring rows with the same form, the first has their number."""
    for _, group in groupby(rows, key=lambda row: row.form):
        first, *others = group
        yield replace(first, span=1 + len(others))
        yield from (replace(row, span=0) for row in others)


def _get_essence(entry: Entry | None) -> tuple[object, ...]:
    """Return what has to be equal at lengths that share a row; if the answer does not say what to use, its kind."""
    if entry is None:
        return ()
    answer = entry.answer
    if answer.kind not in DECISIVE:
        return (answer.kind,)
    other = entry.conforming
    return (
        answer.kind, answer.names, answer.undecided, entry.limits, entry.checked, entry.excluded,
        other and (other.kind, other.names),
    )  # fmt: skip


def describe_choice(entries: Sequence[Entry]) -> Choice:
    """Return the cell of entries with the same answer, at neighbouring lengths."""
    if not entries:
        return Choice(kind="", words="not timed")
    answer, reference = entries[0].answer, entries[0].reference
    if answer.kind not in DECISIVE:
        every = dict.fromkeys(name for entry in entries for name in entry.answer.names)
        reasons = dict.fromkeys(entry.answer.reason for entry in entries)
        answer = replace(answer, names=tuple(every), reason="; ".join(list(reasons)[:SHOWN]))
    words, note = _describe_answer(answer, reference)
    conforming, conforming_gain = _describe_conforming(entries)
    notes = [note] * bool(note) + list(_describe_all_limits(entries[0]))
    if undecided := describe_undecided(answer):
        notes.append(undecided)
    return Choice(
        kind=answer.kind,
        words=words,
        gain=_format_gains([entry.answer.gain for entry in entries if entry.answer.gain]),
        notes=tuple(notes),
        conformance=_describe_conformance(entries[0]),
        conforming=conforming,
        conforming_gain=conforming_gain,
        memory=_describe_memory(entries[-1], several=len(entries) > 1),
    )


def describe_undecided(answer: Answer) -> str:
    """Return which further implementations may be as fast as those of an answer; empty if none may."""
    if not answer.undecided:
        return ""
    return f"not decided: whether {join_words(answer.undecided)} {_is(answer.undecided)} as fast"


def _describe_conforming(entries: Sequence[Entry]) -> tuple[str, str]:
    """Return the fastest implementation that conforms, where an answer names others, and its gain."""
    other = entries[0].conforming
    if other is None or entries[0].answer.kind not in DECISIVE:
        return "", ""
    names = join_words(other.names if other.kind in ("winner", "tie") else other.names[:1])
    gains = [one.conforming.gain for one in entries if one.conforming and one.conforming.gain]
    return names, _format_gains(gains)


def _describe_conformance(entry: Entry) -> str:
    """Return which implementations of an answer are not known to conform."""
    kind = entry.answer.kind
    if kind not in DECISIVE and kind != "alone":
        return ""
    parts = []
    if entry.reference in entry.excluded and entry.reference in entry.answer.names:
        parts.append(f"{entry.reference} fails checks")
    named = zip(entry.answer.names, entry.checked, strict=bool(entry.checked))
    few = {name: count for name, count in named if name not in entry.excluded and count < FEWEST_CHECKED}
    by_count: dict[int, list[str]] = {}
    for name, count in few.items():
        by_count.setdefault(count, []).append(name)
    for count, same in by_count.items():
        who = "" if len(same) == len(entry.answer.names) else f"{join_words(same)}: "
        words = f"not decided ({count} of the {FEWEST_CHECKED} needed cases)" if count else "not checked"
        parts.append(f"{who}conformance {words}")
    if few and entry.conforming is None and any(count >= FEWEST_CHECKED for count in entry.contender_checked.values()):
        parts.append("among those that conform, the samples decide nothing")
    return "; ".join(parts)


def _describe_memory(entry: Entry, *, several: bool) -> str:
    """Return the peak memory of a winner, of the fastest that conforms and of the reference; empty without a winner.

    ``several``: name the length.
    """
    first, kind = entry.answer.names[0], entry.answer.kind
    if kind not in ("winner", "tie") or not entry.peak_bytes or not entry.reference_peak_bytes:
        return ""
    others = [(entry.reference, entry.reference_peak_bytes)]
    if entry.conforming and entry.conforming_peak_bytes and entry.conforming.names[0] != entry.reference:
        others.insert(0, (entry.conforming.names[0], entry.conforming_peak_bytes))
    who = f"{first} " if kind == "tie" or entry.conforming else ""
    at = f" at {describe_length(entry.queries, entry.keys)}" if several else ""
    listed = ", ".join(f"{name} {format_bytes(peak)}" for name, peak in others)
    return f"peak memory: {who}{format_bytes(entry.peak_bytes)}, {listed}{at}"


def _describe_answer(answer: Answer, reference: str) -> tuple[str, str]:
    """Return what to use in a few words, and a note that explains it; the note may be empty."""
    names = ", ".join(answer.names)
    some = _name_some(answer.names)
    match answer.kind:
        case "winner":
            return names, ""
        case "tie":
            return f"tie: {names}", ""
        case "reference":
            return reference, "every other implementation is slower"
        case "no_difference":
            return "no useful difference", f"{reference} and {_name_some(answer.names[1:])} cannot be told apart"
        case "unknown":
            return "unknown", f"{some} {_was(answer.names)} fastest: {answer.reason}"
        case "inconclusive":
            return "inconclusive", answer.reason
        case "alone":
            return f"only {names}", "nothing else was timed"
        case "not_compared":
            return "not compared", f"{some} and {reference} were not timed in the same processes"


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return join_words([*names[:SHOWN], f"{more} more"]) if more > 0 else join_words(names)


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _describe_all_limits(entry: Entry) -> Iterator[str]:
    """For a winner, a tie or no difference, yield what each named implementation but the reference refuses.

    Implementations with the same limits share a line.
    """
    if entry.answer.kind not in ("winner", "tie", "no_difference"):
        return
    shared: dict[str, list[str]] = {}
    for name, limits in zip(entry.answer.names, entry.limits, strict=True):
        if name != entry.reference:
            shared.setdefault(describe_limits(limits), []).append(name)
    for words, names in shared.items():
        yield words if len(shared) == 1 else f"{join_words(names)}: {words}"


def _format_gains(gains: Sequence[Interval]) -> str:
    """Format the gain with its interval; with several lengths, the smallest and the largest gain."""
    if not gains:
        return ""
    ends = [min(gains, key=lambda one: one.value), max(gains, key=lambda one: one.value)]
    shown = dict.fromkeys(format_estimate(one.value, one.low, one.high, one.processes, unit="×") for one in ends)
    return " to ".join(shown)


def _make_flips(entries: Sequence[Entry], places: Sequence[Place]) -> Iterator[FlipRow]:
    for flip in find_flips(entries):
        by_place = {_get_place(entry): entry for entry in flip.entries}
        first = flip.entries[0]
        yield FlipRow(
            form=describe_form(first.form),
            length=describe_length(first.queries, first.keys),
            pass_=_get_pass(first),
            answers=tuple(
                _describe_answer(by_place[place].answer, first.reference)[0] if place in by_place else "–"
                for place in places
            ),
        )


def make_row(entry: Entry) -> dict[str, object]:
    """Return the row of an entry in decisions.csv, by column."""
    answer, gain = entry.answer, entry.answer.gain
    return {
        "machine": entry.machine,
        "device": entry.device,
        "dtype": entry.dtype,
        "threads": entry.threads,
        "form": entry.form,
        "queries": entry.queries,
        "keys": entry.keys,
        "mode": entry.mode,
        "pass": entry.pass_,
        "reference": entry.reference,
        "answer": answer.kind,
        "implementations": "; ".join(answer.names),
        "gain": gain.value if gain else None,
        "gain_low": gain.low if gain else None,
        "gain_high": gain.high if gain else None,
        "processes": gain.processes if gain else None,
        "reason": answer.reason,
        "undecided": "; ".join(answer.undecided),
        # One text for each implementation of the answer, in the same order.
        "refused": "; ".join(describe_limits(limits) for limits in entry.limits),
        "refusals_known": all(limits.known for limits in entry.limits),
        # The number of checked cases of each implementation of the answer, in the same order.
        "checked": "; ".join(map(str, entry.checked)),
        "excluded": "; ".join(entry.excluded),
        "conforming_answer": entry.conforming.kind if entry.conforming else "",
        "conforming": "; ".join(entry.conforming.names) if entry.conforming else "",
        "peak_bytes": entry.peak_bytes,
        "reference_peak_bytes": entry.reference_peak_bytes,
    }
