"""The summary: one typed row for each subject at a place, from which terminal, page, Markdown and programs are made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attnbench.analysis.answers import Answer
from attnbench.analysis.speed_verdict import State
from attnbench.analysis.stats import Estimate

__all__ = ["Column", "Conformance", "Place", "SpeedCell", "Summary", "SummaryRow", "SummaryTable", "Verdict"]

# yes: no check failed, and at least 20 cases checked. only: no check failed, but fewer cases checked. no: a check
# failed. refused: every case was refused, or the implementation cannot run here. unknown: no check ran.
Verdict = Literal["yes", "only", "no", "refused", "unknown"]
# faster, slower, same: the speed verdicts. not_slower: the interval's upper end is below 1.01. not_faster: its lower
# end is above 0.99. undecided: everything else that was compared. baseline: the row that the others are divided by.
Mark = Literal["faster", "slower", "same", "not_slower", "not_faster", "undecided", "baseline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
    # Number of refused cases by the refusal (``records.facts``), the most frequent first.
    refused: tuple[tuple[Any, int], ...] = ()
    # The causes of the failures (``analysis.root_causes.RootCause``), the gravest first.
    causes: tuple[Any, ...] = ()
    # Number of planned cases without a result, as after a run that was cut.
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One timed call: a pass at a length."""

    # "forward" or "forward+backward", and the mode of the case.
    pass_: str
    mode: str
    queries: int
    keys: int
    case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedCell:
    """The time of one subject in one column, or why it has none."""

    # Unit: nanoseconds.
    time_ns: Estimate | None = None
    # Time divided by the baseline's time; None for the baseline, and where nothing can be compared.
    ratio: Estimate | None = None
    mark: Mark | None = None
    state: State | Literal[""] = ""
    # Number of processes that timed the call, and how many were planned.
    processes: int = 0
    planned: int = 0
    # Peak memory of the call beyond its inputs, in bytes; None where not measured.
    peak_bytes: int | None = None
    # Why there is no time: a fact of ``records.facts``; None if there is a time.
    untimed: Any = None
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
    # What to use in each column; a column without an entry has no implementation that conforms and was timed.
    answers: Mapping[Column, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything that a reader must know first: the tables, place by place, the largest first."""

    tables: tuple[SummaryTable, ...]
