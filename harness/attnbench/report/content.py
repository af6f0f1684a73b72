"""Content of a report, collected once from the runs. The HTML page and the Markdown file both render it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.analysis.completeness import find_unfinished, judge_completeness, list_damage
from attnbench.analysis.coverage import MEANING, count_checked, describe_few, list_coverage_lines
from attnbench.analysis.left_out import LeftOut, count_left_out, leave_out
from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import Summary
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import FAILURES, FRONTIER, PERF, Result
from attnbench.report.checked import find_checked
from attnbench.report.decisions import Decisions, collect_decisions
from attnbench.report.failures import Failures, collect_failures
from attnbench.report.groups import (
    Folded,
    Grouped,
    describe_unmeasured,
    fold_groups,
    group_rows,
    label_calls,
    select_expected_failures,
    select_warned,
)
from attnbench.report.listings import Listing, list_ceilings, list_max_lengths
from attnbench.report.maps import Maps, collect_maps
from attnbench.report.matrix import Matrix, make_matrix
from attnbench.report.measures import Measures, collect_measures
from attnbench.report.methods import describe_methods, explain_states
from attnbench.report.missing import Missing, collect_missing, describe_pending
from attnbench.report.nodes import Nodes, collect_nodes
from attnbench.report.series import Series, describe_undrawn, group_series
from attnbench.report.tables import Tables, load_spelled, select_undecided, tabulate
from attnbench.report.verdict import Verdict, collect_verdict

__all__ = ["Content", "collect_content"]

# What an incomplete run means for a section of the report.
WARNINGS = {
    "failures": "what was not checked may fail",
    "conformance": "the numbers count the findings so far",
}
# Sections that lack nothing if only timings are missing.
OF_CHECKS = ("failures", "conformance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Everything that a report shows."""

    summary: Summary
    runs: tuple[StoredRun, ...]
    results: tuple[Result, ...]
    # All tables of the results, from which the CSV files are written.
    tables: Tables
    verdict: Verdict
    decisions: Decisions
    # Where nodes of the same kind disagree.
    nodes: Nodes
    maps: Maps
    measures: Measures
    # The findings of each machine, counted.
    matrices: tuple[Matrix, ...]
    failures: Failures
    expected: tuple[Grouped, ...]
    refused: tuple[Grouped, ...]
    not_run: tuple[Grouped, ...]
    untimed: tuple[Grouped, ...]
    # Planned calls that were not reached before their run ended, in words; empty if all were.
    pending: str
    missing: tuple[Missing, ...]
    # A sentence about what was not measured because it failed; empty if there is nothing.
    unmeasured: str
    # Why speed verdicts are ``unknown`` or ``inconclusive``, and what may decide them; empty if none is.
    states: str
    # Timed calls whose speed verdict is ``unknown`` or ``inconclusive``.
    undecided: tuple[Grouped, ...]
    warned: tuple[Grouped, ...]
    series: tuple[Series, ...]
    # A sentence about how many series have figures; empty if all have them.
    undrawn: str
    ceilings: Listing | None
    max_lengths: Listing | None
    methods: tuple[str, ...]
    # Lines about what was checked on each implementation, and about implementations on which too few cases were checked
    # for a verdict.
    coverage: tuple[str, ...]
    # Messages about lines of run files that could not be read.
    unreadable: tuple[str, ...]
    # Measurements that cannot be right; no number of the report uses them.
    left_out: tuple[LeftOut, ...]
    # Implementations of which no check ran, because every case is refused or was not run.
    silent: frozenset[str]

    @property
    def left_out_count(self) -> str:
        """How much was left out, such as "3 timings, 1 ceiling"; empty if nothing was."""
        return count_left_out(self.left_out)

    @property
    def is_checked(self) -> bool:
        """Whether there is any finding."""
        return any(matrix.names or matrix.unchecked for matrix in self.matrices)

    def warn(self, section: str) -> str:
        """Return what an incomplete run means for this section; empty if nothing is missing from the section."""
        whole = self.verdict.complete or (section in OF_CHECKS and self.verdict.checks_complete)
        if whole:
            return ""
        if section not in OF_CHECKS:
            return f"{self.verdict.incomplete}. {self.verdict.extent}"
        return f"{self.verdict.incomplete}: {WARNINGS[section]}."

    @property
    def without_failures(self) -> str:
        """What is said in place of failures if there are none."""
        if not self.is_checked:
            return "Nothing was checked."
        return "None." if self.verdict.checks_complete else "None in what was checked."

    @property
    def requirements(self) -> dict[str, str]:
        """What each check requires; empty for a check that this version does not know."""
        return {check: text for matrix in self.matrices for check, text in matrix.requirements.items()}

    @property
    def folded(self) -> tuple[Folded, ...]:
        """The folded tables: expected failures, refused cases, checks that were not run, and warnings."""
        return tuple(
            fold_groups(
                expected=self.expected,
                refused=self.refused,
                not_run=self.not_run,
                warned=self.warned,
                machines={stored.run.id: stored.run.machine.name for stored in self.runs},
                silent=self.silent,
            )
        )


def collect_content(runs: Sequence[StoredRun]) -> Content:
    """Collect the content of a report on these runs; what cannot be right is left out first, and named."""
    runs, left_out = leave_out(runs)
    every = merge_runs(runs)
    results = [result for result in every if result.suite != FRONTIER]
    compact = any(run.compact for run in runs)
    summary = summarize(runs, load_spelled)
    made = tabulate(results, summary.timings, compact=compact)
    found, untimed, undecided = made.findings, made.untimed, select_undecided(made.timings)
    failures = collect_failures(runs, results)
    series = tuple(group_series(runs, results, made))
    judged = [judge_completeness(run) for run in runs]
    unfinished = find_unfinished(judged)
    decisions = collect_decisions(runs, results, series, unfinished)
    no_verdict = dict(_find_undecided(runs))
    verdict = collect_verdict(runs, results, judged)
    not_run = group_rows(found[found["status"] == "not_run"], "case", named=1)
    return Content(
        runs=tuple(runs),
        summary=summary,
        results=tuple(results),
        tables=made,
        verdict=verdict,
        decisions=decisions,
        nodes=collect_nodes(runs),
        maps=collect_maps(runs, decisions.entries, untimed),
        measures=collect_measures(series, found[found["status"].isin(FAILURES)]["implementation"].unique()),
        matrices=tuple(make_matrix(runs, results, failures.anchors, unfinished)),
        failures=failures,
        expected=group_rows(select_expected_failures(found), "check"),
        refused=group_rows(found[found["status"] == "unsupported"], "case", named=1),
        not_run=not_run,
        untimed=group_rows(label_calls(untimed), "of"),
        pending=describe_pending(untimed),
        missing=collect_missing(runs, verdict, not_run, untimed, decisions),
        unmeasured=describe_unmeasured(untimed),
        silent=frozenset(result.implementation for result in results) - find_checked(results),
        states=" ".join(explain_states(made.timings)),
        undecided=group_rows(label_calls(undecided), "of"),
        warned=group_rows(select_warned(found), "check"),
        series=series,
        undrawn=describe_undrawn(series),
        ceilings=list_ceilings(ceiling for run in runs for ceiling in run.ceilings),
        max_lengths=list_max_lengths(every),
        methods=tuple(describe_methods(series, compact=compact)),
        coverage=(*_list_coverage(runs), *(f"no verdict on {name}: {reason}" for name, reason in no_verdict.items())),
        unreadable=tuple(line for run in runs for line in list_damage(run)),
        left_out=left_out,
    )


def _list_coverage(runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield lines about what was checked on each implementation, run by run."""
    checked = {stored.run.id: own for stored in runs if (own := _select_conformance(stored))}
    if checked:
        yield MEANING
    for stored in runs:
        own = checked.get(stored.run.id, [])
        if not own:
            continue
        completions = {one.implementation: one for one in stored.completions}
        known = stored.run.planned
        planned = {name: known[name].cases if name in known else 0 for name in stored.run.implementations}
        lines = list_coverage_lines(own, completions, planned)
        yield from (f"{stored.run.id}: {line}" if len(runs) > 1 else line for line in lines)


def _find_undecided(runs: Sequence[StoredRun]) -> Iterator[tuple[str, str]]:
    """Yield each implementation on which a suite checked too few cases for a verdict, and the reason in words.

    Only implementations with a completion are considered: a run that selects cases or checks completes no suite.
    """
    for stored in runs:
        for name in (one.implementation for one in stored.completions):
            own = [result for result in _select_conformance(stored) if result.implementation == name]
            if few := describe_few(count_checked(own)):
                yield name, few


def _select_conformance(stored: StoredRun) -> list[Result]:
    """Return the results of checking a suite, without those of timing."""
    return [result for result in stored.results if result.suite not in (PERF, FRONTIER)]
