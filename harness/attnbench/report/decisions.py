"""What to use here: the crossover map of a report, as tables for each place and as rows of decisions.csv."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pandas as pd

from attnbench.analysis.completeness import Unfinished
from attnbench.analysis.crossover import DECISIVE, Entry, count_compared, find_flips, find_seen
from attnbench.analysis.limits import describe_limits
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.analysis.speed_verdict import LEVEL
from attnbench.analysis.stats import level_of, rank_of
from attnbench.cases import CaseId
from attnbench.records.run_file import StoredRun
from attnbench.records.types import PERF, Result, find_pass
from attnbench.report.advice import advise
from attnbench.report.choices import Choice, describe_answer, describe_choice
from attnbench.report.entries import Conformance, collect_entries
from attnbench.report.features import describe_features
from attnbench.report.forms import describe_form, describe_length, describe_pass, split_numbers
from attnbench.report.next_step import NextStep
from attnbench.report.series import Place, Series
from attnbench.report.tables import INCONCLUSIVE, select_pending

__all__ = [
    "ChoiceRow",
    "Decisions",
    "FlipRow",
    "PlaceTable",
    "collect_decisions",
    "get_place",
    "make_row",
    "tabulate_decisions",
]

# Most rows of a table that the page never cuts by a box that scrolls: with three lines each, a window of 900 pixels.
MOST_WHOLE = 12
# Most rows of one table of the page: far more than anybody reads, and few enough for the page to stay small.
MOST_ROWS = 200
COLUMNS = (
    "machine", "device", "dtype", "threads", "form", "queries", "keys", "mode", "pass", "reference", "answer",
    "implementations", "gain", "gain_low", "gain_high", "processes", "reason", "undecided", "refused", "refusals_known",
    "checked", "excluded", "conforming_answer", "conforming", "peak_bytes", "reference_peak_bytes",
    "seen", "seen_gain",
)  # fmt: skip


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
    # Who returns weights and who takes float masks, in sentences.
    features: str = ""
    # Implementations that are no choice because their timed calls all had the same input values.
    fixed: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the page shows all rows without a box that scrolls."""
        return len(self.rows) <= MOST_WHOLE

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
                f"No choice: {join_words(self.fixed)}. All timed calls had the same input values, so results "
                "may have been kept from earlier calls."
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
    # The commands that may decide what is open; empty if every answer is decided.
    advice: tuple[NextStep, ...]
    # Names of the references, in words.
    reference: str
    # On which machines calls were to be timed and none was, in a sentence; empty if there is no such machine.
    untimed: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether any answer says what to use."""
        return any(entry.best.kind in DECISIVE for entry in self.entries)

    @property
    def confidence(self) -> str:
        """The confidence levels of the intervals, in words; empty if there are none."""
        counts = {one.ratio.processes for entry in self.entries for one in entry.contenders if one.ratio}
        levels = sorted(level_of(count, rank) for count in counts if (rank := rank_of(count, LEVEL)))
        ends = (f"{100 * level:.1f}" for level in (*levels[:1], *levels[-1:]))
        return f"{' to '.join(dict.fromkeys(ends))} %" if levels else ""

    @property
    def has_disturbed(self) -> bool:
        """Whether any comparison is inconclusive because calls were disturbed."""
        return any(one.state == INCONCLUSIVE for entry in self.entries for one in entry.contenders)

    @property
    def has_several_devices(self) -> bool:
        """Whether answers of several machines or devices can be compared."""
        return len({(place.machine, place.device) for place in self.places}) > 1

    @property
    def agreement(self) -> str:
        """How far places without flips agree."""
        if not self.compared:
            return "Cannot be told: no call was decided on two machines or devices with the same dtype and threads."
        calls = "call" if self.compared == 1 else "calls"
        return (
            f"Nowhere: for {self.compared} {calls} (shape, length and pass) decided at several places, the answers "
            "share a name."
        )


def collect_decisions(
    runs: Sequence[StoredRun], results: Iterable[Result], series: Sequence[Series], unfinished: Unfinished
) -> Decisions:
    """Return what to use at each place where something was timed; ``results`` are the merged results of all runs."""
    conformance = Conformance(runs, results, unfinished)
    entries = collect_entries(runs, series, conformance)
    places = tuple(dict.fromkeys(get_place(entry) for entry in entries))
    tables = tuple(
        _make_table(
            place,
            [one for one in entries if get_place(one) == place],
            [pair for one in series if one.place == place for pair in _list_pending(one, conformance)],
        )
        for place in places
    )
    flips = tuple(_make_flips(entries, places))
    references = sorted({entry.reference for entry in entries})
    return Decisions(
        entries=entries,
        tables=tables,
        places=places,
        flips=flips[:MOST_ROWS],
        flips_left_out=len(flips[MOST_ROWS:]),
        compared=count_compared(entries),
        advice=tuple(advise(entries, runs)),
        reference=join_words(references) if references else "",
        untimed=_describe_untimed(runs, places),
    )


def _list_pending(series: Series, conformance: Conformance) -> Iterator[tuple[str, str]]:
    """Yield case and implementation of each call that was not reached before its run ended.

    Calls of implementations that fail checks are left out: no answer depends on them.
    """
    pending = select_pending(series.untimed)
    for case, name in zip(map(str, pending["case"]), map(str, pending["implementation"]), strict=True):
        if not conformance.is_wrong(series.place, name):
            yield case, name


def _describe_untimed(runs: Iterable[StoredRun], places: Collection[Place]) -> str:
    """Return on which machines calls were to be timed and none was."""
    wanted = dict.fromkeys(
        stored.run.machine.name for stored in runs if any(result.suite == PERF for result in stored.results)
    )
    names = [clean_name(name) for name in wanted if name not in {place.machine for place in places}]
    return f"No call was timed on {join_words(names)}." if names and places else ""


def tabulate_decisions(decisions: Decisions) -> pd.DataFrame:
    """Return the rows of decisions.csv: one for each place, form, length, mode and pass, none of them merged."""
    return pd.DataFrame([make_row(entry) for entry in decisions.entries], columns=list(COLUMNS))


def get_place(entry: Entry) -> Place:
    """Return the place of an entry."""
    return Place(entry.machine, entry.device, entry.dtype, entry.threads)


def _get_pass(entry: Entry) -> str:
    return describe_pass(entry.pass_, entry.mode)


def _make_table(place: Place, entries: Sequence[Entry], pending: Iterable[tuple[str, str]]) -> PlaceTable:
    """Return the table of a place; neighbouring lengths with the same answers in all passes share a row.

    ``pending`` are the cases, each with an implementation, that were not reached before their run ended.
    """
    names: defaultdict[tuple[str, int, int, str], dict[str, None]] = defaultdict(dict)
    late = []
    for text, name in pending:
        case = CaseId.parse(text)
        late.append(case)
        names[case.form, *case.lengths, describe_pass(find_pass(text), case.mode)][name] = None
    order = sorted(
        {(one.pass_, one.mode) for one in entries} | {(find_pass(str(case)), case.mode) for case in late},
        key=lambda one: (one[0], one[1] != "inference"),
    )
    passes = tuple(dict.fromkeys(describe_pass(*one) for one in order))
    shapes = {(one.form, one.queries, one.keys) for one in entries} | {(one.form, *one.lengths) for one in late}
    by_shape: dict[tuple[str, int, int], dict[str, Entry]] = {
        shape: {} for shape in sorted(shapes, key=lambda one: (split_numbers(one[0]), max(one[1:]), one[1:]))
    }
    for entry in entries:
        by_shape[entry.form, entry.queries, entry.keys][_get_pass(entry)] = entry

    def get_answers(shape: tuple[str, int, int]) -> tuple[object, ...]:
        return shape[0], *((_get_essence(by_shape[shape].get(name)), tuple(names[*shape, name])) for name in passes)

    rows = []
    for _, group in groupby(by_shape, key=get_answers):
        alike = list(group)
        lengths = [describe_length(queries, keys) for _, queries, keys in alike]
        cells = (
            describe_choice(
                [by_shape[shape][name] for shape in alike if name in by_shape[shape]], list(names[*alike[0], name])
            )
            for name in passes
        )
        rows.append(
            ChoiceRow(
                form=describe_form(alike[0][0]),
                length=lengths[0] if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}",
                choices=tuple(cells),
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
        features=describe_features(entries),
        checked=any(entry.checked for entry in entries),
        fixed=tuple(dict.fromkeys(name for entry in entries for name in sorted(entry.fixed - {entry.reference}))),
    )


def _set_spans(rows: Sequence[ChoiceRow]) -> Iterator[ChoiceRow]:
    """Yield the rows with their spans: among neighbouring rows with the same form, the first has their number."""
    for _, group in groupby(rows, key=lambda row: row.form):
        first, *others = group
        yield replace(first, span=1 + len(others))
        yield from (replace(row, span=0) for row in others)


def _get_essence(entry: Entry | None) -> tuple[object, ...]:
    """Return what has to be equal at lengths that share a row: all that a cell says but times and memory."""
    if entry is None:
        return ()
    best = entry.best
    if best.kind not in DECISIVE:
        seen = find_seen(entry.compared, entry.reference)
        ahead = seen is not None and (seen.shown or 0.0) < 1
        essence: tuple[object, ...] = best.names, best.reason, seen and seen.implementation, ahead
    else:
        essence = best.names, best.undecided, tuple(entry.contender_limits[name] for name in best.names), entry.checked
    return best.kind, *essence, entry.answer.kind, entry.answer.names, entry.answer.undecided, entry.conform


def _make_flips(entries: Sequence[Entry], places: Sequence[Place]) -> Iterator[FlipRow]:
    for flip in find_flips(entries):
        by_place = {get_place(entry): entry for entry in flip.entries}
        first = flip.entries[0]
        yield FlipRow(
            form=describe_form(first.form),
            length=describe_length(first.queries, first.keys),
            pass_=_get_pass(first),
            answers=tuple(
                describe_answer(by_place[place].answer, first.reference)[0] if place in by_place else "–"
                for place in places
            ),
        )


def make_row(entry: Entry) -> dict[str, object]:
    """Return the row of an entry in decisions.csv, by column."""
    answer, gain = entry.answer, entry.answer.gain
    # What a cell without a decision shows; it is no verdict.
    seen = None if answer.kind in DECISIVE else find_seen(entry.contenders, entry.reference)
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
        "seen": seen.implementation if seen else "",
        "seen_gain": 1 / seen.shown if seen and seen.shown else None,
    }
