"""Tests of the summary that is made from stored runs: its rows, verdicts, answers, and what is missing."""

from dataclasses import replace

import pytest

from attnbench.analysis.next_command import find_next_command
from attnbench.analysis.summarize import summarize
from attnbench.analysis.summary import SpeedCell, Summary, SummaryRow
from attnbench.records.types import Planned, Result, StoredJob
from summarized_runs import check_cases, end, fail, make_mixed_run
from timed_runs import REFERENCE, case_of, check, store, time_calls


@pytest.fixture(scope="module")
def mixed() -> Summary:
    """Return the summary of a run with right, wrong, refused and rarely checked implementations."""
    return summarize([make_mixed_run()])


def get_row(summary: Summary, name: str) -> SummaryRow:
    """Return the first row of an implementation."""
    return next(row for table in summary.tables for row in table.rows if row.subject == name)


def leave_untimed(result: Result, reason: str | None) -> Result:
    """Return a planned call without its time."""
    return replace(result, timing=None, memory=None, untimed=reason)


def test_rows_begin_with_the_baseline_and_end_with_what_cannot_run(mixed: Summary) -> None:
    """Then come the timed ones by their ratio at the largest length, and the untimed ones."""
    (table,) = mixed.tables
    names = [row.subject for row in table.rows]
    assert names == [REFERENCE, "rare", "fused_projection", "slow", "my_attention", "other", "xformers"]
    assert [(one.pass_, one.queries) for one in table.columns] == [
        ("forward", 32), ("forward", 128), ("forward", 512), ("forward", 1024),
        ("forward+backward", 32), ("forward+backward", 128), ("forward+backward", 512),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "verdict", "checked"),
    [("fused_projection", "yes", 20), ("rare", "only", 3), ("my_attention", "no", 1), ("xformers", "refused", 0)],
)
def test_a_verdict_names_its_suite_and_cases(mixed: Summary, name: str, verdict: str, checked: int) -> None:
    """Twenty checked cases give a verdict, fewer do not; a failed check and a refusal of all cases are told."""
    conformance = get_row(mixed, name).conformance
    assert (conformance.verdict, conformance.checked) == (verdict, checked)
    assert conformance.suite == ("" if verdict == "refused" else "quick")
    assert conformance.refused == ((("needs a CUDA device", 20),) if verdict == "refused" else ())


def test_failed_checks_have_their_causes(mixed: Summary) -> None:
    """Each cause is in the row of its implementation, and once in the summary."""
    assert get_row(mixed, "my_attention").conformance.failed_checks == ("forward_parity", "weights_parity")
    assert {cause.implementation for _, cause in mixed.causes} == {"my_attention", "other"}


def test_an_answer_conforms(mixed: Summary) -> None:
    """A faster implementation on which too few cases were checked is not chosen."""
    (table,) = mixed.tables
    assert {answer.name for answer in table.answers.values()} == {"fused_projection"}
    assert {answer.regret for answer in table.answers.values()} == {0.0}
    cell = get_row(mixed, "fused_projection").cells[table.columns[0]]
    assert (cell.mark, cell.state, cell.processes, cell.peak_bytes) == ("faster", "faster", 9, 3 * 2**20)
    assert cell.ratio is not None
    assert cell.ratio.value == pytest.approx(0.9, rel=1e-3)
    assert get_row(mixed, REFERENCE).cells[table.columns[0]].mark == "baseline"


def test_an_untimed_call_keeps_its_reason(mixed: Summary) -> None:
    """What was planned has a cell with the reason; what was never planned has no cell."""
    (table,) = mixed.tables
    assert get_row(mixed, "my_attention").cells[table.columns[0]].untimed == "failed: off"
    assert get_row(mixed, "rare").cells[table.columns[3]] == SpeedCell(untimed="too slow", run="run-1")
    assert get_row(mixed, "other").cells == {}


def test_two_machines_have_tables_of_their_own() -> None:
    """Each place has its answer, and a call for which they exclude each other's choice is listed once."""
    ratios = {"here": (0.8, 1.2), "there": (1.2, 0.8)}
    runs = [
        end(
            store(
                [
                    *(one for name in (REFERENCE, "a", "b") for one in check_cases(name, run=machine)),
                    time_calls(REFERENCE, run=machine),
                    time_calls("a", first, run=machine),
                    time_calls("b", second, run=machine),
                ],
                run=machine,
                machine=machine,
            )
        )
        for machine, (first, second) in ratios.items()
    ]
    summary = summarize(runs)
    assert [table.place.machine for table in summary.tables] == ["here", "there"]
    (found,) = summary.disagreements
    assert [(place.machine, name) for place, name in found.names] == [("here", "a"), ("there", "b")]
    assert summarize(runs[:1]).disagreements == ()


def test_a_cut_run_has_calls_that_were_not_reached() -> None:
    """A planned call without a result is pending, and the run is named as incomplete with the command to finish it."""
    results = [time_calls(REFERENCE), time_calls("a", 0.9), leave_untimed(time_calls("b"), None)]
    results.append(time_calls(REFERENCE, case=case_of(128)))
    stored = store([*check_cases(REFERENCE), *check_cases("a", 12), *results])
    planned = {name: Planned(cases=20, timed=2) for name in (REFERENCE, "a", "b")}
    stored = replace(
        stored, run=replace(stored.run, implementations=(REFERENCE, "a", "b"), job=StoredJob(planned=planned))
    )
    summary = summarize([stored])
    (table,) = summary.tables
    first, second = table.columns
    pending = {row.subject: [column for column, cell in row.cells.items() if cell.pending] for row in table.rows}
    assert pending == {REFERENCE: [], "a": [second], "b": [first, second]}
    assert [row.conformance.missing for row in table.rows] == [0, 8, 20]
    (found,) = summary.incomplete
    assert found.end == "cut"
    assert [one.implementation for one in found.unfinished] == ["a", "b"]
    command = find_next_command(summary, [stored])
    assert command is not None
    assert (command.kind, command.command) == ("finish", "attnbench run --resume run-1")


def test_without_timed_calls_a_table_has_no_columns() -> None:
    """A run that only checks has the rows of its implementations, at a place without a dtype."""
    summary = summarize([end(store([*check_cases("a"), fail("b")]))])
    (table,) = summary.tables
    assert (table.columns, table.answers, table.place.dtype) == ((), {}, "")
    assert [(row.subject, row.conformance.verdict, row.cells) for row in table.rows] == [
        ("a", "yes", {}),
        ("b", "no", {}),
    ]


def test_one_implementation_has_no_rival() -> None:
    """Without another one that may be chosen, there is an answer, and no bound on its regret."""
    (table,) = summarize([end(store([*check_cases(REFERENCE), time_calls(REFERENCE)]))]).tables
    (answer,) = table.answers.values()
    assert (answer.name, answer.regret, answer.unbounded) == (REFERENCE, None, "alone")


def test_a_baseline_that_is_wrong_is_no_answer() -> None:
    """The others are still compared with it."""
    results = [*check_cases("a"), fail(REFERENCE), time_calls(REFERENCE), time_calls("a", 1.5)]
    (table,) = summarize([end(store(results))]).tables
    assert [row.subject for row in table.rows] == [REFERENCE, "a"]
    assert [answer.name for answer in table.answers.values()] == ["a"]
    assert table.rows[1].cells[table.columns[0]].mark == "slower"


def test_after_a_profile_alone_the_answer_is_not_known_to_conform() -> None:
    """It is among those that pass the checks before timing, and the next command checks it."""
    stored = end(store([time_calls(REFERENCE), time_calls("a", 0.5)]))
    summary = summarize([stored])
    (table,) = summary.tables
    assert not table.conforming
    assert {(row.conformance.verdict, row.conformance.suite) for row in table.rows} == {("only", "perf")}
    command = find_next_command(summary, [stored])
    assert command is not None
    assert (command.kind, command.command) == ("check", "attnbench conform a")


def test_one_command_checks_the_answers_of_one_machine() -> None:
    """It names what is to be used at any shape there, and nothing of another machine."""
    wide = case_of(sizes="E768.H12")
    calls = [
        time_calls(REFERENCE),
        time_calls("a", 0.5),
        time_calls(REFERENCE, case=wide),
        time_calls("b", 0.5, case=wide),
    ]
    here = end(store(calls))
    elsewhere = [time_calls(REFERENCE, run="run-2"), time_calls("c", 0.5, run="run-2")]
    there = end(store(elsewhere, run="run-2", machine="other-cpu"))
    command = find_next_command(summarize([here, there]), [here, there])
    assert command is not None
    assert (command.machine, command.command) == (here.run.machine.name, "attnbench conform a b")


def test_an_open_answer_is_measured_in_more_processes() -> None:
    """The command has the lengths of the open answers, the sizes of the run, and who may be the fastest."""
    calls = [time_calls(REFERENCE), time_calls("a", 0.9, 1.1)]
    stored = end(store([*check_cases(REFERENCE), *check_cases("a"), *calls]))
    stored = replace(stored, run=replace(stored.run, command="attnbench run a --batch 8 --processes 9"))
    command = find_next_command(summarize([stored]), [stored])
    assert command is not None
    assert command.kind == "measure"
    assert command.command == "attnbench profile --lengths 64 --batch 8 --processes 30 a"


def test_a_decided_answer_needs_no_command(mixed: Summary) -> None:
    """Nothing is advised where every bound is at most 1 %."""
    assert find_next_command(mixed, [make_mixed_run()]) is None


def test_rows_that_say_nothing_new_are_left_out() -> None:
    """What cannot run, or has no calls in a further table of the same device, is in the first table only."""
    long = case_of(sizes="E768.H12")
    refused = [check("gpu", case_of(2 + n, "eval"), refused="needs a CUDA device") for n in range(3)]
    calls = [time_calls(REFERENCE), time_calls("a"), time_calls(REFERENCE, case=long)]
    first, second = summarize([end(store([*check_cases(REFERENCE), *refused, *calls]))]).tables
    assert [row.subject for row in first.rows] == [REFERENCE, "a", "gpu"]
    assert [row.subject for row in second.rows] == [REFERENCE]
