"""Tests of what to use: the answer of each cell, its gain and limits, rows that share an answer, places that differ."""

import csv
import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.cli.profile_command import command as profile
from attnbench.cli.report_command import command as report
from attnbench.records.run_file import StoredRun
from attnbench.records.types import End, Finding, Planned, Result
from attnbench.report import write
from attnbench.report.choices import Choice
from attnbench.report.content import collect_content
from attnbench.report.decisions import Decisions
from rendered_reports import render_page
from timed_runs import FORM, PASSED, REFERENCE, case_of, check, store, time_calls

# What an open cell advises.
FOR_NOW = f"{REFERENCE} for now"
# What writes the report again, from the run and the next one.
REPORT = "; attnbench report --since run-1{options}"
HOSTILE = "<script>alert(1)</script>\"'&|\x00\\1/../\u202e"


def decide(*runs: StoredRun) -> Decisions:
    """Return the decisions of a report on these runs."""
    return collect_content(runs).decisions


def choose(*results: Result) -> Choice:
    """Return the only cell of the only table of a run with these results."""
    (table,) = decide(store(results)).tables
    (row,) = table.rows
    (choice,) = row.choices
    return choice


def test_the_fastest_is_named_with_its_time_and_the_interval_of_the_time() -> None:
    """Half the time of the reference is a ratio of 0.5, with the interval that the table of measures has."""
    choice = choose(time_calls(REFERENCE), time_calls("quick", 0.4, 0.5, 0.6))
    assert (choice.kind, choice.words, choice.time) == ("winner", "quick", "0.500× the time [0.400 to 0.600]")


def test_implementations_whose_intervals_overlap_are_a_tie() -> None:
    """Two that are faster than the reference and not told apart are a tie; a third one, slower than both, is not."""
    tied = (time_calls("one", 0.48, 0.5, 0.52), time_calls("two", 0.49, 0.51, 0.53))
    choice = choose(time_calls(REFERENCE), *tied, time_calls("third", 0.7))
    assert (choice.kind, choice.words) == ("tie", "tie: one, two")
    assert choice.time == "one 0.500× the time [0.480 to 0.520], two 0.510× the time [0.490 to 0.530]"


def test_where_every_other_one_is_slower_the_reference_is_named() -> None:
    """The reference wins where every verdict is ``slower``; it has no time relative to itself."""
    choice = choose(time_calls(REFERENCE), time_calls("slow", 1.5), time_calls("slower", 2.5))
    assert (choice.kind, choice.words, choice.time) == ("reference", REFERENCE, "")
    assert choice.notes == ("every other implementation with a verdict is slower", "conformance not checked")


def test_where_nobody_is_told_apart_from_the_reference_there_is_no_useful_difference() -> None:
    """Ratios within 1 % of 1 are no useful difference."""
    choice = choose(time_calls(REFERENCE), time_calls("near", 0.995, 1.0, 1.005), time_calls("slow", 1.5))
    assert (choice.kind, choice.words) == ("no_difference", REFERENCE)
    assert choice.notes[0] == "no useful difference: torch_mha and near cannot be told apart"


@pytest.mark.parametrize(("processes", "few"), [(1, "1 process is"), (6, "6 processes are")])
def test_too_few_processes_are_unknown_and_never_a_winner(processes: int, few: str) -> None:
    """With fewer than seven processes no verdict is possible, however large the difference is."""
    results = (time_calls(REFERENCE, processes=processes), time_calls("quick", 0.1, processes=processes))
    choice = choose(*results)
    assert (choice.kind, choice.words, choice.time) == ("unknown", FOR_NOW, "")
    assert choice.notes[0] == f"not decided: quick 0.100× the time; {few} too few for a verdict"
    results = (time_calls(REFERENCE, processes=processes), time_calls("slow", 10.0, processes=processes))
    assert choose(*results).notes[0] == (f"not decided: slow 10.0× the time; {few} too few for a verdict")


def test_an_interval_across_the_threshold_is_unknown() -> None:
    """Ratios of 0.97 to 0.995 may be a gain of 3 % or none."""
    assert choose(time_calls(REFERENCE), time_calls("near", 0.97, 0.98, 0.995)).kind == "unknown"


def test_an_interval_that_excludes_a_gain_is_no_useful_difference() -> None:
    """Ratios of 0.995 to 1.05 have no verdict, but a gain of 1 % is excluded."""
    choice = choose(time_calls(REFERENCE), time_calls("near", 0.995, 1.0, 1.05))
    assert choice.kind == "no_difference"


def test_a_disturbed_fastest_measurement_is_inconclusive() -> None:
    """Where other work disturbed the fastest calls, nothing is recommended."""
    choice = choose(time_calls(REFERENCE), time_calls("quick", 0.5, disturbed=True), time_calls("other", 0.8))
    assert (choice.kind, choice.words) == ("inconclusive", FOR_NOW)
    assert choice.notes == (
        "not decided: other 0.800× the time [0.800 to 0.800]; other work disturbed 9 of 9 processes; no ratio "
        "was seen of quick",
    )


def test_one_that_may_be_as_fast_as_the_winner_is_named() -> None:
    """A wide interval that reaches below the winner's upper end leaves open which is faster."""
    results = (time_calls(REFERENCE), time_calls("quick", 0.9), time_calls("wide", 0.8, 1.0, 1.2))
    choice = choose(*results)
    assert (choice.kind, choice.words) == ("winner", "quick")
    assert "not decided: whether wide (1.00× the time [0.800 to 1.20]) is as fast as quick" in choice.notes


def test_calls_that_were_not_interleaved_are_not_compared() -> None:
    """Without the reference in the same processes there is no answer; one implementation alone has none either."""
    apart = time_calls("quick", 0.5)
    assert apart.timing
    other = replace(apart, timing=replace(apart.timing, interleaved_with=()))
    assert choose(time_calls(REFERENCE), other).kind == "not_compared"
    assert choose(apart).words == "only quick"


def test_neighbouring_lengths_with_the_same_answer_share_a_row() -> None:
    """Lengths 64 and 128 have the same winner and share a row with both times; the reference wins at 256."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length, quick in ((64, 0.5), (128, 0.25), (256, 1.5))
        for name, ratio in ((REFERENCE, 1.0), ("quick", quick))
    ]
    decisions = decide(store(results))
    (table,) = decisions.tables
    assert [(row.form, row.length, row.choices[0].words) for row in table.rows] == [
        ("batch 1, 4 heads, width 256", "64 to 128", "quick"),
        ("batch 1, 4 heads, width 256", "256", REFERENCE),
    ]
    assert table.rows[0].choices[0].time == (
        "0.500× the time [0.500 to 0.500] at 64 to 0.250× the time [0.250 to 0.250] at 128"
    )
    assert [entry.answer.names for entry in decisions.entries] == [("quick",), ("quick",), (REFERENCE,)]


@pytest.mark.parametrize(
    ("ratios", "time"),
    [
        ((0.5, 0.4, 0.25), "0.500× the time [0.500 to 0.500] at 64 to 0.250× the time [0.250 to 0.250] at 256"),
        ((0.25, 0.4, 0.5), "0.250× the time [0.250 to 0.250] at 64 to 0.500× the time [0.500 to 0.500] at 256"),
        ((0.4, 0.25, 0.5), "between 0.250× the time [0.250 to 0.250] and 0.500× the time [0.500 to 0.500]"),
        ((0.5, 0.5, 0.5), "0.500× the time [0.500 to 0.500]"),
    ],
)
def test_the_times_of_a_row_are_in_the_order_of_its_lengths_or_are_a_range(
    ratios: tuple[float, ...], time: str
) -> None:
    """Times that neither only rise nor only fall with the length are named as the ends of a range."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length, quick in zip((64, 128, 256), ratios, strict=True)
        for name, ratio in ((REFERENCE, 1.0), ("quick", quick))
    ]
    (row,) = decide(store(results)).tables[0].rows
    assert (row.length, row.choices[0].time) == ("64 to 256", time)


def test_neighbouring_lengths_without_an_answer_share_a_row_only_with_equal_names_and_reasons() -> None:
    """Lengths 128 and 256 have the same names and the same reason; at 64, another implementation was seen ahead."""
    results = [
        time_calls(name, ratio, case=case_of(length), processes=3)
        for length, other, own in ((64, "one", 0.5), (128, "two", 0.5), (256, "two", 0.8))
        for name, ratio in ((REFERENCE, 1.0), (other, own))
    ]
    rows = decide(store(results)).tables[0].rows
    assert [(row.length, row.choices[0].words, row.choices[0].notes) for row in rows] == [
        ("64", FOR_NOW, ("not decided: one 0.500× the time; 3 processes are too few for a verdict",)),
        (
            "128 to 256",
            FOR_NOW,
            (
                "not decided: two 0.500× the time at 128 to 0.800× the time at 256; "
                "3 processes are too few for a verdict",
            ),
        ),
    ]


def test_lengths_with_the_same_name_but_different_reasons_do_not_share_a_row() -> None:
    """At 64 there are 3 processes, and at 128 two: the reasons differ, so the rows do."""
    results = [
        time_calls(name, ratio, case=case_of(length), processes=processes)
        for length, processes in ((64, 3), (128, 2))
        for name, ratio in ((REFERENCE, 1.0), ("one", 0.5))
    ]
    assert [row.length for row in decide(store(results)).tables[0].rows] == ["64", "128"]


def wait(result: Result, calls: int) -> Result:
    """Return a result in which all but the first ``calls`` calls of each process waited for a core."""
    timing = result.timing
    assert timing
    waited = tuple((0,) * calls + samples[calls:] for samples in timing.samples_ns)
    return replace(result, timing=replace(timing, waited_ns=waited))


def test_a_cell_that_is_not_judged_says_what_the_undisturbed_cycles_showed(tmp_path: Path) -> None:
    """With one undisturbed cycle in each process there is no verdict; its ratio is told, also in decisions.csv."""
    stored = store([wait(time_calls(REFERENCE), 1), wait(time_calls("quick", 0.5), 1)])
    (table,) = decide(stored).tables
    choice = table.rows[0].choices[0]
    assert (choice.words, choice.time, choice.notes) == (
        FOR_NOW,
        "",
        ("not decided: quick 0.500× the time; other work disturbed 9 of 9 processes",),
    )
    write([stored], tmp_path)
    with (tmp_path / "decisions.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["answer"], row["seen"], float(row["seen_gain"]), row["gain"]) == ("inconclusive", "quick", 2.0, "")


def test_a_cell_without_an_undisturbed_cycle_shows_no_ratio() -> None:
    """Times of disturbed calls give no ratio, however large the difference of the times is."""
    choice = choose(time_calls(REFERENCE, disturbed=True), time_calls("quick", 0.1, disturbed=True))
    assert choice.notes == (
        "not decided: no cycle was undisturbed, so no ratio was seen; other work disturbed 9 of 9 processes",
    )


def test_who_is_named_follows_from_the_ratios_and_not_from_the_times() -> None:
    """The time of ``odd`` is the shortest, but its ratio in common cycles is 1.2: the reference is ahead."""
    odd = time_calls("odd", 1.2, processes=3)
    assert odd.timing
    # Five calls more than the reference made, far faster, in cycles that the reference had no part in.
    samples = tuple((*own, *(1000,) * 20) for own in odd.timing.samples_ns)
    cycles = tuple(tuple(range(26)) for _ in samples)
    odd = replace(odd, timing=replace(odd.timing, samples_ns=samples, cycles=cycles))
    choice = choose(time_calls(REFERENCE, processes=3), odd)
    assert choice.notes[0].startswith("not decided: odd 1.20× the time; ")


def test_a_ratio_near_the_threshold_has_enough_digits_to_show_on_which_side_it_is() -> None:
    """The upper end of the interval, 0.9903, is above the threshold of 0.99: it is not rounded to 0.990."""
    choice = choose(time_calls(REFERENCE), time_calls("near", 0.96, 0.98, 0.9903))
    assert choice.notes == (
        "not decided: near 0.980× the time [0.960 to 0.9903]; the confidence interval crosses the threshold of 1 %",
    )


def test_a_pass_without_timings_is_not_timed() -> None:
    """A length that was timed forward only has an empty cell in the column of the other pass."""
    results = [
        time_calls(name, ratio, case=case_of(length, mode))
        for length, mode in ((64, "inference"), (64, "train"), (128, "inference"))
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
    ]
    (table,) = decide(store(results)).tables
    assert table.passes == ("forward", "forward+backward")
    assert [[choice.words for choice in row.choices] for row in table.rows] == [
        ["quick", "quick"],
        ["quick", "not timed"],
    ]


# What the winner refuses


def find_details(*checked: Result) -> tuple[str, ...]:
    """Return the details of the winner "quick", on which these cases were checked in the same run."""
    stored = store([time_calls(REFERENCE), time_calls("quick", 0.5), *checked])
    return decide(stored).tables[0].rows[0].choices[0].details[:1]


def test_where_nothing_was_checked_the_refusals_are_not_known() -> None:
    """A run that only timed says nothing about what else is refused."""
    assert find_details() == ("refusals not checked",)


def test_a_feature_that_every_refused_case_has_and_no_other_case_is_named() -> None:
    """Weights, float masks and gradients are named; a case that was taken with a boolean mask excludes "masks"."""
    plain, weights = case_of(5, mode="inference"), case_of(5, flags="batch_first+need_weights")
    float_mask, bool_mask = case_of(5, mask="float2d"), case_of(5, mask="bool2d")
    details = find_details(
        check("quick", plain),
        check("quick", bool_mask),
        check("quick", weights, refused="the kernel returns no weights"),
        check("quick", float_mask, refused="takes no float mask"),
        check("quick", case_of(5, mode="train"), refused="forward only: no gradients"),
    )
    assert details == ("returns no weights (need_weights), refuses float masks, gradients",)


def test_a_coincidence_of_few_cases_is_counted_and_not_named() -> None:
    """A reason that mentions no feature of its one case may have any cause; the case is counted."""
    odd = check("quick", case_of(5, sizes="E24.H3.K7"), refused="the width must be a power of two")
    assert find_details(check("quick", case_of(5)), odd) == ("refuses 1 of 2 cases",)


def test_without_refusals_the_number_of_cases_is_named() -> None:
    """Where no case was refused, the note says how many cases of suites that are; the timed case is none of them."""
    assert find_details(check("quick", case_of(5))) == ("takes the only case",)


def test_refusals_are_known_from_another_run_of_the_same_code_only() -> None:
    """A run on the same machine with equal source files says what is refused; a run of other code does not."""
    timed = [time_calls(REFERENCE), time_calls("quick", 0.5)]
    for source, words in (("a", "takes the only case"), ("b", "refusals not checked")):
        checked = store([check("quick", case_of(5), run="run-0")], run="run-0", sources={"quick": "a"})
        decisions = decide(checked, store(timed, sources={"quick": source}))
        assert decisions.tables[0].rows[0].choices[0].details[0] == words


def test_an_open_answer_says_what_to_do_with_the_real_options() -> None:
    """Unknown and inconclusive cells have a command each, with options of ``profile``; decided ones have none."""
    assert decide(store([time_calls(REFERENCE), time_calls("quick", 0.5)])).advice == ()
    (unknown,) = decide(store([time_calls(n, r, processes=3) for n, r in ((REFERENCE, 1.0), ("quick", 0.5))])).advice
    assert unknown.words == (
        "The suite core makes more calls in a process than quick, and full more than core. To decide what is unknown, "
        "time again in more processes, which gives a verdict unless the difference is near 1 %:"
    )
    again = REPORT.format(results="results", options="")
    assert unknown.command == f"attnbench profile --suite core --processes 30 --lengths 64 quick{again}"
    stored = store([time_calls(REFERENCE), time_calls("quick", 0.5, disturbed=True)])
    (inconclusive,) = decide(stored).advice
    assert inconclusive.words.partition("than core. ")[2].startswith(
        "To decide what is inconclusive, time again while nothing else runs on the "
    )
    assert inconclusive.command == f"attnbench profile --suite full --lengths 64 quick{again}"
    known = {name for command in (profile, report) for option in command.params for name in option.opts}
    assert set(re.findall(r"--[a-z-]+", f"{unknown.command} {inconclusive.command}")) <= known
    page = render_page([stored])
    assert html.unescape(page).count(f'data-copy="{inconclusive.command}"') == 1


@pytest.mark.parametrize(
    ("command", "options", "results", "folders"),
    [
        ("attnbench run a b --batch 4 --lengths=1,64 --threads=1 --reports r --no-cache --suite core",
         "--lengths 64 --batch 4 --threads 1", "results", " --reports r"),
        ("attnbench profile --case 'x y' --results r", "--case 'x y' --results r", "r", " --results r"),
        ("attnbench sweep --results r", "--lengths 64 --device cpu --dtype float32", "results", ""),
        ("attnbench run --batch '\x1b[2J'", "--lengths 64 --device cpu --dtype float32", "results", ""),
        ("attnbench run --batch '; rm x'", "--lengths 64 --batch '; rm x'", "results", ""),
        ("attnbench run 'a", "--lengths 64 --device cpu --dtype float32", "results", ""),
        ("", "--lengths 64 --device cpu --dtype float32", "results", ""),
    ],
)  # fmt: skip
def test_the_command_times_what_the_run_timed(command: str, options: str, results: str, folders: str) -> None:
    """The command has the options of the run that say what it timed, the open lengths, and the open names.

    The report is then written again in the folders of the run.
    """
    stored = store([time_calls(n, r, processes=3) for n, r in ((REFERENCE, 1.0), ("quick", 0.5))])
    (step,) = decide(replace(stored, run=replace(stored.run, command=command))).advice
    again = REPORT.format(results=results, options=folders)
    assert step.command == f"attnbench profile --suite core --processes 30 {options} quick{again}"


def test_a_name_that_is_not_decided_beside_a_winner_has_a_command() -> None:
    """The winner is known, and whether a disturbed implementation is as fast is open: the command times both.

    In the new run, the winner would otherwise have no ratio to the reference.
    """
    results = [time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("loud", 0.5, disturbed=True)]
    results.append(time_calls("slower", 0.9))
    (step,) = decide(store(results)).advice
    assert step.command.startswith("attnbench profile --suite full --lengths 64 loud quick; ")


def test_a_clear_loser_is_not_timed_again() -> None:
    """What took five times as long at the longest call with a ratio is left out of the command."""
    results = [time_calls(n, r, processes=3) for n, r in ((REFERENCE, 1.0), ("quick", 0.9), ("slow", 5.0))]
    (step,) = decide(store(results)).advice
    assert step.command.startswith("attnbench profile --suite core --processes 30 --lengths 64 quick; ")


def test_who_returns_weights_and_takes_float_masks_stands_below_the_table() -> None:
    """A name is among those that do, those that refuse, or those that were not checked; page and Markdown say it."""
    weights = case_of(flags=f"{FORM}+need_weights")
    masks = case_of(mask="float2d")
    results = [
        time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("other", 0.8), time_calls("unseen", 0.9),
        check(REFERENCE, weights), check(REFERENCE, masks),
        check("quick", weights, refused="returns no weights"), check("quick", masks),
        check("other", weights), check("other", masks, refused="takes no float masks"),
    ]  # fmt: skip
    words = (
        "Weights (need_weights): refused by quick; not checked for unseen; returned by all others that were timed. "
        "Float masks: refused by other; not checked for unseen; taken by all others that were timed."
    )
    stored = store(results)
    assert decide(stored).tables[0].features == words
    assert words in html.unescape(render_page([stored]))
    bare = decide(store([time_calls(REFERENCE), time_calls("quick", 0.5)])).tables[0].features
    assert "returned by all others that were timed and fail no check" in (
        decide(store([*results, *check_many("wrong", 20, wrong=True), time_calls("wrong", 0.6)])).tables[0].features
    )
    assert bare == "Which of these return weights or take float masks was not checked in this report."


def test_each_machine_has_a_command_of_its_own_and_at_most_four_are_shown() -> None:
    """With several machines the words name the machine; what is left is counted."""
    runs = [
        store([time_calls(n, r, processes=3, run=name) for n, r in ((REFERENCE, 1.0), ("quick", 0.5))], run=name,
              machine=f"m-{name}")
        for name in "abcdef"
    ]  # fmt: skip
    first, *_, last = decide(*runs).advice
    assert ". To decide what is unknown, on m-a, time again in more processes, which " in first.words
    assert last.words.endswith(" (decisions.csv has the calls of 2 further commands):")


# Several places


def make_two_places(quick_there: float) -> list[StoredRun]:
    """Return a run on a machine where "quick" wins, and one elsewhere with this ratio of "quick"."""
    here = [time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("even", 0.8)]
    there = [
        time_calls(REFERENCE, run="run-2"),
        time_calls("quick", quick_there, run="run-2"),
        time_calls("even", 0.8, run="run-2"),
    ]
    return [store(here), store(there, run="run-2", machine="other-cpu")]


def test_each_place_has_a_table_and_a_flip_names_both_answers() -> None:
    """Each machine has a table; where their winners differ, one row names the winner of each."""
    decisions = decide(*make_two_places(1.5))
    labels = ["other-cpu, cpu, float32, 2 threads", "some-cpu, cpu, float32, 2 threads"]
    assert [table.place.label for table in decisions.tables] == labels
    (flip,) = decisions.flips
    assert (flip.form, flip.length, flip.pass_) == ("batch 1, 4 heads, width 256", "64", "forward")
    assert flip.answers == ("even", "quick")


def test_places_that_agree_have_no_flip() -> None:
    """The same winner at both places is no flip, although its gains differ."""
    decisions = decide(*make_two_places(0.6))
    assert decisions.flips == ()
    assert decisions.agreement == (
        "Nowhere: for 1 call (shape, length and pass) decided at several places, the answers share a name."
    )


def test_what_only_one_place_timed_is_no_flip() -> None:
    """A winner that the other machine did not time contradicts nothing."""
    here, _ = make_two_places(1.5)
    there = [time_calls(n, r, run="run-2") for n, r in ((REFERENCE, 1.0), ("even", 0.8))]
    assert decide(here, store(there, run="run-2", machine="other-cpu")).flips == ()


def test_another_number_of_threads_is_no_flip() -> None:
    """Winners with one thread and with two are two answers, and no disagreement of machines."""
    here, there = make_two_places(1.5)
    timed = [replace(result, timing=replace(result.timing, threads=1)) for result in there.results if result.timing]
    assert decide(here, store(timed, run="run-2", machine="other-cpu", threads=1)).flips == ()


def test_an_answer_that_decides_nothing_is_no_flip() -> None:
    """Too few processes at one place do not contradict the winner at the other."""
    here, _ = make_two_places(1.5)
    there = [time_calls(n, r, run="run-2", processes=2) for n, r in ((REFERENCE, 1.0), ("quick", 3.0))]
    decisions = decide(here, store(there, run="run-2", machine="other"))
    assert decisions.flips == ()
    assert decisions.agreement == (
        "Cannot be told: no call was decided on two machines or devices with the same dtype and threads."
    )


def test_a_winner_elsewhere_that_may_be_as_fast_here_is_no_flip() -> None:
    """Where the interval of the other place's winner reaches the winner's, the two places do not contradict."""
    here = store([time_calls(REFERENCE), time_calls("quick", 0.9), time_calls("wide", 0.8, 1.0, 1.2)])
    there = [time_calls(name, r, run="run-2") for name, r in ((REFERENCE, 1.0), ("quick", 1.5), ("wide", 0.5))]
    decisions = decide(here, store(there, run="run-2", machine="other"))
    assert [entry.answer.names for entry in decisions.entries] == [("wide",), ("quick",)]
    assert decisions.flips == ()


def test_page_markdown_and_csv_name_the_place_of_every_answer(tmp_path: Path) -> None:
    """Page and Markdown have the label of each place and the flip; decisions.csv has a row for each answer."""
    write(make_two_places(1.5), tmp_path)
    page = html.unescape((tmp_path / "index.html").read_text("utf-8"))
    markdown = (tmp_path / "report.md").read_text("utf-8")
    for place in ("other-cpu, cpu, float32, 2 threads", "some-cpu, cpu, float32, 2 threads"):
        assert place in page
        assert place in markdown
    assert "Where machines disagree" in page
    rows = list(csv.DictReader((tmp_path / "decisions.csv").read_text("utf-8").splitlines()))
    assert [(row["machine"], row["answer"], row["implementations"]) for row in rows] == [
        ("other-cpu", "winner", "even"),
        ("some-cpu", "winner", "quick"),
    ]
    assert [float(rows[1][column]) for column in ("gain", "gain_low", "gain_high")] == pytest.approx([2, 2, 2])


@pytest.mark.parametrize("places", [1, 2])
def test_hostile_names_are_text(places: int) -> None:
    """Machine, implementation and reason with markup are shown as text, with one series and with two."""
    runs = [
        store(
            [
                time_calls(REFERENCE, run=f"run-{number}"),
                time_calls(HOSTILE, 0.5, run=f"run-{number}"),
                check(HOSTILE, case_of(5, mask="float2d"), refused=HOSTILE, run=f"run-{number}"),
            ],
            run=f"run-{number}",
            machine=HOSTILE * number,
        )
        for number in range(1, places + 1)
    ]
    text = render_page(runs)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text.split('id="use"')[1]
    assert len(decide(*runs).tables) == places


def test_the_section_says_that_a_run_is_not_complete() -> None:
    """The section names the calls that a cut run planned and did not time."""
    late = [replace(time_calls(name, case=case_of(512)), timing=None) for name in (REFERENCE, "quick")]
    stored = store([time_calls(REFERENCE), time_calls("quick", 0.5), *late])
    words = (
        "What to use here rests on 2 timed calls only; 2 planned calls are missing. "
        "Planned and not timed, for some implementations or all: forward 512 (batch 1"
    )
    finished = End(run=stored.run.id, time=stored.run.time, outcome="finished", exit_code=0)
    assert words not in render_page([replace(stored, end=finished)])
    assert words in render_page([replace(stored, end=None)])


def test_a_run_without_timings_has_no_section(tmp_path: Path) -> None:
    """Where nothing was timed, there is nothing to decide."""
    text = write([store([check("quick", case_of())])], tmp_path).read_text("utf-8")
    assert 'id="use"' not in text
    assert (tmp_path / "decisions.csv").read_text().startswith("machine,device,dtype,threads,form,")


def test_more_rows_than_a_page_can_show_are_counted() -> None:
    """A table of one place shows at most 200 rows, and the number of the others."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length in range(1, 206)
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5 if length % 2 else 1.5))
    ]
    (table,) = decide(store(results)).tables
    assert (len(table.rows), table.left_out) == (200, 5)


def test_an_unknown_mode_and_form_are_shown_as_they_are() -> None:
    """A case of an operator and a mode that this version does not know is named by its id."""
    case = "multihead/B1.E8.H2.X3/odd/mask=none/regime=plain/seed=1/float32/cpu/dreaming"
    finding = Finding(check="forward_parity", status="unsupported", reason="no")
    refused = Result(run="run-1", implementation="quick", case=case, findings=(finding,), suite="quick")
    decisions = decide(store([time_calls(REFERENCE, case=case), time_calls("quick", 0.5, case=case), refused]))
    (row,) = decisions.tables[0].rows
    assert (
        row.form
        == "batch 1, 2 heads, width 8, X 3, projections without bias, sequence first, cross-attention, odd, seed 1"
    )
    assert decisions.tables[0].passes == ("forward+backward (dreaming)",)


# Conformance of what is recommended


def check_many(name: str, count: int, *, wrong: bool = False) -> list[Result]:
    """Return results of this many checked cases, of which the first fails if ``wrong``."""
    made = [check(name, case_of(length)) for length in range(2, 2 + count)]
    return [replace(made[0], findings=(replace(PASSED, status="failed", reason="off"),)), *made[1:]] if wrong else made


def test_a_wrong_implementation_is_no_choice_and_is_named(tmp_path: Path) -> None:
    """The fastest one fails a check elsewhere: the next one is named, and a line says what was left out."""
    results = [
        *check_many(REFERENCE, 20), *check_many("quick", 20, wrong=True), *check_many("even", 20),
        time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("even", 0.8),
    ]  # fmt: skip
    decisions = decide(store(results))
    (table,) = decisions.tables
    assert (table.rows[0].choices[0].words, table.rows[0].choices[0].is_unverified) == ("even", False)
    assert table.warning == "Timed, but fails checks and is no choice: quick."
    write([store(results)], tmp_path)
    (row,) = csv.DictReader((tmp_path / "decisions.csv").read_text("utf-8").splitlines())
    assert (row["implementations"], row["excluded"], row["checked"]) == ("even", "quick", "20")
    assert table.warning in (tmp_path / "index.html").read_text("utf-8")
    assert "1 of 3 is wrong: quick" in (tmp_path / "report.md").read_text("utf-8")


def test_a_wrong_reference_is_never_named_without_saying_so() -> None:
    """Where every other implementation is slower, the reference is named, and that it fails checks."""
    results = [*check_many(REFERENCE, 20, wrong=True), time_calls(REFERENCE), time_calls("slow", 1.5)]
    (table,) = decide(store(results)).tables
    assert f"{REFERENCE} fails checks" in table.rows[0].choices[0].notes


@pytest.mark.parametrize("count", [15, 0])
def test_what_is_not_known_to_conform_is_a_note_below_the_fastest_that_conforms(count: int) -> None:
    """The fastest has too few checked cases: the cell names the next one, and says of the first that it is faster."""
    results = [
        *check_many(REFERENCE, 20), *check_many("quick", count), *check_many("even", 20),
        time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("even", 0.8),
    ]  # fmt: skip
    (table,) = decide(store(results)).tables
    choice = table.rows[0].choices[0]
    assert (choice.words, choice.time, table.warning) == ("even", "0.800× the time [0.800 to 0.800]", "")
    assert choice.notes == (
        "as fast as even or faster, but without a verdict on conformance: quick 0.500× the time [0.500 to 0.500]",
    )
    assert choice.details == ("takes all 20 cases", f"peak memory: 3 MiB, {REFERENCE} 3 MiB")
    assert '<td class="choice winner"><b>even</b>' in render_page([store(results)])


def test_of_what_is_not_known_to_conform_only_what_may_be_faster_is_told() -> None:
    """Beside the reference, the faster and the undecided one are told; the slower one is not."""
    results = [
        *check_many(REFERENCE, 20), time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("slow", 2.0),
        time_calls("wide", 0.4, 0.5, 1.2),
    ]  # fmt: skip
    choice = choose(*results)
    assert (choice.words, choice.kind, choice.notes) == (
        REFERENCE,
        "alone",
        (
            "no other that was timed is known to conform",
            "faster than torch_mha, but without a verdict on conformance: quick 0.500× the time [0.500 to 0.500]",
            "without a verdict on conformance and on speed: wide 0.500× the time [0.400 to 1.20]",
        ),
    )


def test_an_open_speed_of_what_is_not_known_to_conform_leaves_the_answer_decided() -> None:
    """Among those that conform the reference is the fastest, whatever is still open about another one."""
    results = [
        *check_many(REFERENCE, 20), *check_many("slow", 20),
        time_calls(REFERENCE), time_calls("slow", 2.0), time_calls("near", 0.97, 0.98, 0.995),
    ]  # fmt: skip
    choice = choose(*results)
    assert (choice.words, choice.kind, choice.notes) == (
        REFERENCE,
        "reference",
        (
            "faster than every other that conforms and was timed; next is slow 2.00× the time [2.00 to 2.00]",
            "without a verdict on conformance and on speed: near 0.980× the time [0.970 to 0.995]",
        ),
    )


def test_where_it_is_open_who_is_fastest_of_those_that_conform_the_reference_is_kept_for_now() -> None:
    """The fastest is not known to conform, and of ``even`` it is open whether it is faster than the reference."""
    results = [
        *check_many(REFERENCE, 20), *check_many("even", 20),
        time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("even", 0.97, 0.98, 0.995),
    ]  # fmt: skip
    choice = decide(store(results)).tables[0].rows[0].choices[0]
    assert (choice.words, choice.kind, choice.is_for_now) == (FOR_NOW, "unknown", True)
    assert choice.notes == (
        "not decided: even 0.980× the time [0.970 to 0.995]; the confidence interval crosses the threshold of 1 %",
        "faster than torch_mha, but without a verdict on conformance: quick 0.500× the time [0.500 to 0.500]",
    )


def test_where_nothing_is_decided_and_the_reference_fails_checks_nothing_is_advised() -> None:
    """A wrong reference is not kept for now."""
    results = [time_calls(n, r, processes=3) for n, r in ((REFERENCE, 1.0), ("quick", 0.5))]
    choice = choose(*check_many(REFERENCE, 20, wrong=True), *results)
    assert (choice.words, choice.is_for_now) == ("unknown", False)


def test_calls_that_a_cut_run_did_not_reach_are_cells() -> None:
    """A length that no call was timed at has a row, and a pass that was not reached has a column."""
    late = [
        replace(time_calls(name, case=case), timing=None)
        for name in (REFERENCE, "quick")
        for case in (case_of(512), case_of(64, "train"))
    ]
    (table,) = decide(store([time_calls(REFERENCE), time_calls("quick", 0.5), *late])).tables
    assert table.passes == ("forward", "forward+backward")
    assert [(row.length, *(choice.words for choice in row.choices)) for row in table.rows] == [
        ("64", "quick", "not timed"),
        ("512", "not timed", "not timed"),
    ]
    assert table.rows[1].choices[0].notes == ("the run ended before; see What is missing",)


def test_an_implementation_whose_checks_were_not_finished_is_not_known_to_conform() -> None:
    """The checks of the fastest were cut: its cell says so, and names the fastest that conforms."""
    results = [
        *check_many(REFERENCE, 30), *check_many("quick", 25), *check_many("even", 30),
        time_calls(REFERENCE), time_calls("quick", 0.5), time_calls("even", 0.8),
    ]  # fmt: skip
    stored = store(results)
    planned = dict.fromkeys((REFERENCE, "quick", "even"), Planned(cases=30, timed=1))
    cut = replace(stored, run=replace(stored.run, planned=planned))
    choice = decide(cut).tables[0].rows[0].choices[0]
    assert choice.words == "even"
    assert "without a verdict on conformance: quick" in choice.notes[0]


def test_where_nothing_was_checked_the_table_and_each_named_cell_say_so() -> None:
    """A name in bold without a checked case is followed by the words that it was not checked."""
    (table,) = decide(store([time_calls(REFERENCE), time_calls("quick", 0.5)])).tables
    choice = table.rows[0].choices[0]
    assert (choice.notes, choice.is_unverified) == (("conformance not checked",), True)
    assert table.warning == "Nothing here was checked on a suite in this report, so no name is known to conform."


def test_a_repeated_shape_is_one_cell() -> None:
    """Three rows of one shape have it once, across the rows."""
    results = [
        time_calls(name, ratio, case=case_of(length))
        for length, quick in ((64, 0.5), (128, 1.5), (256, 0.5))
        for name, ratio in ((REFERENCE, 1.0), ("quick", quick))
    ]
    assert [row.span for row in decide(store(results)).tables[0].rows] == [3, 0, 0]
    assert render_page([store(results)]).count('<td class="shape" rowspan="3">') == 1


def test_shapes_are_in_the_order_of_their_sizes() -> None:
    """Batch 4 comes before batch 16, as numbers do."""
    results = [
        time_calls(name, ratio, case=case_of().replace("B1.", f"B{batch}."))
        for batch in (16, 1, 4)
        for name, ratio in ((REFERENCE, 1.0), ("quick", 0.5))
    ]
    (table,) = decide(store(results)).tables
    assert [row.form.split(",")[0] for row in table.rows] == ["batch 1", "batch 4", "batch 16"]
