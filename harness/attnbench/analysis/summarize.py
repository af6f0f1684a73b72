"""Makes the summary from stored runs: one table for each place and form, one row for each implementation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from attnbench.analysis.answers import choose, list_possible
from attnbench.analysis.completeness import judge_completeness
from attnbench.analysis.coverage import is_checked, judge_conformance
from attnbench.analysis.exclusions import exclude_implausible
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
from attnbench.analysis.timing_rows import find_reference, measure_calls
from attnbench.cases import CaseId
from attnbench.records.facts import Reason
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import PERF, WITHOUT_CASES, Result, find_pass

__all__ = ["select_choosable", "summarize"]

# Passes in the order of their columns; others come last.
PASSES = ("forward", "forward+backward")
# Order of rows without a time, by the verdict on conformance.
UNTIMED_ORDER = ("yes", "only", "unknown", "no", "refused")


class _Where(NamedTuple):
    """Where an implementation was checked: one verdict on its conformance holds for all dtypes and threads."""

    machine: str
    device: str


class _Key(NamedTuple):
    """What the timed calls of a table have in common."""

    place: Place
    operator: str
    form: str


class _Maker:
    """What is known of the runs, indexed for the tables."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self.runs = {stored.run.id: stored for stored in runs}
        self.results = [result for result in merge_runs(runs) if result.suite not in WITHOUT_CASES]
        self.judged = [judge_completeness(stored) for stored in runs]
        self.names = _index_names(runs, self.results, self.runs)
        self.conformance = dict(self._judge())
        self.choosable = {where: select_choosable(self._select_conformance(where)) for where in self.names}
        ceilings = [ceiling for stored in runs for ceiling in stored.ceilings]
        self.calls = measure_calls(self.results, ceilings, may_choose=self.may_choose)
        self.rows = {(row.run, row.implementation, row.case): row for row in self.calls.rows}

    def may_choose(self, result: Result) -> bool:
        """Whether a timed implementation may be what to use.

        Calls that all have the same values may be shorter because results are kept from earlier calls.
        """
        fixed = result.timing is not None and result.timing.values == "fixed"
        return not fixed and result.implementation in self.choosable[self.locate(result)]

    def _select_conformance(self, where: _Where) -> dict[str, Conformance]:
        return {name: self.conformance[where, name] for name in self.names[where]}

    def locate(self, result: Result) -> _Where:
        """Return where a result was made."""
        return _Where(self.runs[result.run].run.machine.name, CaseId.parse(result.case).device)

    def _judge(self) -> Iterator[tuple[tuple[_Where, str], Conformance]]:
        missing: Counter[tuple[str, str]] = Counter()
        for found in self.judged:
            missing.update({(found.machine, one.implementation): one.cases for one in found.unfinished})
        own: dict[tuple[_Where, str], list[Result]] = {
            (where, name): [] for where, names in self.names.items() for name in names
        }
        for result in self.results:
            own[self.locate(result), result.implementation].append(result)
        for (where, name), results in own.items():
            causes = find_root_causes(results)
            judged = judge_conformance(results, missing=missing[where.machine, name], causes=causes)
            expected = sum(f.status == "expected_failure" for result in results for f in result.findings)
            yield (where, name), replace(judged, expected=expected, not_run=tuple(_count_not_run(results)))

    def make_tables(self) -> Iterator[SummaryTable]:
        """Yield a table for each place and form of timed calls, then one for what was only checked at a place."""
        timed: dict[_Key, list[Result]] = {}
        for result in self.results:
            if result.suite == PERF:
                timed.setdefault(self._find_key(result), []).append(result)
        for key, results in timed.items():
            yield self._make_table(key, results)
        shown = {(_Where(key.place.machine, key.place.device), key.operator) for key in timed}
        for where, names in self.names.items():
            rest = [name for name, operators in names.items() if not any((where, one) in shown for one in operators)]
            if rest and (not any(key[0] == where for key in shown) or any(names[name] for name in rest)):
                threads = next(s.run.threads for s in self.runs.values() if s.run.machine.name == where.machine)
                place = Place(machine=where.machine, device=where.device, dtype="", threads=threads)
                rows = [SummaryRow(subject=name, conformance=self.conformance[where, name]) for name in rest]
                yield SummaryTable(place=place, rows=tuple(_sort_rows(rows, (), "")))

    def _find_key(self, result: Result) -> _Key:
        case, run = CaseId.parse(result.case), self.runs[result.run].run
        place = Place(machine=run.machine.name, device=case.device, dtype=case.dtype, threads=run.threads)
        return _Key(place, case.operator, case.form)

    def _make_table(self, key: _Key, results: Sequence[Result]) -> SummaryTable:
        where = _Where(key.place.machine, key.place.device)
        columns = tuple(sorted({_make_column(result.case) for result in results}, key=_order_column))
        baseline = find_reference(results[0].case)
        cells: defaultdict[str, dict[Column, SpeedCell]] = defaultdict(dict)
        for result in results:
            cells[result.implementation][_make_column(result.case)] = self._make_cell(result)
        for name, column, cell in self._list_unreached(results, cells):
            cells[name][column] = cell
        # Beside those that were to be timed, all that were checked at the place and compute this operator.
        known = [name for name, operators in self.names[where].items() if not operators or key.operator in operators]
        rows = [
            SummaryRow(subject=name, conformance=self.conformance[where, name], cells=cells[name])
            for name in dict.fromkeys((*cells, *known))
        ]
        bounds = {column: found for column in columns if (found := self._find_bounds(results, column.case)) is not None}
        chosen = {
            column: answer
            for column, own in bounds.items()
            if (answer := choose(own, self._list_times(results, column.case), own.over))
        }
        conforming = any(self.conformance[where, name].verdict == "yes" for name in self.choosable[where])
        return SummaryTable(
            place=key.place,
            form=key.form,
            baseline=baseline,
            columns=columns,
            rows=tuple(_sort_rows(rows, columns, baseline)),
            answers=chosen,
            bounds=bounds,
            conforming=conforming,
        )

    def _make_cell(self, result: Result) -> SpeedCell:
        row, memory = self.rows.get((result.run, result.implementation, result.case)), result.memory
        peak = memory.peak_bytes if memory else None
        if row is None or result.timing is None:
            return SpeedCell(
                untimed=result.untimed, pending=result.untimed is None, peak_bytes=peak, run=result.run,
            )  # fmt: skip
        line = self.runs[result.run].timed_lines.get((result.implementation, result.case), 0)
        return SpeedCell(
            time_ns=row.time,
            ratio=None if row.is_reference else row.ratio,
            mark="baseline" if row.is_reference else row.mark,
            state=row.state or "",
            processes=row.verdict.of if row.verdict else row.time.processes,
            peak_bytes=peak,
            fixed_values=row.values == "fixed",
            measure=row.measure,
            run=result.run,
            line=line,
        )

    def _list_unreached(
        self, results: Sequence[Result], cells: Mapping[str, Mapping[Column, SpeedCell]]
    ) -> Iterator[tuple[str, Column, SpeedCell]]:
        """Yield the calls without any result whose run lacks timings of the implementation."""
        lacking = {(found.run, one.implementation) for found in self.judged for one in found.unfinished if one.timings}
        planned = dict.fromkeys((result.run, result.case) for result in results)
        for run, case in planned:
            column = _make_column(case)
            for name in self.runs[run].run.implementations:
                if (run, name) in lacking and column not in cells.get(name, {}):
                    yield name, column, SpeedCell(pending=True, run=run)

    def _find_bounds(self, results: Sequence[Result], case: str) -> PairBounds | None:
        """Return the bounds of the run that timed most of those that may be chosen; None if none was timed.

        Implementations that another run timed cannot be compared with these.
        """
        runs = {one.run for one in results if one.case == case and one.timing is not None}
        found = [(len(own.over), run, own) for run in runs if (own := self.calls.bounds.get((run, case))) and own.over]
        return max(found, key=lambda one: one[:2])[2] if found else None

    def _list_times(self, results: Sequence[Result], case: str) -> dict[str, float]:
        rows = (self.rows.get((one.run, one.implementation, one.case)) for one in results if one.case == case)
        return {row.implementation: row.time.value for row in rows if row is not None}


def summarize(runs: Sequence[StoredRun]) -> Summary:
    """Return the summary of these runs; what cannot be right is left out first, and named."""
    whole, exclusions = exclude_implausible(runs)
    maker = _Maker(whole)
    tables = tuple(_leave_out_repeated(_sort_tables(list(maker.make_tables()))))
    return Summary(
        tables=tables,
        incomplete=tuple(found for found in maker.judged if not found.complete),
        exclusions=exclusions,
        disagreements=tuple(_list_disagreements(tables)),
        runs=len(whole),
        timings=maker.calls.rows,
    )


def select_choosable(conformance: Mapping[str, Conformance]) -> frozenset[str]:
    """Return which implementations may be chosen: those that conform.

    If none is known to conform, as after a profile alone, those that fail no check.
    """
    conform = {name for name, one in conformance.items() if one.verdict == "yes" and not one.missing}
    return frozenset(conform or {name for name, one in conformance.items() if one.verdict in ("yes", "only")})


def _index_names(
    runs: Sequence[StoredRun], results: Sequence[Result], of_id: Mapping[str, StoredRun]
) -> dict[_Where, dict[str, set[str]]]:
    """Return the implementations of each machine and device, with their operators; none is known without a result."""
    found: defaultdict[_Where, dict[str, set[str]]] = defaultdict(dict)
    devices: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for result in results:
        case = CaseId.parse(result.case)
        devices[result.run][case.device] = None
        own = found[_Where(of_id[result.run].run.machine.name, case.device)]
        own.setdefault(result.implementation, set()).add(case.operator)
    for stored in runs:
        for device in devices[stored.run.id] or ({"cpu": None} if stored.run.implementations else {}):
            own = found[_Where(stored.run.machine.name, device)]
            for name in stored.run.implementations:
                own.setdefault(name, set())
    return dict(found)


def _count_not_run(results: Iterable[Result]) -> Iterator[tuple[Reason, int]]:
    """Yield why cases of suites were not checked, except for refusals, each with the number of cases."""
    counts: Counter[Reason] = Counter()
    for result in results:
        if result.suite != PERF and not is_checked(result):
            silent = next((finding for finding in result.findings if finding.status == "not_run"), None)
            if silent is not None:
                counts[silent.facts[0] if silent.facts else silent.reason] += 1
    yield from counts.most_common()


def _make_column(case: str) -> Column:
    parsed = CaseId.parse(case)
    queries, keys = parsed.lengths
    return Column(pass_=find_pass(case), mode=parsed.mode, queries=queries, keys=keys, case=case)


def _order_column(column: Column) -> tuple[int, str, bool, str, int, int]:
    rank = PASSES.index(column.pass_) if column.pass_ in PASSES else len(PASSES)
    plain = column.mode in ("inference", "train")
    return rank, column.pass_, not plain, column.mode, max(column.queries, column.keys), column.queries


def _sort_tables(tables: Sequence[SummaryTable]) -> list[SummaryTable]:
    """Sort tables place by place: the place with the most times first, and its table with the most times first."""
    times = {
        id(table): sum(cell.time_ns is not None for row in table.rows for cell in row.cells.values())
        for table in tables
    }
    of_place: Counter[Place] = Counter()
    for table in tables:
        of_place[table.place] += times[id(table)]

    def rank(table: SummaryTable) -> tuple[object, ...]:
        return -of_place[table.place], *table.place, -times[id(table)], table.form

    return sorted(tables, key=rank)


def _leave_out_repeated(tables: Iterable[SummaryTable]) -> Iterator[SummaryTable]:
    """Leave out rows that say nothing new: what cannot run, or has no calls there, is in one table of each device."""
    shown: set[tuple[_Where, str]] = set()
    for table in tables:
        where = _Where(table.place.machine, table.place.device)
        new = [
            row
            for row in table.rows
            if (where, row.subject) not in shown or (row.cells and row.conformance.verdict != "refused")
        ]
        shown.update((where, row.subject) for row in table.rows)
        yield replace(table, rows=tuple(new))


def _sort_rows(rows: Iterable[SummaryRow], columns: Sequence[Column], baseline: str) -> list[SummaryRow]:
    """Sort rows: the baseline, by ratio in the last column, the untimed by conformance, and what cannot run here."""

    def rank(row: SummaryRow) -> tuple[int, int, float, str]:
        if row.subject == baseline:
            return 0, 0, 0.0, ""
        for back, column in enumerate(reversed(columns)):
            cell = row.cells.get(column)
            if cell is not None and cell.ratio is not None:
                return 1, back, cell.ratio.value, row.subject
        if any(cell.time_ns is not None for cell in row.cells.values()):
            return 2, 0, 0.0, row.subject
        return 3, UNTIMED_ORDER.index(row.conformance.verdict), 0.0, row.subject

    return sorted(rows, key=rank)


def _list_disagreements(tables: Iterable[SummaryTable]) -> Iterator[Disagreement]:
    """Yield the calls for which the choice of one place cannot be the fastest at another place, and the reverse."""
    alike: defaultdict[tuple[object, ...], list[tuple[SummaryTable, Column]]] = defaultdict(list)
    for table in tables:
        for column in table.answers:
            place = table.place
            key = (table.form, column.pass_, column.mode, column.queries, column.keys, place.dtype, place.threads)
            alike[key].append((table, column))
    for group in alike.values():
        if any(_is_excluded(one, other) and _is_excluded(other, one) for one, other in combinations(group, 2)):
            names = tuple((table.place, table.answers[column].name) for table, column in group)
            yield Disagreement(form=group[0][0].form, column=group[0][1], names=names)


def _is_excluded(here: tuple[SummaryTable, Column], there: tuple[SummaryTable, Column]) -> bool:
    """Whether the choice of one place was timed at another one, and cannot be the fastest there."""
    name, bounds = here[0].answers[here[1]].name, there[0].bounds[there[1]]
    return name in bounds.over and name not in list_possible(bounds)
