"""Tests of the first screen of a report: who is wrong, what to use, what is missing, and where cells lead."""

import re
from collections.abc import Sequence
from dataclasses import replace

from attnbench.records.run_file import StoredRun
from attnbench.records.types import End, Finding, Planned, Result, StoredJob
from attnbench.report import collect
from attnbench.report.overview import MOST_COLUMNS, MOST_ROWS, Overview, OverviewRow, make_overview
from rendered_reports import render_page
from timed_runs import REFERENCE, case_of, check, store, time_calls

LENGTHS = (32, 128)
WRONG = Finding(check="forward_parity", status="failed", reason="off", measured=2.0, allowed=1.0)


def make(*runs: StoredRun) -> Overview:
    """Return the first screen of a report on these runs."""
    content = collect(runs)
    return make_overview(content.summary, content.failures)


def check_all(name: str, count: int = 25, *, run: str = "run-1") -> list[Result]:
    """Return passed results on as many cases."""
    return [check(name, case_of(length), run=run) for length in range(1, count + 1)]


def time_all(name: str, *ratios: float, run: str = "run-1") -> list[Result]:
    """Return timed calls at each length."""
    return [time_calls(name, *ratios, case=case_of(length), run=run) for length in LENGTHS]


def fail(results: Sequence[Result]) -> list[Result]:
    """Return these results with a failed check each."""
    return [replace(result, findings=(WRONG,)) for result in results]


def finish(stored: StoredRun) -> StoredRun:
    """Return a run that says what it planned, and that it ended."""
    names = {result.implementation for result in stored.results}
    planned = {name: Planned(cases=25, timed=2) for name in names}
    return replace(
        stored,
        run=replace(stored.run, implementations=tuple(names), job=StoredJob(planned=planned)),
        end=End(run="run-1", time="t", outcome="finished", exit_code=0),
    )


def find_row(overview: Overview, name: str) -> OverviewRow:
    """Return the row of an implementation in the first table."""
    return next(row for row in overview.tables[0].rows if row.name == name)


GOOD = [*check_all(REFERENCE), *check_all("quick"), *time_all(REFERENCE), *time_all("quick", 0.5)]


def test_the_chosen_cell_is_marked_and_leads_to_its_measures() -> None:
    """The fastest that conforms is what to use: its cells say so, and lead to rows that are on the page."""
    overview = make(store(GOOD))
    row = find_row(overview, "quick")
    assert [(cell.text, cell.sign, cell.shade, cell.chosen) for cell in row.cells] == [
        ("0.50", "-", "faster-3", True)
    ] * 2
    assert [(answer.text, answer.sign) for answer in overview.tables[0].answers] == [("quick", "≤ 0 %")] * 2
    page = render_page([store(GOOD)])
    assert all(f'id="{cell.link}"' in page for cell in row.cells)
    assert (overview.is_wrong, row.conformance.link, row.verdict) == (False, "conformance", "yes")


def test_what_fails_is_named_first_and_leads_to_its_failures() -> None:
    """A failing implementation is in the sentence and in its row, and is not what to use, however fast it is."""
    runs = [store([*GOOD, *fail(check_all("broken")), *time_all("broken", 0.1)])]
    overview = make(*runs)
    row = find_row(overview, "broken")
    assert overview.is_wrong
    assert "broken" in overview.wrong
    assert "forward_parity" in row.conformance.text
    assert f'id="{row.conformance.link}"' in render_page(runs)
    assert {answer.text for answer in overview.tables[0].answers} == {"quick"}


def test_no_difference_that_is_not_decided_has_a_colour() -> None:
    """A ratio on both sides of 1 has a sign and no shade; a cell never has a shade without a sign."""
    overview = make(store([*GOOD, *time_all("near", 0.7, 1.0, 1.4)]))
    assert {(cell.sign, cell.shade) for cell in find_row(overview, "near").cells} == {("?", "")}
    cells = [cell for row in overview.tables[0].rows for cell in row.cells]
    assert all(cell.sign for cell in cells if cell.shade)


def test_too_few_checked_cases_are_no_yes() -> None:
    """An implementation with fewer than 20 checked cases is not what to use where another one conforms."""
    overview = make(store([*GOOD, *check_all("few", 5), *time_all("few", 0.1)]))
    assert find_row(overview, "few").verdict == "only"
    assert overview.tables[0].conforming
    assert {answer.text for answer in overview.tables[0].answers} == {"quick"}


def test_a_refusal_takes_one_line() -> None:
    """What cannot run here has one cell, with the reason."""
    refused = [check("elsewhere", case_of(length), refused="needs a CUDA device") for length in range(1, 26)]
    row = find_row(make(store([*GOOD, *refused])), "elsewhere")
    assert (row.verdict, row.cells, row.conformance.span) == ("refused", (), 1 + len(LENGTHS))
    assert "needs a CUDA device" in row.conformance.text


def test_a_cut_run_says_what_is_missing_and_how_to_complete_it() -> None:
    """Calls that were not reached are told once, with the command; a whole run has neither."""
    pending = [replace(result, timing=None, memory=None) for result in time_all("late")]
    cut = make(store([*GOOD, *check_all("late"), *pending]))
    assert cut.missing
    assert cut.commands
    assert {cell.text for cell in find_row(cut, "late").cells} <= {"–", "not reached"}
    whole = make(finish(store(GOOD)))
    assert (whole.missing, whole.commands) == ((), ())


def test_two_machines_have_a_table_each_and_their_disagreements_are_counted() -> None:
    """Numbers of two machines are in two tables; calls for which they choose differently are counted."""
    other = [*check_all(REFERENCE, run="run-2"), *check_all("quick", run="run-2"), *time_all(REFERENCE, run="run-2")]
    other += time_all("quick", 2.0, run="run-2")
    runs = [store(GOOD), store(other, run="run-2", machine="other-cpu")]
    overview = make(*runs)
    assert {table.place.split(",")[0] for table in overview.tables} == {"some-cpu", "other-cpu"}
    assert overview.disagreements == 2
    assert 'id="places"' in render_page(runs)


def test_one_implementation_is_a_table_too() -> None:
    """Nothing is compared: the row has times and no ratio, and the answer has no bound."""
    overview = make(store([*check_all(REFERENCE), *time_all(REFERENCE)]))
    assert all(cell.text.endswith("µs") and not cell.sign for cell in find_row(overview, REFERENCE).cells)
    assert {answer.sign for answer in overview.tables[0].answers} == {"?"}


def test_a_report_without_timed_calls_has_the_left_half() -> None:
    """After checks alone, the table has verdicts, and neither columns nor answers."""
    (table,) = make(store(check_all(REFERENCE))).tables
    assert (table.passes, table.answers, table.peak_at) == ((), (), "")
    assert table.rows[0].verdict == "yes"


def test_large_tables_are_cut_with_a_count() -> None:
    """Of many rows those that fail are kept, and the number of the others is told; columns are bounded."""
    names = [f"one_{number}" for number in range(MOST_ROWS + 20)]
    many = [check(name, case_of(1)) for name in names]
    table = make(store([*GOOD, *many, *fail([check("broken", case_of(1))])])).tables[0]
    assert len(table.rows) == MOST_ROWS
    assert "broken" in [row.name for row in table.rows]
    assert table.left_out == len(names) + 3 - MOST_ROWS
    wide = [time_calls(REFERENCE, case=case_of(length)) for length in range(1, MOST_COLUMNS + 10)]
    assert sum(len(lengths) for _, lengths in make(store(wide)).tables[0].passes) == MOST_COLUMNS


def test_the_page_explains_its_signs() -> None:
    """Every sign of the table stands in the legend on the page."""
    page = render_page([store([*GOOD, *time_all("near", 0.7, 1.0, 1.4)])])
    (legend,) = re.findall(r'<p class="legend-line">(.*?)</p>', page, re.DOTALL)
    signs = {sign for sign in re.findall(r'<b class="sign">(.)</b>', page) if sign in "-+=?"}
    assert signs
    assert all(sign in legend for sign in signs)
