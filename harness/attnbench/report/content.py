"""What a report says, made once from the runs; the page and the Markdown file say it each in their own marks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.checks.catalogue import chapters, checks
from attnbench.records.run_file import StoredRun, merged
from attnbench.records.types import FAILURES, FRONTIER, Result, reproduce_line
from attnbench.report import tables
from attnbench.report.listings import Listing, ceilings, frontiers
from attnbench.report.sentences import fastest, headline, methods
from attnbench.report.series import Series, series_in

__all__ = ["LEGEND", "Cell", "Content", "Grouped", "Problem", "gathered"]

# Mark of a kind of status, in the order of a cell.
MARKS = (("bad", "✗"), ("good", "✓"), ("known", "~"), ("refused", "–"), ("left", "·"))
LEGEND = (
    ("good", "✓", "passed"),
    ("bad", "✗", "failed, stopped with an error, or passed where it was expected to fail"),
    ("known", "~", "failed as expected"),
    ("refused", "–", "refused, with a reason"),
    ("left", "·", "not run"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Findings of one implementation by one check: (kind, mark, number), and the same in words."""

    marks: tuple[tuple[str, str, int], ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding that is a failure, with the command that shows it again."""

    implementation: str
    check: str
    requirement: str
    case: str
    status: str
    reason: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Findings or calls of one implementation that share a reason."""

    implementation: str
    reason: str
    count: int
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that a report shows, in the order in which it shows it."""

    runs: tuple[StoredRun, ...]
    results: tuple[Result, ...]
    headline: tuple[str, ...]
    fastest: tuple[str, ...]
    # Chapter, and its checks.
    chapters: tuple[tuple[str, tuple[str, ...]], ...]
    requirements: dict[str, str]
    cells: dict[str, dict[str, Cell]]
    problems: tuple[Problem, ...]
    expected: tuple[Grouped, ...]
    refused: tuple[Grouped, ...]
    not_run: tuple[Grouped, ...]
    untimed: tuple[Grouped, ...]
    # Calls that were timed and of which no verdict came.
    undecided: tuple[Grouped, ...]
    warned: tuple[Grouped, ...]
    series: tuple[Series, ...]
    ceilings: Listing | None
    frontiers: Listing | None
    methods: tuple[str, ...]
    # Lines of run files that could not be read.
    unreadable: tuple[str, ...]


def gathered(runs: Sequence[StoredRun]) -> Content:
    """Content of a report of these runs."""
    every = merged(runs)
    results = [result for result in every if result.suite != FRONTIER]
    found = tables.findings(results)
    requirements = {name: checks()[name].requirement if name in checks() else "" for name in found["check"].unique()}
    counted = tables.matrix(results)
    series = tuple(series_in(runs, results))
    untimed, undecided = tables.untimed(results), tables.undecided(results)
    return Content(
        runs=tuple(runs),
        results=tuple(results),
        headline=tuple(headline(results, found, series)),
        fastest=tuple(line for one in series for line in fastest(one)),
        chapters=tuple(_chapters(counted)),
        requirements=requirements,
        cells={
            name: {check: _cell(counts, requirements[check]) for check, counts in row.items()}
            for name, row in counted.items()
        },
        problems=tuple(_problems(found, requirements)),
        expected=_grouped(_foreseen(found, requirements), "check"),
        refused=_grouped(found[found["status"] == "unsupported"], "case", named=1),
        not_run=_grouped(found[found["status"] == "not_run"], "case", named=1),
        untimed=_grouped(_told_by_length(untimed), "of"),
        undecided=_grouped(_told_by_length(undecided), "of"),
        warned=_grouped(found[found["warnings"] != ""].assign(reason=found["warnings"]), "check"),
        series=series,
        ceilings=ceilings(ceiling for run in runs for ceiling in run.ceilings),
        frontiers=frontiers(every),
        methods=tuple(methods(series)),
        unreadable=tuple(line for run in runs for line in run.problems),
    )


def _chapters(counted: dict[str, dict[str, Counter[str]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = next(iter(counted.values()), {})
    for chapter in (*chapters(), "other"):
        own = tuple(name for name in names if tables.chapter_of(name) == chapter)
        if own:
            yield chapter, own


def _kind(status: str) -> str:
    if status in FAILURES:
        return "bad"
    return {"passed": "good", "expected_failure": "known", "unsupported": "refused"}.get(status, "left")


def _cell(counts: Counter[str], requirement: str) -> Cell:
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[_kind(status)] += count
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return Cell(
        marks=tuple((kind, mark, kinds[kind]) for kind, mark in MARKS if kinds[kind]),
        words=f"{requirement} {words}".strip() if words else "not asked",
    )


def _problems(found: pd.DataFrame, requirements: dict[str, str]) -> Iterator[Problem]:
    for row in found[found["status"].isin(FAILURES)].itertuples():
        name, case, check = str(row.implementation), str(row.case), str(row.check)
        yield Problem(
            implementation=name,
            check=check,
            requirement=requirements[check],
            case=case,
            status=str(row.status).replace("_", " "),
            reason=str(row.reason),
            command=reproduce_line(name, case, check),
        )


def _foreseen(found: pd.DataFrame, requirements: dict[str, str]) -> pd.DataFrame:
    """Expected failures, each with the reason that was given beforehand, without what the check then found."""
    expected = found[found["status"] == "expected_failure"]
    given = [
        str(reason).partition(f": {requirements[str(check)]}")[0] if requirements[str(check)] else str(reason)
        for reason, check in zip(expected["reason"], expected["check"], strict=True)
    ]
    return expected.assign(reason=given)


def _told_by_length(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with their pass and length in words, in a column of its own."""
    return frame.assign(of=frame["pass"] + " L = " + frame["length"].astype(str))


def _grouped(frame: pd.DataFrame, column: str, *, named: int = 3) -> tuple[Grouped, ...]:
    """Rows by implementation and reason, most frequent first; ``of`` names so many values of a column."""
    made = []
    for (name, reason), rows in frame.groupby(["implementation", "reason"], sort=False):
        values = list(dict.fromkeys(rows[column]))
        more = f" and {len(values) - named} more" if len(values) > named else ""
        made.append(
            Grouped(
                implementation=str(name),
                reason=str(reason),
                count=len(rows),
                of=", ".join(map(str, values[:named])) + more,
            )
        )
    order = {name: place for place, name in enumerate(frame["implementation"].unique())}
    return tuple(sorted(made, key=lambda one: (order[one.implementation], -one.count)))
