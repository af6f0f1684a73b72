"""Tables of measures: for each place, form and pass, a row for each timed call."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from attnbench.analysis.summary import Column, Place, SpeedCell, Summary, SummaryRow, SummaryTable
from attnbench.analysis.timing_rows import TimingRow
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Memory, Result
from attnbench.report.case_forms import describe_form
from attnbench.report.kernel_paths import find_way
from attnbench.report.numbers import format_digits, format_estimate, format_thousands
from attnbench.report.overview import name_measure
from attnbench.report.summary_grid import name_pass
from attnbench.words.measures import COLUMNS, describe_mark, list_notes
from attnbench.words.summary import describe_place

__all__ = ["MOST_ROWS", "TALLEST", "MeasureRow", "MeasureTable", "Measures", "Value", "make_measures"]

# Most rows of all tables of a report. A browser sorts this many rows of 15 cells in a fraction of a second, and they
# take about 1 MB of the page.
MOST_ROWS = 1500
# Most rows of a table that stands on the page as it is; a longer one scrolls in a box.
TALLEST = 24
# Largest share of the ceiling; beyond it, the measured ceiling is too low, and no share of its place is shown.
MOST_SHARE = 1.005
# Unit: bytes in a MiB, nanoseconds in a millisecond.
MIB, MS = 2**20, 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A measured quantity: its text, and the number by which it is sorted; without a number, by its text."""

    text: str
    number: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """What was measured of one implementation on one case."""

    anchor: str
    implementation: str
    length: Value
    # By the keys of ``COLUMNS``; a quantity that was not measured has no value.
    values: Mapping[str, Value]
    # Whether the time is from disturbed calls.
    disturbed: bool
    # Whether the comparison is not decided, or the implementation fails a check: such rows are kept first.
    doubtful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTable:
    """The measures of one place, form and pass."""

    title: str
    place: str
    # The key and the heading of each measured column, and whether it is sorted by numbers.
    columns: tuple[tuple[str, str, bool], ...]
    rows: tuple[MeasureRow, ...]
    # Sentences about marks in the table.
    notes: tuple[str, ...]

    @property
    def tall(self) -> bool:
        """Whether the table is too long to stand on the page as it is."""
        return len(self.rows) > TALLEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All tables of measures; ``rows`` is the number of measured calls, and ``shown`` the number in the tables."""

    tables: tuple[MeasureTable, ...]
    rows: int
    shown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One timed or measured call; in a large report, most calls have no row on the page."""

    table: SummaryTable
    name: str
    column: Column
    cell: SpeedCell
    timing: TimingRow | None
    doubtful: bool

    @property
    def order(self) -> tuple[int, int, int, float, str]:
        """Calls are sorted by length, then by time."""
        time = self.cell.time_ns.value if self.cell.time_ns else float("inf")
        lengths = self.column.queries, self.column.keys
        return max(lengths), *lengths, time, self.name


# Results by machine, number of threads, implementation and case.
_Measured = Mapping[tuple[str, int, str, str], Result]


def make_measures(
    summary: Summary, runs: Sequence[StoredRun], results: Sequence[Result], *, most: int = MOST_ROWS
) -> Measures:
    """Return the tables of measures, with at most ``most`` rows; doubtful rows are kept first."""
    timings = {(row.run, row.implementation, row.case): row for row in summary.timings}
    calls = [call for table in summary.tables for call in _list_calls(table, timings)]
    kept = {id(call) for call in sorted(calls, key=lambda call: not call.doubtful)[:most]}
    shown = [call for call in calls if id(call) in kept]
    wanted = {(call.name, call.column.case) for call in shown}
    places = {stored.run.id: (stored.run.machine.name, stored.run.threads) for stored in runs}
    measured = {(*places[one.run], *key): one for one in results if (key := (one.implementation, one.case)) in wanted}
    exceeded = {
        table.place
        for table in summary.tables
        for row in table.rows
        for column, cell in row.cells.items()
        if (own := timings.get((cell.run, row.subject, column.case))) and (own.rates.share or 0.0) > MOST_SHARE
    }
    by_pass = groupby(shown, key=lambda call: (id(call.table), name_pass(call.column)))
    tables = tuple(_make_table(list(own), measured, exceeded) for _, own in by_pass)
    return Measures(tables=tables, rows=len(calls), shown=len(shown))


def _list_calls(table: SummaryTable, timings: Mapping[tuple[str, str, str], TimingRow]) -> Iterator[_Call]:
    """Yield the calls of a table, pass by pass."""
    for _, columns in groupby(table.columns, key=name_pass):
        found = [
            _Call(
                table=table,
                name=row.subject,
                column=column,
                cell=cell,
                doubtful=_is_doubtful(row, cell),
                timing=timings.get((cell.run, row.subject, column.case)),
            )
            for column in columns
            for row in table.rows
            if (cell := row.cells.get(column)) and (cell.time_ns or cell.peak_bytes is not None)
        ]
        yield from sorted(found, key=lambda call: call.order)


def _is_doubtful(row: SummaryRow, cell: SpeedCell) -> bool:
    wrong = row.conformance.verdict == "no"
    return wrong or cell.mark == "undecided"


def _make_table(calls: Sequence[_Call], measured: _Measured, exceeded: set[Place]) -> MeasureTable:
    table, first = calls[0].table, calls[0]
    rows = tuple(_make_row(call, measured, withheld=table.place in exceeded) for call in calls)
    have = {key for row in rows for key in row.values}
    place = describe_place(table.place)
    timings = [call.timing for call in calls if call.timing]
    return MeasureTable(
        title=f"{name_pass(first.column)}: {place}; {describe_form(table.form)}",
        place=place,
        columns=tuple((key, heading.format(baseline=table.baseline), number)
                      for key, (heading, number) in COLUMNS.items() if key in have),
        rows=rows,
        notes=tuple(list_notes(timings, withheld=table.place in exceeded)),
    )  # fmt: skip


def _make_row(call: _Call, measured: _Measured, *, withheld: bool) -> MeasureRow:
    timing, case = call.timing, call.column.case
    place = call.table.place
    result = measured.get((place.machine, place.threads, call.name, case))
    values: dict[str, Value] = {}
    if timing:
        values |= _list_times(timing, withheld=withheld)
    if result and result.memory:
        values |= _list_bytes(result.memory)
    if result and result.kernels:
        values["path"] = Value(text=find_way(result.kernels))
    return MeasureRow(
        anchor=name_measure(timing.run if timing else "", call.name, case),
        implementation=call.name,
        length=Value(text=call.column.length, number=max(call.column.queries, call.column.keys)),
        values=values,
        disturbed=timing is not None and timing.basis == "disturbed",
        doubtful=call.doubtful,
    )


def _list_times(timing: TimingRow, *, withheld: bool) -> dict[str, Value]:
    """Return the values of a timed call; ``withheld``: without the share of the ceiling."""
    time, ratio, rates = timing.time, timing.ratio, timing.rates
    shown = format_estimate(time.value / MS, time.low / MS, time.high / MS, time.processes)
    disturbed = timing.basis == "disturbed"
    values = {
        "time": Value(text=("≈ " if disturbed else "") + shown, number=time.value / MS),
        "processes": Value(text=str(time.processes), number=time.processes),
        "verdict": Value(text=describe_mark(timing)),
    }
    if ratio and not timing.is_reference:
        text = format_estimate(ratio.value, ratio.low, ratio.high, ratio.processes)
        values["ratio"] = Value(text=text + " *" * (timing.reference_ns is not None), number=ratio.value)
    if rates.gflop_per_s is not None:
        values["rate"] = Value(text=format_digits(rates.gflop_per_s), number=rates.gflop_per_s)
    if rates.share is not None and not withheld and not disturbed:
        values["share"] = Value(text=f"{100 * rates.share:.0f} % of {rates.bound}", number=rates.share)
    numbers = {
        "end_to_end": timing.end_to_end_ns, "graph": timing.graph_ns, "build": timing.build_ns,
        "first_call": timing.first_call_ns,
    }  # fmt: skip
    return values | {
        key: Value(text=format_digits(ns / MS), number=ns / MS) for key, ns in numbers.items() if ns is not None
    }


def _list_bytes(memory: Memory) -> dict[str, Value]:
    numbers = {
        "peak": memory.peak_bytes, "workspace": memory.workspace_bytes, "saved": memory.saved_bytes,
        "physical": memory.physical_bytes, "outside": memory.outside_bytes, "reserved": memory.reserved_bytes,
    }  # fmt: skip
    return {
        key: Value(text=format_digits(count / MIB) if abs(count) >= 1024 else f"{format_thousands(count)} B",
                   number=count)
        for key, count in numbers.items()
        if count is not None
    }  # fmt: skip
