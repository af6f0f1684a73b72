"""Tables of measured quantities: one for each place and pass, with one row per implementation, length and form."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any

from attnbench.analysis.plain_names import join_words
from attnbench.analysis.speed_verdict import STATES
from attnbench.cases import CaseId
from attnbench.report.forms import describe_form, describe_length, describe_pass
from attnbench.report.numbers import format_bytes, format_count, format_digits, format_estimate, format_thousands
from attnbench.report.series import Place, Series
from attnbench.report.tables import list_rows

__all__ = ["MAIN", "MOST_ROWS", "REST", "TALLEST", "Cell", "MeasureRow", "MeasureTable", "Measures", "collect_measures"]

# Most rows of all tables of a report. A browser sorts this many rows of 20 cells in a fraction of a second, and they
# take about 1 MB of the page.
MOST_ROWS = 1500
# Most rows of a table that stands on the page as it is; a longer one scrolls in a box.
TALLEST = 24
# ``MAIN``: columns of the table. ``REST``: columns of the folded table below it. Each column has a key, a heading, and
# whether it is sorted by numbers.
MAIN = (
    ("time", "time, ms", True),
    ("ratio", "time ÷ reference", True),
    ("verdict", "verdict", False),
    ("rate", "Gflop/s", True),
    ("share", "share of the ceiling", True),
    ("peak", "peak, MiB", True),
    ("workspace", "workspace, MiB", True),
    ("saved", "saved, MiB", True),
)
REST = (
    ("end_to_end", "end to end, ms", True),
    ("graph", "CUDA graph, ms", True),
    ("build", "building, ms", True),
    ("first_call", "first call, ms", True),
    ("peak_bytes", "peak, B", True),
    ("workspace_bytes", "workspace, B", True),
    ("saved_bytes", "saved, B", True),
    ("physical", "physical peak, MiB", True),
    ("outside", "outside the allocator", True),
    ("reserved", "reserved, MiB", True),
)
# Verdicts that decide nothing.
UNDECIDED = ("unknown", "inconclusive")
FIXED = (
    "Every timed call had the same input values, as the policy fixed_values declares, so results may have been kept "
    "from earlier calls."
)
# Before a time from disturbed calls, and the note at it.
ABOUT = "≈ "
DISTURBED = (
    "Disturbed: other work took the cores during too many of these calls, so the time may be far too long. It is not "
    "to be compared with other times."
)
CONTROL_FAILED = (
    "The A/A control is inconclusive: calls of the reference were disturbed, too few, or differ from those of its copy."
)
FEW = "From all calls: each process made too few for a verdict."
END_TO_END = "End to end: wall time until the device was done."
EXCEEDED = (
    "Without shares of the ceiling: a call was faster than the measured ceiling allows, so the measured ceiling is too "
    "low here."
)
# A ratio may differ from the quotient of the two times beside it. This difference is explained by the reference's time
# in the cycles of the ratio if the quotient with this time is closer by at least this share, in logarithms.
EXPLAINED = 0.5
_Columns = tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: its text, a sentence about it, and the number by which it is sorted; without a number, by its text.

    ``bound`` is the rate that bounds the call, product or copy; only a cell of the share of the ceiling has it.
    """

    text: str
    note: str = ""
    bound: str = ""
    value: float | None = None
    # Whether the number is from disturbed calls.
    disturbed: bool = False


EMPTY = Cell(text="–")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """What was measured of one implementation on one case."""

    implementation: str
    form: str
    # The length as text, and the number by which it is sorted.
    length: Cell
    # Cells by the keys of ``MAIN`` and ``REST``; a quantity that was not measured has no cell.
    cells: Mapping[str, Cell]
    # Whether the row has a time without a verdict, or its implementation failed a check.
    is_doubtful: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What was measured of one implementation on one case. In a large report, most calls have no row on the page."""

    series: Series
    implementation: str
    case: CaseId
    # Rows of timings.csv and of memory.csv; None if the call was not timed, or its memory was not measured.
    timed: Mapping[str, Any] | None
    used: Mapping[str, Any] | None
    # Time of the reference on the same case.
    base_ns: float | None = None
    is_doubtful: bool = False

    @property
    def pass_(self) -> str:
        """The pass in words."""
        return describe_pass(str((self.timed or self.used or {})["pass"]), self.case.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTable:
    """The measures of one place and pass."""

    place: Place
    pass_: str
    reference: str
    # ``forms``: whether the rows have several forms. ``form``: the form of the first row.
    forms: bool
    form: str
    main: _Columns
    rest: _Columns
    rows: tuple[MeasureRow, ...]
    # A mark for each note of the cells: the note stands below the table, and its mark in the cells.
    marks: Mapping[str, str]
    # Sentences about the whole table.
    remarks: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Pass and place in words."""
        return f"{self.pass_}, {self.place.label}"

    @property
    def tall(self) -> bool:
        """Whether the table is too long to stand on the page as it is."""
        return len(self.rows) > TALLEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """All tables of measures; ``rows`` is the number of measured rows, and ``shown`` the number in the tables."""

    tables: tuple[MeasureTable, ...]
    rows: int
    shown: int

    @property
    def by_place(self) -> tuple[tuple[Place, str, tuple[MeasureTable, ...]], ...]:
        """The tables of each place, with a line that sums them up."""
        places = dict.fromkeys(table.place for table in self.tables)
        own = {place: tuple(table for table in self.tables if table.place == place) for place in places}
        return tuple((place, _summarise(tables), tables) for place, tables in own.items())


def _summarise(tables: Sequence[MeasureTable]) -> str:
    """Return the passes, the number of rows and the verdicts of these tables, in a line."""
    rows = [row for table in tables for row in table.rows]
    verdicts = Counter(row.cells["verdict"].text for row in rows if "verdict" in row.cells)
    compared = sum(verdicts[word] for word in STATES)
    passes = join_words(dict.fromkeys(table.pass_ for table in tables))
    counted = [f"{verdicts[word]} {word}" for word in STATES if verdicts[word]]
    told = [f"{format_count(compared, 'comparison')}: {', '.join(counted)}"] if counted else []
    return "; ".join([passes, format_count(len(rows), "row"), *told])


def collect_measures(series: Sequence[Series], failing: Iterable[str] = (), *, most: int = MOST_ROWS) -> Measures:
    """Return the tables of measures, with at most ``most`` rows.

    ``failing`` are implementations that failed a check. If there are more rows, those without a verdict and those of
    failing implementations are kept first; the order of the rows does not change.
    """
    failed = frozenset(failing)
    exceeded = {one.place for one in series if one.exceeds_ceiling}
    # Of each table, the calls that may be shown: as many with a verdict, and as many without one, as a page has rows.
    by_table: dict[tuple[Place, str], list[_Call]] = {}
    counts: Counter[tuple[Place, str, bool]] = Counter()
    for one in series:
        for call in _list_calls(one, failed):
            counts[one.place, call.pass_, call.is_doubtful] += 1
            if counts[one.place, call.pass_, call.is_doubtful] <= max(most, 1):
                by_table.setdefault((one.place, call.pass_), []).append(call)
    every = [call for calls in by_table.values() for call in calls]
    # The sort is stable, so that the first rows of each kind are kept.
    kept = {id(call) for call in sorted(every, key=lambda call: not call.is_doubtful)[:most]}
    tables = []
    for (place, pass_), calls in by_table.items():
        if selected := tuple(_make_row(call) for call in calls if id(call) in kept):
            remarks = (EXCEEDED,) if place in exceeded else ()
            tables.append(_make_table(place, pass_, calls[0].series.reference, selected, remarks))
    rows = counts.total()
    return Measures(tables=tuple(tables), rows=rows, shown=min(most, rows))


def _make_table(
    place: Place, pass_: str, reference: str, rows: tuple[MeasureRow, ...], remarks: tuple[str, ...]
) -> MeasureTable:
    measured = {key for row in rows for key in row.cells}
    forms = {row.form for row in rows}
    bounds = {row.cells["share"].bound for row in rows if "share" in row.cells}
    if len(bounds) > 1:
        rows = tuple(map(_name_bound, rows))
    headings = {"ratio": f"time ÷ {reference} (below 1 is faster)"}
    if len(bounds) == 1:
        headings["share"] = f"share of the {bounds.pop()} ceiling"

    def select(columns: _Columns) -> _Columns:
        return tuple((key, headings.get(key, heading), number) for key, heading, number in columns if key in measured)

    notes = dict.fromkeys(cell.note for row in rows for cell in row.cells.values() if cell.note)
    return MeasureTable(
        place=place,
        pass_=pass_,
        reference=reference,
        forms=len(forms) > 1,
        form=rows[0].form,
        main=select(MAIN),
        rest=select(REST),
        rows=rows,
        marks={note: ascii_lowercase[place] for place, note in enumerate(notes)},
        remarks=remarks,
    )


def _name_bound(row: MeasureRow) -> MeasureRow:
    """Name the bound in the share of the ceiling, for a table whose rows have different bounds."""
    if (share := row.cells.get("share")) is None:
        return row
    named = replace(share, text=f"{share.text} of {share.bound}")
    return replace(row, cells={**row.cells, "share": named})


def _list_calls(series: Series, failing: frozenset[str]) -> list[_Call]:
    """Return the calls of each case and implementation, by mode, length and time."""
    timings = {(row["implementation"], row["case"]): row for row in list_rows(series.timings)}
    memory = {(row["implementation"], row["case"]): row for row in list_rows(series.memory)}
    reference_ns = {
        (row["run"], row["case"]): row["median_ns"] for (name, _), row in timings.items() if name == series.reference
    }
    found = []
    for key in timings.keys() | memory.keys():
        timed, used, (name, case) = timings.get(key), memory.get(key), key
        one = _Call(series=series, implementation=name, case=CaseId.parse(case), timed=timed, used=used)
        if timed is not None:
            base_ns = reference_ns.get((timed["run"], timed["case"]))
            one = replace(one, base_ns=base_ns, is_doubtful=timed["state"] in UNDECIDED)
        found.append(replace(one, is_doubtful=True) if name in failing else one)
    return sorted(found, key=_order_call)


def _order_call(call: _Call) -> tuple[str, int, int, int, float, str]:
    queries, keys = call.case.lengths
    time_ns = call.timed["median_ns"] if call.timed else math.inf
    return call.case.mode, max(queries, keys), queries, keys, time_ns, call.implementation


def _make_row(call: _Call) -> MeasureRow:
    queries, keys = call.case.lengths
    cells: dict[str, Cell] = {}
    if call.timed is not None:
        cells |= _make_time_cells(call.timed, call.series.reference, call.base_ns, withheld=call.series.exceeds_ceiling)
    if call.used is not None:
        cells |= _make_memory_cells(call.used)
    return MeasureRow(
        implementation=call.implementation,
        form=describe_form(call.series.form),
        length=Cell(text=describe_length(queries, keys), value=max(queries, keys)),
        cells=cells,
        is_doubtful=call.is_doubtful,
    )


def _make_time_cells(
    row: Mapping[Any, Any], reference: str, base_ns: float | None, *, withheld: bool
) -> dict[str, Cell]:
    """Return the cells of a time; ``withheld``: without the share of the ceiling."""
    median_ns, processes = row["median_ns"], row["processes"]
    time = format_estimate(median_ns / 1e6, row["low_ns"] / 1e6, row["high_ns"] / 1e6, processes)
    on_host = row["device"] != "cpu" and row["measure"] == "wall"
    disturbed = row["calls"] == "disturbed"
    basis = {"disturbed": DISTURBED, "few": FEW}.get(row["calls"], "")
    note = " ".join(filter(None, (basis, END_TO_END if on_host else "")))
    time = ABOUT * disturbed + time
    made = {"time": Cell(text=time, note=note, value=median_ns / 1e6, disturbed=disturbed)}
    if row["implementation"] == reference:
        # The reference is compared with its second copy only: the A/A control. It is no comparison that counts.
        made["verdict"] = Cell(text="reference", note=CONTROL_FAILED if row["state"] else "")
    elif row["state"]:
        made["verdict"] = Cell(text=row["state"], note=FIXED if row["values"] == "fixed" else "")
        if not math.isnan(row["ratio"]):
            made["ratio"] = _make_ratio_cell(row, reference, base_ns)
    else:
        made["verdict"] = Cell(text="not compared", note=f"{reference} was not timed in the same processes.")
    if not math.isnan(row["gflop_per_s"]):
        note = "From calls whose speed verdict is inconclusive." if row["state"] == "inconclusive" else ""
        note = DISTURBED if disturbed else note
        rate = ABOUT * disturbed + format_digits(row["gflop_per_s"])
        made["rate"] = Cell(text=rate, note=note, value=row["gflop_per_s"], disturbed=disturbed)
    if not math.isnan(row["share"]) and not withheld and not disturbed:
        made["share"] = Cell(text=f"{row['share'] * 100:.0f} %", value=row["share"], bound=row["bound"])
    for key, column in (
        ("end_to_end", "end_to_end_ns"), ("graph", "graph_ns"), ("build", "build_ns"), ("first_call", "first_call_ns")
    ):  # fmt: skip
        if not math.isnan(row[column]):
            made[key] = Cell(text=format_digits(row[column] / 1e6), value=row[column] / 1e6)
    return made


def _make_ratio_cell(row: Mapping[Any, Any], reference: str, base_ns: float | None) -> Cell:
    ratio = row["ratio"]
    text = format_estimate(ratio, row["ratio_low"], row["ratio_high"], row["counted"])
    return Cell(text=text, note=_explain_ratio(row, reference, base_ns), value=ratio)


def _explain_ratio(row: Mapping[Any, Any], reference: str, base_ns: float | None) -> str:
    """Return why a ratio is not the quotient of the two times beside it; empty if it nearly is the quotient.

    ``base_ns`` is the time of the reference in its own row.
    """
    if base_ns is None or math.isnan(row["reference_ns"]):
        return ""
    gap = abs(math.log(row["median_ns"] / base_ns / row["ratio"]))
    left = abs(math.log(row["median_ns"] / row["reference_ns"] / row["ratio"]))
    if left <= EXPLAINED * gap:
        return (
            f"Not the quotient of the two times: {reference} took another time in the cycles that called both "
            "implementations; timings.csv has this time as reference_ns."
        )
    if row["counted"] < row["processes"]:
        return (
            "Not the quotient of the two times: the ratio is from the undisturbed processes only; timings.csv has "
            "their number."
        )
    return "Not the quotient of the two times: the ratio is the median over cycles, which vary."


def _make_memory_cells(row: Mapping[Any, Any]) -> dict[str, Cell]:
    made = {}
    for key in ("peak", "workspace", "saved"):
        count = _read_bytes(row, f"{key}_bytes")
        if count is not None:
            made[key] = Cell(text=format_digits(count / 2**20), value=count)
            made[f"{key}_bytes"] = Cell(text=format_thousands(count), value=count)
    for key in ("physical", "reserved"):
        count = _read_bytes(row, f"{key}_bytes")
        if count is not None:
            made[key] = Cell(text=format_digits(count / 2**20), value=count)
    outside = _read_bytes(row, "outside_bytes")
    if outside is not None:
        made["outside"] = Cell(text=format_bytes(outside), value=outside)
    return made


def _read_bytes(row: Mapping[Any, Any], column: str) -> int | None:
    """Return a number of bytes, or None where the data frame has ``pandas.NA``."""
    value = row[column]
    return value if isinstance(value, int) else None
