"""Content of a report, collected once from the runs. The HTML page and the Markdown file both render it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from attnbench.analysis.coverage import count_checked, describe_few, list_coverage_lines
from attnbench.checks.catalogue import list_chapters, read_checks
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import FAILURES, FRONTIER, PERF, Result, format_reproduce_line
from attnbench.report import tables
from attnbench.report.listings import Listing, list_ceilings, list_max_lengths
from attnbench.report.sentences import describe_fastest, describe_methods, make_headline
from attnbench.report.series import Series, group_series

__all__ = ["LEGEND", "Cell", "Content", "Grouped", "Problem", "collect_content"]

# Pattern of the start of an expected failure's reason: the declared reason, a link in parentheses, and a colon. The
# reason that the check reported follows the colon.
_DECLARED = re.compile(r"(.*? \(\S*\)): ", re.DOTALL)
# Each kind of finding status with its mark. A cell of the table of findings lists its marks in this order.
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
    """Cell of the table of findings: the numbers of findings of one check on one implementation.

    ``marks`` contains the name, the mark and the number of findings of each kind of status in ``MARKS`` that occurs.
    ``words`` is a text: the requirement of the check, and the number of findings of each status.
    """

    marks: tuple[tuple[str, str, int], ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A finding whose status is a failure, with the command that reproduces the finding."""

    implementation: str
    check: str
    requirement: str
    case: str
    status: str
    reason: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Findings or calls of one implementation with the same reason; ``of`` lists their first checks, cases or calls."""

    implementation: str
    reason: str
    count: int
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that a report shows."""

    runs: tuple[StoredRun, ...]
    results: tuple[Result, ...]
    headline: tuple[str, ...]
    fastest: tuple[str, ...]
    # Each chapter of the catalogue of checks, with the names of its checks; checks without findings are left out.
    chapters: tuple[tuple[str, tuple[str, ...]], ...]
    requirements: dict[str, str]
    cells: dict[str, dict[str, Cell]]
    problems: tuple[Problem, ...]
    expected: tuple[Grouped, ...]
    refused: tuple[Grouped, ...]
    not_run: tuple[Grouped, ...]
    untimed: tuple[Grouped, ...]
    # Timed calls whose speed verdict is ``unknown`` or ``inconclusive``.
    undecided: tuple[Grouped, ...]
    warned: tuple[Grouped, ...]
    series: tuple[Series, ...]
    ceilings: Listing | None
    max_lengths: Listing | None
    methods: tuple[str, ...]
    # How much of a suite was checked on each implementation, in lines.
    coverage: tuple[str, ...]
    # Messages about lines of run files that could not be read.
    unreadable: tuple[str, ...]


def collect_content(runs: Sequence[StoredRun]) -> Content:
    """Collect the content of a report on these runs."""
    every = merge_runs(runs)
    results = [result for result in every if result.suite != FRONTIER]
    found = tables.tabulate_findings(results)
    requirements = {
        name: read_checks()[name].requirement if name in read_checks() else "" for name in found["check"].unique()
    }
    counted = tables.count_findings(results)
    series = tuple(group_series(runs, results))
    untimed, undecided = tables.tabulate_untimed(results), tables.tabulate_undecided(results)
    no_verdict = dict(_find_undecided(runs))
    return Content(
        runs=tuple(runs),
        results=tuple(results),
        headline=tuple(make_headline(results, found, series, list(no_verdict))),
        fastest=tuple(line for one in series for line in describe_fastest(one)),
        chapters=tuple(_group_checks(counted)),
        requirements=requirements,
        cells={
            name: {check: _make_cell(counts, requirements[check]) for check, counts in row.items()}
            for name, row in counted.items()
        },
        problems=tuple(_collect_problems(found, requirements)),
        expected=_group_rows(_select_expected_failures(found), "check"),
        refused=_group_rows(found[found["status"] == "unsupported"], "case", named=1),
        not_run=_group_rows(found[found["status"] == "not_run"], "case", named=1),
        untimed=_group_rows(_label_calls(untimed), "of"),
        undecided=_group_rows(_label_calls(undecided), "of"),
        warned=_group_rows(found[found["warnings"] != ""].assign(reason=found["warnings"]), "check"),
        series=series,
        ceilings=list_ceilings(ceiling for run in runs for ceiling in run.ceilings),
        max_lengths=list_max_lengths(every),
        methods=tuple(describe_methods(series)),
        coverage=(*_list_coverage(runs), *(f"no verdict on {name}: {reason}" for name, reason in no_verdict.items())),
        unreadable=tuple(line for run in runs for line in run.problems),
    )


def _list_coverage(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield lines about what was checked on each implementation, run by run."""
    for stored in runs:
        completions = {one.implementation: one for one in stored.completions}
        yield from list_coverage_lines(_select_conformance(stored), completions)


def _find_undecided(runs: Sequence[StoredRun]) -> Iterator[tuple[str, str]]:
    """Yield each implementation of a whole suite on which too few cases were checked, and the number of them.

    A run has a completion of an implementation only if the whole suite was run.
    """
    for stored in runs:
        for name in (one.implementation for one in stored.completions):
            own = [result for result in _select_conformance(stored) if result.implementation == name]
            if few := describe_few(count_checked(own)):
                yield name, few


def _select_conformance(stored: StoredRun) -> list[Result]:
    """Return the results of checking a suite, without those of timing."""
    return [result for result in stored.results if result.suite not in (PERF, FRONTIER)]


def _group_checks(counted: dict[str, dict[str, Counter[str]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = next(iter(counted.values()), {})
    for chapter in (*list_chapters(), "other"):
        own = tuple(name for name in names if tables.chapter_of(name) == chapter)
        if own:
            yield chapter, own


def _classify_status(status: str) -> str:
    if status in FAILURES:
        return "bad"
    return {"passed": "good", "expected_failure": "known", "unsupported": "refused"}.get(status, "left")


def _make_cell(counts: Counter[str], requirement: str) -> Cell:
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[_classify_status(status)] += count
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return Cell(
        marks=tuple((kind, mark, kinds[kind]) for kind, mark in MARKS if kinds[kind]),
        words=f"{requirement} {words}".strip() if words else "no findings",
    )


def _collect_problems(found: pd.DataFrame, requirements: dict[str, str]) -> Iterator[Problem]:
    for row in found[found["status"].isin(FAILURES)].itertuples():
        name, case, check = str(row.implementation), str(row.case), str(row.check)
        yield Problem(
            implementation=name,
            check=check,
            requirement=requirements[check],
            case=case,
            status=str(row.status).replace("_", " "),
            reason=str(row.reason),
            command=format_reproduce_line(name, case, check),
        )


def _select_expected_failures(found: pd.DataFrame) -> pd.DataFrame:
    """Return the expected failures among these findings, with only the declared reason in the column ``reason``."""
    expected = found[found["status"] == "expected_failure"]
    declared = [match[1] if (match := _DECLARED.match(str(reason))) else str(reason) for reason in expected["reason"]]
    return expected.assign(reason=declared)


def _label_calls(frame: pd.DataFrame) -> pd.DataFrame:
    """Add a column ``of`` that describes each call by its pass and its length."""
    return frame.assign(of=frame["pass"] + " L = " + frame["length"].astype(str))


def _group_rows(frame: pd.DataFrame, column: str, *, named: int = 3) -> tuple[Grouped, ...]:
    """Group rows by implementation and reason; the most frequent reasons of an implementation come first.

    The field ``of`` of a group is a text that lists up to ``named`` different values of ``column``.
    """
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
