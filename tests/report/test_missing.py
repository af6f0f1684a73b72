"""Tests of "What is missing": each kind of gap is listed once, with its reason and the command that fills it."""

from dataclasses import replace

import pytest

from attnbench.records.run_file import StoredRun
from attnbench.records.types import End, Finding, Result
from attnbench.report.content import collect_content
from rendered_reports import render_page
from timed_runs import REFERENCE, case_of, check, store, time_calls


def list_missing(*runs: StoredRun) -> list[tuple[str, str]]:
    """Return what is missing from a report on these runs, with its text."""
    return [(one.what, one.text) for one in collect_content(runs).missing]


def leave_untimed(name: str, reason: str | None, *lengths: int, mode: str = "inference") -> list[Result]:
    """Return planned calls that were not timed for a reason; without one, the run ended before."""
    return [replace(time_calls(name, case=case_of(length, mode)), timing=None, untimed=reason) for length in lengths]


def check_cases(name: str, count: int, *, refused: int = 0) -> list[Result]:
    """Return the results of checking ``count`` cases, of which the first are refused."""
    return [check(name, case_of(1000 + n), refused="no masks" if n < refused else "") for n in range(count)]


def finish(stored: StoredRun) -> StoredRun:
    """Return the run with its end on record."""
    return replace(stored, end=End(run=stored.run.id, time=stored.run.time, outcome="finished", exit_code=0))


def test_a_whole_run_lacks_nothing() -> None:
    """Where every case was checked and every answer is decided, the section says so."""
    results = [time_calls(REFERENCE), time_calls("quick", 0.5), *check_cases(REFERENCE, 20), *check_cases("quick", 20)]
    stored = finish(store(results))
    assert list_missing(stored) == []
    section = render_page([stored]).partition('<section id="missing">')[2]
    assert "Nothing: all that was planned" in section.partition("</section>")[0]


def test_calls_that_were_not_timed_are_named_by_pass_length_and_reason() -> None:
    """Reasons that differ only in numbers are one, with ranges; what is refused is not missing here."""
    limit = "not_run: predicted {} s a call, over the limit of 0.12 s (--work-limit)"
    results = [
        time_calls(REFERENCE), time_calls("quick", 0.5), *check_cases(REFERENCE, 20), *check_cases("quick", 20),
        *check_cases("late", 20), *leave_untimed("quick", limit.format(3), 512),
        *leave_untimed("quick", limit.format(1.5), 128, mode="train"),
        *leave_untimed("quick", limit.format(12), 256), *leave_untimed("late", None, 64, 128),
        *leave_untimed("quick", "unsupported: no long calls", 1024), *leave_untimed("quick", "failed: wrong", 2048),
    ]  # fmt: skip
    assert list_missing(finish(store(results))) == [
        (
            "Not timed",
            "quick: forward 256 and 512; forward+backward 128 (batch 1, 4 heads, width 256): predicted 1.5 to 12 s a "
            "call, over the limit of 0.12 s; the option --work-limit 12 runs them.",
        ),
        (
            "Not timed",
            "late: forward 64 and 128 (batch 1, 4 heads, width 256): the run ended before they were timed (see Not "
            "finished).",
        ),
        (
            "Not timed",
            "quick: forward 2048 (batch 1, 4 heads, width 256): a check of the same call failed (see Failures).",
        ),
    ]


def test_checks_that_were_not_run_are_counted_by_implementation() -> None:
    """The reasons of one implementation that differ only in numbers are one."""
    left = [
        Result(
            run="run-1", implementation="slow", case=case_of(5 + n), suite="quick",
            findings=(Finding(check="forward_parity", status="not_run", reason=f"predicted {n + 1} s a call"),),
        )
        for n in range(3)
    ]  # fmt: skip
    listed = list_missing(finish(store([*check_cases("slow", 20), *left])))
    assert listed == [("Checks not run", "slow: 3 findings (predicted 1 to 3 s a call).")]


def test_names_without_a_verdict_and_names_that_cannot_run_are_listed_by_machine() -> None:
    """Each machine has an entry of its own with the command for it; equal kinds follow one another."""
    runs = []
    for machine in ("first", "second"):
        away = [check("flash", case_of(9), refused="needs a CUDA device", run=machine)]
        few = [replace(one, run=machine) for one in check_cases(f"few_on_{machine}", 30, refused=18)]
        runs.append(finish(store([*few, *away], run=machine, machine=machine)))
    assert list_missing(*runs) == [
        ("No verdict on conformance", "first: few_on_first: too few cases were checked."),
        ("No verdict on conformance", "second: few_on_second: too few cases were checked."),
        ("Cannot run here", "first: flash: they need a machine with CUDA."),
        ("Cannot run here", "second: flash: they need a machine with CUDA."),
    ]
    steps = [one.steps[0].command for one in collect_content(runs).missing if one.steps]
    assert steps == [f"attnbench conform --suite core few_on_{machine}" for machine in ("first", "second")]


@pytest.mark.parametrize("processes", [3, 9])
def test_answers_that_are_open_are_counted_and_named(processes: int) -> None:
    """With three processes nothing is decided: the answer is named, and its command follows."""
    timed = [time_calls(name, ratio, processes=processes) for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))]
    (*missing,) = collect_content(
        [finish(store([*timed, *check_cases("quick", 20), *check_cases(REFERENCE, 20)]))]
    ).missing
    if processes == 9:
        assert missing == []
    else:
        (one,) = missing
        assert (one.what, one.text) == (
            "Speed not decided", "1 of 1 answer: forward 64 (batch 1, 4 heads, width 256)."
        )  # fmt: skip
        assert "--lengths 64" in one.steps[0].command


def test_a_run_that_was_cut_is_not_finished() -> None:
    """The first entry says what was not finished, with the command that finishes the run."""
    stored = store([time_calls(REFERENCE), *leave_untimed("quick", None, 64)])
    cut = replace(stored, run=replace(stored.run, schema=4, command="attnbench run --results mine"))
    first, *_ = collect_content([cut]).missing
    assert (first.what, first.text) == (
        "Not finished",
        "The timing of quick (0 of 1 calls timed) had not begun: the run was cut.",
    )
    assert [step.command for step in first.steps] == ["attnbench run --resume run-1 --results mine"]
    text = render_page([cut]).partition('<section id="missing">')[2]
    assert text.index("<dt>Not finished</dt>") < text.index("--resume") < text.index("<dt>Not timed</dt>")
