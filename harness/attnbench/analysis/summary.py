"""The summary: one typed row for each subject at a place, from which terminal, page, Markdown and programs are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from attnbench.analysis import speed_verdict
from attnbench.analysis.answers import Answer
from attnbench.analysis.completeness import Completeness
from attnbench.analysis.exclusions import Exclusion
from attnbench.analysis.pairs import PairBounds
from attnbench.analysis.root_causes import RootCause
from attnbench.analysis.stats import Estimate, Measure
from attnbench.analysis.timing_rows import TimingRow
from attnbench.records.facts import Reason
from attnbench.records.types import Pass

__all__ = [
    "Column",
    "Conformance",
    "Decision",
    "Disagreement",
    "Mark",
    "Place",
    "SpeedCell",
    "Summary",
    "SummaryRow",
    "SummaryTable",
    "Verdict",
]

# yes: no check failed, and at least 20 cases checked. only: no check failed, but fewer cases checked. no: a check
# failed. refused: every case was refused, or the implementation cannot run here. unknown: no check ran.
Verdict = Literal["yes", "only", "no", "refused", "unknown"]
# What is shown of a comparison. baseline: the row that the others are divided by.
Mark = speed_verdict.Mark | Literal["baseline"]


class Place(NamedTuple):
    """Where calls were timed; numbers of two places are never compared."""

    machine: str
    device: str
    dtype: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """The verdict on the conformance of one subject, with the suite and the number of cases behind it."""

    verdict: Verdict
    suite: str = ""
    checked: int = 0
    # Number of refused cases by the refusal, the most frequent first.
    refused: tuple[tuple[Reason, int], ...] = ()
    # The causes of the failures, the gravest first.
    causes: tuple[RootCause, ...] = ()
    # Number of findings that failed as declared (expected failures).
    expected: int = 0
    # Number of cases on which no check ran for another reason than a refusal, by this reason.
    not_run: tuple[tuple[Reason, int], ...] = ()
    # Number of planned cases without a result, as after a run that was cut.
    missing: int = 0
    # Whether the checked calls were interpreted, so that no compiled kernel ran.
    interpreted: bool = False

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The checks that failed, each once, those of the gravest cause first."""
        return tuple(dict.fromkeys(check for cause in self.causes for check in cause.checks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One timed call: a pass at a length."""

    # The pass, and the mode of the case.
    pass_: Pass
    mode: str
    queries: int
    keys: int
    case: str

    @property
    def length(self) -> str:
        """The length as ``--lengths`` takes it: "128", or "1:512" for one query and 512 keys.

        A problem may lack one of the two numbers, which is then 0.
        """
        same = self.queries == self.keys or not self.queries or not self.keys
        return str(max(self.queries, self.keys)) if same else f"{self.queries}:{self.keys}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCell:
    """The time of one subject in one column, or why it has none."""

    # Unit: nanoseconds.
    time_ns: Estimate | None = None
    # Time divided by the baseline's time; None for the baseline, and where nothing can be compared.
    ratio: Estimate | None = None
    mark: Mark | None = None
    state: speed_verdict.State | Literal[""] = ""
    # Number of processes that timed the call.
    processes: int = 0
    # Peak memory of the call beyond its inputs, in bytes; None where not measured.
    peak_bytes: int | None = None
    # Whether all timed calls had the same input values, so that results may have been kept from earlier calls.
    fixed_values: bool = False
    # Which time was measured: device time or wall time.
    measure: Measure = "wall"
    # Why there is no time; None if there is a time, or if ``pending``.
    untimed: Reason | None = None
    # Whether the call was planned, and not reached before its run ended.
    pending: bool = False
    # Where the number is stored: id of the run, and line of its file (0 where unknown).
    run: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """One subject: an implementation at a place; for other callers a base, a model or an attention function."""

    subject: str
    conformance: Conformance
    cells: Mapping[Column, SpeedCell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """All subjects that were checked or timed at one place, at the sizes of one form."""

    place: Place
    # The problem without its length, as in the ids of cases; empty for a table without timed calls.
    form: str = ""
    baseline: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[SummaryRow, ...] = ()
    # What to use in each column; a column without an entry has no implementation that may be chosen and was timed.
    answers: Mapping[Column, Answer] = field(default_factory=dict)
    # The bounds from which each answer was chosen.
    bounds: Mapping[Column, PairBounds] = field(default_factory=dict)
    # Whether the answers are among implementations that conform. If not, none is known to conform here, and the answers
    # are among those that fail no check.
    conforming: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One column of a table: a timed call with what to use for it."""

    table: SummaryTable
    column: Column

    @property
    def answer(self) -> Answer | None:
        """What to use; None if no implementation that may be chosen was timed."""
        return self.table.answers.get(self.column)

    @property
    def cells(self) -> dict[str, SpeedCell]:
        """The cell of each implementation that was timed, by its name."""
        own = ((row.subject, row.cells.get(self.column)) for row in self.table.rows)
        return {name: cell for name, cell in own if cell is not None and cell.time_ns is not None}

    @property
    def chosen(self) -> SpeedCell | None:
        """The cell of the implementation to use."""
        return self.cells.get(self.answer.name) if self.answer else None

    @property
    def untimed(self) -> tuple[Reason, ...]:
        """Why implementations have no time, each reason once."""
        found = (row.cells[self.column].untimed for row in self.table.rows if self.column in row.cells)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    @property
    def reference(self) -> SpeedCell | None:
        """The cell of the reference."""
        return self.cells.get(self.table.baseline)

    @property
    def verdict(self) -> Conformance | None:
        """The verdict on the conformance of the implementation to use."""
        return self.conformance.get(self.answer.name) if self.answer else None

    @property
    def conformance(self) -> dict[str, Conformance]:
        """The verdict on the conformance of each implementation of the table, by its name."""
        return {row.subject: row.conformance for row in self.table.rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A call for which places choose differently, although each of them timed what the others choose."""

    form: str
    column: Column
    # The chosen implementation at each place that has an answer.
    names: tuple[tuple[Place, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that a reader must know first: the tables, place by place, the largest first."""

    tables: tuple[SummaryTable, ...]
    # How each run ended and what it lacks: only of runs that are not complete.
    incomplete: tuple[Completeness, ...] = ()
    # Measurements that cannot be right, and that no number uses.
    exclusions: tuple[Exclusion, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    # Number of runs behind the tables.
    runs: int = 1
    # Every timed call, in the order of the results.
    timings: tuple[TimingRow, ...] = ()

    @property
    def causes(self) -> tuple[tuple[Place, RootCause], ...]:
        """The causes of failures of all rows, the gravest first; a machine and device has each cause once."""
        found = {
            (table.place.machine, table.place.device, row.subject): (table.place, row.conformance.causes)
            for table in reversed(self.tables)
            for row in reversed(table.rows)
        }
        pairs = [(place, cause) for place, causes in reversed(found.values()) for cause in causes]
        return tuple(sorted(pairs, key=lambda pair: pair[1].rank))

    @property
    def machines(self) -> frozenset[str]:
        """The names of the machines."""
        return frozenset(table.place.machine for table in self.tables)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every column with a timed call, table by table."""
        found = (Decision(table=table, column=column) for table in self.tables for column in table.columns)
        return tuple(one for one in found if one.cells)
