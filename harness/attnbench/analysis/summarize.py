"""Making the summary of stored runs: verdicts on conformance, timed calls, and what to use."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import get_args

from attnbench.analysis.answers import choose
from attnbench.analysis.completeness import Completeness, judge_completeness
from attnbench.analysis.coverage import judge_conformance
from attnbench.analysis.left_out import LeftOut
from attnbench.analysis.pairs import PairBounds
from attnbench.analysis.root_causes import find_root_causes
from attnbench.analysis.summary import (
    Column,
    Conformance,
    Disagreement,
    Place,
    SpeedCell,
    Summary,
    SummaryRow,
    SummaryTable,
)
from attnbench.analysis.timing_rows import Calls, TimingRow, find_reference, measure_calls
from attnbench.cases import CaseId
from attnbench.records.compact_reading import load_samples
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import FRONTIER, PERF, Pass, Result, Timing, find_pass

__all__ = ["summarize"]

# A machine and a device: there, an implementation conforms or not.
_Where = tuple[str, str]


def summarize(
    runs: Sequence[StoredRun],
    results: Sequence[Result] | None = None,
    *,
    left_out: tuple[LeftOut, ...] = (),
    load: Callable[[Timing], Timing] = load_samples,
) -> Summary:
    """Return the summary of these runs; ``results`` are their merged results, which are made if they are not given.

    ``left_out`` is what was taken out of the runs because it cannot be right. ``load`` brings the samples of a timing
    into memory.
    """
    results = [one for one in (results or merge_runs(runs)) if one.suite != FRONTIER]
    judged = [judge_completeness(stored) for stored in runs]
    known = _Known(runs, results, judged)
    ceilings = [ceiling for stored in runs for ceiling in stored.ceilings]
    calls = measure_calls(results, ceilings, may_choose=known.may_choose, load=load)
    tables = tuple(_make_tables(results, calls, known))
    return Summary(
        tables=tables,
        incomplete=tuple(one for one in judged if not one.complete),
        left_out=left_out,
        disagreements=tuple(_find_disagreements(tables)),
        timings=calls.rows,
    )


class _Known:
    """What is known of the runs behind the tables: where each was made, and who conforms there."""

    def __init__(self, runs: Sequence[StoredRun], results: Sequence[Result], judged: Iterable[Completeness]) -> None:
        self.machines = {stored.run.id: stored.run.machine.name for stored in runs}
        self.threads = {stored.run.id: stored.run.threads for stored in runs}
        self._lines = {stored.run.id: stored.timed_lines for stored in runs}
        self._order = {name: None for stored in runs for name in stored.run.implementations}
        missing: defaultdict[tuple[str, str], int] = defaultdict(int)
        for one in judged:
            for short in one.unfinished:
                missing[one.machine, short.implementation] += short.cases
        by_subject: defaultdict[_Where, dict[str, list[Result]]] = defaultdict(dict)
        for result in results:
            by_subject[self.find_where(result)].setdefault(result.implementation, []).append(result)
        self.conformance: dict[_Where, dict[str, Conformance]] = {
            where: {
                name: judge_conformance(own, missing=missing[where[0], name], causes=find_root_causes(own))
                for name, own in sorted(subjects.items(), key=lambda item: self.rank(item[0]))
            }
            for where, subjects in by_subject.items()
        }

    def find_where(self, result: Result) -> _Where:
        """Return the machine and the device of a result."""
        return self.machines[result.run], CaseId.parse(result.case).device

    def find_place(self, result: Result) -> Place:
        """Return the place of a result."""
        case = CaseId.parse(result.case)
        return Place(
            machine=self.machines[result.run],
            device=case.device,
            dtype=case.dtype,
            threads=self.threads[result.run],
        )

    def find_line(self, result: Result) -> int:
        """Return the number of the line of the run file that has a timing; 0 where unknown."""
        return self._lines.get(result.run, {}).get((result.implementation, result.case), 0)

    def rank(self, name: str) -> int:
        """Return the place of an implementation in the order of the runs."""
        return list(self._order).index(name) if name in self._order else len(self._order)

    def is_conforming(self, where: _Where) -> bool:
        """Whether any implementation is known to conform there; if not, those that fail no check may be chosen."""
        return any(one.verdict == "yes" for one in self.conformance[where].values())

    def may_choose(self, result: Result) -> bool:
        """Whether a timed implementation may be what to use.

        Calls that all have the same values may be shorter because results are kept from earlier calls.
        """
        where = self.find_where(result)
        if result.timing is not None and result.timing.values == "fixed":
            return False
        verdict = self.conformance[where][result.implementation].verdict
        return verdict == "yes" if self.is_conforming(where) else verdict != "no"


@dataclass(slots=True)
class _Form:
    """The planned and timed calls of one place and form, by implementation and column."""

    cells: dict[str, dict[Column, SpeedCell]] = field(default_factory=dict)
    columns: dict[Column, None] = field(default_factory=dict)

    def list_columns(self) -> list[Column]:
        """Return the columns: forward first, then by length."""
        return sorted(self.columns, key=_sort_column)


def _make_tables(results: Sequence[Result], calls: Calls, known: _Known) -> Iterator[SummaryTable]:
    """Yield the tables with timed calls, the largest first at each place, then those of places without any."""
    rows = {(row.run, row.case, row.implementation): row for row in calls.rows}
    forms: defaultdict[tuple[Place, str], _Form] = defaultdict(_Form)
    for result in results:
        if result.suite == PERF:
            form = forms[known.find_place(result), CaseId.parse(result.case).form]
            column = _make_column(result.case)
            form.columns[column] = None
            cell = _make_cell(result, rows.get((result.run, result.case, result.implementation)), known)
            form.cells.setdefault(result.implementation, {})[column] = cell
    places = {(place.machine, place.device) for place, _ in forms}
    order = sorted(forms, key=lambda key: (_sort_place(key[0]), -len(forms[key].columns), key[1]))
    yield from (_make_table(*key, forms[key], calls, known) for key in order)
    for where, subjects in known.conformance.items():
        if where not in places:
            place = Place(machine=where[0], device=where[1], dtype="", threads=0)
            found = (SummaryRow(subject=name, conformance=one) for name, one in subjects.items())
            yield SummaryTable(place=place, rows=tuple(found))


def _sort_column(column: Column) -> tuple[int, str, int, int, int]:
    passes = get_args(Pass)
    length = max(column.queries, column.keys)
    return passes.index(column.pass_), column.mode, length, column.queries, column.keys


def _sort_place(place: Place) -> tuple[str, str, str, int]:
    return place.machine, place.device, place.dtype, place.threads


def _make_column(text: str) -> Column:
    case = CaseId.parse(text)
    queries, keys = case.lengths
    return Column(pass_=find_pass(text), mode=case.mode, queries=queries, keys=keys, case=text)


def _make_cell(result: Result, row: TimingRow | None, known: _Known) -> SpeedCell:
    return SpeedCell(
        timing=row,
        line=known.find_line(result) if row else 0,
        peak_bytes=result.memory.peak_bytes if result.memory else None,
        untimed=None if row else result.untimed,
        pending=row is None and result.untimed is None,
    )


def _make_table(place: Place, form: str, made: _Form, calls: Calls, known: _Known) -> SummaryTable:
    columns, where = made.list_columns(), (place.machine, place.device)
    baseline = find_reference(columns[0].case)
    bounds = {column: own for column in columns if (own := _find_bounds(made.cells, column, baseline, calls))}
    answers = {
        column: answer
        for column, own in bounds.items()
        if (answer := choose(own, _list_times(made.cells, column), own.over))
    }
    subjects = sorted(known.conformance[where], key=lambda name: _rank_row(name, made.cells, columns, baseline, known))
    return SummaryTable(
        place=place,
        form=form,
        baseline=baseline,
        columns=tuple(columns),
        rows=tuple(
            SummaryRow(subject=name, conformance=known.conformance[where][name], cells=made.cells.get(name, {}))
            for name in subjects
        ),
        answers=answers,
        bounds=bounds,
        conforming=known.is_conforming(where),
    )


def _find_bounds(
    cells: Mapping[str, Mapping[Column, SpeedCell]], column: Column, baseline: str, calls: Calls
) -> PairBounds | None:
    """Return the bounds of the run that timed the baseline, or else of the last run that timed the call.

    Implementations that another run timed cannot be compared with these.
    """
    runs = {name: own[column].timing.run for name, own in cells.items() if column in own and own[column].timing}  # type: ignore[union-attr]
    if not runs:
        return None
    return calls.bounds.get((runs.get(baseline, max(runs.values())), column.case))


def _list_times(cells: Mapping[str, Mapping[Column, SpeedCell]], column: Column) -> dict[str, float]:
    timed = {name: own[column].timing for name, own in cells.items() if column in own}
    return {name: timing.time.value for name, timing in timed.items() if timing}


def _rank_row(
    name: str,
    cells: Mapping[str, Mapping[Column, SpeedCell]],
    columns: Sequence[Column],
    baseline: str,
    known: _Known,
) -> tuple[bool, bool, float, int]:
    """Rank the baseline first, then by the time at the last column that was timed, then what was not timed."""
    own = cells.get(name, {})
    timed = [timing for column in reversed(columns) if column in own and (timing := own[column].timing)]
    same = [
        timing.time.value / base.time.value
        for timing in timed[:1]
        if (base := cells.get(baseline, {}).get(_make_column(timing.case), SpeedCell()).timing)
    ]
    return name != baseline, not timed, same[0] if same else 0.0, known.rank(name)


def _find_disagreements(tables: Collection[SummaryTable]) -> Iterator[Disagreement]:
    """Yield the calls for which two machines or devices choose differently, although each timed both choices."""
    found: defaultdict[tuple[str, str, str, int, int, str, int], list[tuple[SummaryTable, Column]]] = defaultdict(list)
    for table in tables:
        for column, answer in table.answers.items():
            if answer.decided:
                problem = (table.form, column.pass_, column.mode, column.queries, column.keys)
                found[*problem, table.place.dtype, table.place.threads].append((table, column))
    for alike in found.values():
        if any(_disagree(*one, *other) for one, other in combinations(alike, 2)):
            table, column = alike[0]
            names = tuple((one.place, one.answers[own].name) for one, own in alike)
            yield Disagreement(form=table.form, column=column, names=names)


def _disagree(one: SummaryTable, own: Column, other: SummaryTable, its: Column) -> bool:
    first, second = one.answers[own].name, other.answers[its].name
    both_timed = first in other.bounds[its].over and second in one.bounds[own].over
    return first != second and both_timed
