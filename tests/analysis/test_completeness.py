"""Tests of completeness: a run that lacks something is known by what was planned and by its end, never by a guess."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.completeness import CutCalls, judge_completeness
from attnbench.analysis.plain_names import clean_name
from attnbench.records.run_file import StoredRun, read_run
from attnbench.records.types import PERF, Completion, End, Finding, Machine, Planned, Result, Run, StoredJob, Timing
from attnbench.words.completeness import describe_gaps

ROOT = Path(__file__).parents[2]
CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/eval"
PASSED = Finding(check="forward_parity", status="passed")
RUN = Run(
    id="r", time="2026-01-01T00:00:00+00:00", command="attnbench run", versions={}, threads=2, suite="quick",
    machine=Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33), implementations=("one", "two"),
)  # fmt: skip
FINISHED = End(run="r", time="2026-01-01T01:00:00+00:00", outcome="finished", exit_code=0)
OLD = replace(RUN, schema=3)


def make_results(name: str, cases: int, *, suite: str = "quick", untimed: str | None = None) -> list[Result]:
    """Make results of an implementation on this many cases."""
    return [
        Result(
            run="r", implementation=name, case=CASE.format(seed), findings=(PASSED,), suite=suite, untimed=untimed,
            completes=False,
        )
        for seed in range(cases)
    ]  # fmt: skip


def make_stored_run(run: Run, *results: Result, **fields: object) -> StoredRun:
    """Make a stored run with these results."""
    return StoredRun(run=run, results=results, path=Path("r.jsonl"), **fields)  # type: ignore[arg-type]


def tell(stored: StoredRun, *, named: bool = False) -> list[str]:
    """Return the sentences about what a run lacks."""
    return list(describe_gaps(judge_completeness(stored), named=named))


def test_a_run_that_ended_with_everything_that_was_planned_is_complete() -> None:
    """A run with its end and with a result for every planned case lacks nothing."""
    run = replace(RUN, job=StoredJob(planned={"one": Planned(cases=2), "two": Planned(cases=1)}))
    stored = make_stored_run(run, *make_results("one", 2), *make_results("two", 1), end=FINISHED)
    assert judge_completeness(stored).complete
    assert tell(stored) == []


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (None, "was cut"),
        (replace(FINISHED, outcome="interrupted"), "was interrupted"),
        (replace(FINISHED, outcome="error"), "ended with an error"),
    ],
)
def test_a_run_without_its_planned_end_says_how_it_ended(end: End | None, words: str) -> None:
    """A run of today without an end was cut; the implementations without all planned results are named."""
    run = replace(RUN, job=StoredJob(planned={"one": Planned(cases=2), "two": Planned(cases=4)}))
    stored = make_stored_run(run, *make_results("one", 2), *make_results("two", 1), end=end)
    assert tell(stored) == [f"two (1 of 4 cases done) was not finished: the run {words}."]
    assert tell(stored, named=True) == [f"two (1 of 4 cases done) was not finished: run r {words}."]
    whole = make_stored_run(run, *make_results("one", 2), *make_results("two", 4), end=end)
    assert tell(whole) == [f"The run {words}."]
    assert not judge_completeness(whole).complete


def test_neighbours_that_lack_as_much_are_named_together() -> None:
    """What is there of each implementation is said once for neighbours with equally many results."""
    names = ("one", "two", "three", "four")
    run = replace(RUN, implementations=names, job=StoredJob(planned=dict.fromkeys(names, Planned(cases=3))))
    stored = make_stored_run(run, *make_results("one", 1), *make_results("two", 2), *make_results("three", 2))
    assert tell(stored) == [
        "one (1 of 3 cases done), two and three (each 2 of 3 cases done) and four (not started) were not finished: "
        "the run was cut."
    ]


def test_many_unfinished_implementations_are_counted() -> None:
    """Six unfinished implementations are named, the others are counted; a single other one is named."""
    names = [f"n{number}" for number in range(8)]
    run = replace(RUN, implementations=tuple(names), job=StoredJob(planned=dict.fromkeys(names, Planned(cases=1))))
    assert tell(make_stored_run(run)) == [
        f"{', '.join(names[:5])} and {names[5]} (each not started) and 2 more implementations were not finished: "
        "the run was cut."
    ]
    seven = replace(
        run, implementations=tuple(names[:7]), job=StoredJob(planned=dict.fromkeys(names[:7], Planned(cases=1)))
    )
    assert "n5 and n6 (each not started) were" in tell(make_stored_run(seven))[0]


def test_a_planned_call_without_timing_or_reason_is_missing() -> None:
    """A planned timing is missing where there is neither a timing nor a reason, even if the run claims its end."""
    run = replace(RUN, job=StoredJob(planned={"one": Planned(cases=0, timed=2)}), implementations=("one",))
    for untimed, gaps in (
        (None, ["Timing had not begun: the run lacks results."]),
        ("slow", []),
    ):
        results = make_results("one", 2, suite=PERF, untimed=untimed)
        assert tell(make_stored_run(run, *results, end=FINISHED)) == gaps


def test_a_call_that_some_processes_timed_is_neither_untimed_nor_complete() -> None:
    """Of a run that was cut, it is known how many of the planned processes timed each call."""
    planned = {"one": Planned(cases=0, timed=3, processes=7)}
    run = replace(RUN, job=StoredJob(command="profile", planned=planned), implementations=("one",))
    results = [
        replace(one, timing=Timing(samples_ns=((5, 6),) * processes, threads=1))
        for one, processes in zip(make_results("one", 3, suite=PERF), (3, 7, 3), strict=True)
    ]
    found = judge_completeness(make_stored_run(run, *results))
    assert found.cut_calls == (CutCalls(processes=3, planned=7, calls=2),)
    assert (found.complete, found.unfinished, found.resuming) == (False, (), "attnbench profile --resume r")
    assert tell(make_stored_run(run, *results))[1:] == ["3 of 7 processes timed 2 calls."]
    # A run that finished had no time for more, or needed no more.
    assert judge_completeness(make_stored_run(run, *results, end=FINISHED)).cut_calls == ()


def test_a_run_whose_cases_are_not_listed_is_judged_by_its_end() -> None:
    """Without planned numbers (fuzz), a run with its end is complete; without it, it was cut."""
    run = replace(RUN, suite="fuzz")
    results = [*make_results("one", 3, suite="fuzz"), *make_results("two", 1, suite="fuzz")]
    assert tell(make_stored_run(run, *results, end=FINISHED)) == []
    assert tell(make_stored_run(run, *results)) == ["The run was cut."]
    assert tell(make_stored_run(run, *results[:3])) == ["two (not started) was not finished: the run was cut."]


def test_of_an_older_run_only_what_can_be_seen_is_said() -> None:
    """A whole older run is never called cut; fewer cases than another implementation, or none, are missing."""
    whole = [*make_results("one", 3), *make_results("two", 3)]
    assert tell(make_stored_run(OLD, *whole)) == []
    assert tell(make_stored_run(OLD, *whole[:5])) == [
        "two (2 of 3 cases done) was not finished: the run lacks results."
    ]
    assert tell(make_stored_run(OLD, *whole[:3])) == ["two (not started) was not finished: the run lacks results."]
    assert tell(make_stored_run(OLD, *whole[:5], ends_in_line=True, lost_lines=1)) == [
        "two (2 of 3 cases done) was not finished: the run was cut.",
        "The last line was half-written when the run was cut.",
    ]
    assert tell(make_stored_run(OLD, *whole, lost_lines=2)) == ["2 lines of the run could not be read."]


def test_further_cases_of_an_older_run_are_those_of_its_completion() -> None:
    """An implementation whose completion has a case without a result was not finished; a part of a suite has fewer."""
    made = Completion(run="r", implementation="one", suite="core", list_digest="d", listed=1, cases=("x", "y"))
    run = replace(OLD, implementations=("one",))
    stored = make_stored_run(run, *make_results("one", 1), completions=(made,))
    assert tell(stored) == ["one (1 of 3 cases done) was not finished: the run lacks results."]
    in_parts = replace(run, command="attnbench conform one --suite core --shard 1/2")
    assert tell(replace(stored, run=in_parts)) == []


def test_an_older_run_that_was_resumed_to_its_end_is_complete() -> None:
    """An end counts in a run of every schema."""
    assert tell(make_stored_run(OLD, *make_results("one", 3), *make_results("two", 1), end=FINISHED)) == []


@pytest.mark.parametrize(
    "path", ["results/full/amd-epyc/20261121-224018-615c.jsonl", "results/full/amd-epyc/20261121-223040-d5ac.jsonl"]
)
def test_whole_stored_runs_of_older_schemas_are_complete(path: str) -> None:
    """The stored runs of schema 2 that ended regularly are not called cut."""
    stored = read_run(ROOT / path)
    assert stored.run.schema == 2
    assert tell(stored) == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("sdpa", "sdpa"),
        ("", "(no name)"),
        (" \n", "(no name)"),
        ("a\x1b[31m\x00b", "a�[31m�b"),
        ("a\u202egnp.exe", "a�gnp.exe"),
        ("x" * 10_000, "x" * 59 + "…"),
        ("<script>", "<script>"),
    ],
)
def test_a_name_in_a_sentence_is_one_short_line_without_control_characters(name: str, shown: str) -> None:
    """Control characters and marks of direction are replaced, and a long name is shortened."""
    assert clean_name(name) == shown
