"""Tests of the verdict: what a reader must know is said first, by name, for each machine, and a cut run says so."""

import html
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from attnbench.analysis.completeness import format_resuming, judge_completeness
from attnbench.analysis.summarize import summarize
from attnbench.cli.compare_command import command as compare
from attnbench.cli.report_command import command
from attnbench.records.run_file import ResultsError, StoredRun, merge_runs, read_run
from attnbench.records.types import PERF, End, Finding, Machine, Memory, Planned, Result, Run, Timing
from attnbench.report import write
from attnbench.report.content import WARNINGS, collect_content
from attnbench.report.terminal import format_summary
from attnbench.report.verdict import Verdict, collect_verdict, format_lines
from rendered_reports import render_page

DATA = Path(__file__).parents[1] / "data"
# A real run: a profile of three implementations on one short case, with its end.
REAL = DATA / "run-schema-4.jsonl"
CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/{}/eval"
MACHINE = Machine(name="some-cpu", cpu="Some CPU", cores=4, memory_bytes=2**33)
PASSED = Finding(check="forward_parity", status="passed")
FAILED = Finding(check="forward_parity", status="failed", reason="off")
INCOMPLETE = 3
# What follows the line about a run that was cut, before the command.
CUT = (
    "The run has no end on record: its process was killed, or is still running. To finish the run, in the folder where "
    "it was started (its results are in results)"
)


def make_run(name: str = "r", *, machine: str = "some-cpu", **fields: object) -> Run:
    """Make a run of an older schema, of which nothing is known to be missing."""
    given: dict[str, object] = {
        "id": name, "time": "2026-01-01T00:00:00+00:00", "command": "attnbench run", "versions": {}, "threads": 2,
        "suite": "quick", "machine": replace(MACHINE, name=machine), "schema": 3,
    }  # fmt: skip
    return Run(**(given | fields))  # type: ignore[arg-type]


def make_results(
    name: str, *findings: Finding, cases: int = 30, run: str = "r", device: str = "cpu", suite: str = "quick"
) -> list[Result]:
    """Make results of one implementation, with the same findings on each case."""
    return [
        Result(run=run, implementation=name, case=CASE.format(seed, device), findings=findings, suite=suite)
        for seed in range(cases)
    ]


def make_stored_run(*results: Result, run: Run | None = None, **fields: object) -> StoredRun:
    """Make a stored run with these results."""
    return StoredRun(run=run or make_run(), results=results, path=Path("r.jsonl"), **fields)  # type: ignore[arg-type]


def judge(*runs: StoredRun) -> Verdict:
    """Return the verdict on these runs."""
    return collect_verdict(runs, merge_runs(runs), [judge_completeness(run) for run in runs])


def tell(*runs: StoredRun) -> list[str]:
    """Return the sentences of the verdict on the only place of these runs."""
    (place,) = judge(*runs).places
    assert place.label == ""
    return [sentence.text for sentence in place.sentences]


def test_wrong_implementations_come_first_by_name_with_checks_and_cases() -> None:
    """The wrong implementation with the most cases is first; then those that crash; few that conform are named."""
    other = Finding(check="weights_parity", status="failed", reason="off as well")
    crash = Finding(check="no_stale_state", status="crashed", reason="gone")
    results = [
        *make_results("right", PASSED),
        *make_results("crashing", crash, cases=2), *make_results("crashing", PASSED)[2:],
        *make_results("sdpa", FAILED, other, cases=2), *make_results("sdpa", PASSED)[2:],
        *make_results("worse", FAILED),
    ]  # fmt: skip
    assert tell(make_stored_run(*results)) == [
        "worse is wrong: forward_parity fails. 30 findings of 1 check failed, on 30 cases of quick.",
        "sdpa is wrong: forward_parity and weights_parity fail. 4 findings of 2 checks failed, on 2 cases of quick.",
        "crashing crashes: no_stale_state fails. 2 findings of 1 check failed, on 2 cases of quick.",
        "right conforms.",
    ]


def test_at_most_a_handful_is_named_and_the_rest_is_counted() -> None:
    """Four wrong implementations are named, the others are counted; many that conform are counted."""
    wrong = [r for number in range(6) for r in make_results(f"w{number}", FAILED, cases=6 - number)]
    right = [r for number in range(13) for r in make_results(f"n{number}", PASSED)]
    *_, fourth, left, conform = tell(make_stored_run(*wrong, *right, run=make_run(suite="fuzz")))
    assert fourth == "w3 is wrong: forward_parity fails. 3 findings of 1 check failed, on 3 cases of quick."
    assert (left, conform) == ("2 more fail.", "13 conform.")


def test_what_cannot_run_here_what_is_refused_and_what_has_no_verdict_is_told_with_its_reason() -> None:
    """Implementations of which no check ran are grouped by reason; with too few checked cases there is no verdict."""
    refusal = Finding(check="forward_parity", status="unsupported", reason="takes no mask")
    limit = Finding(check="forward_parity", status="not_run", reason="predicted 5 s a call")
    reasons = ("needs a CUDA device", "device=cpu (supported: {'cuda'})")
    cuda = [Finding(check="forward_parity", status="unsupported", reason=reason) for reason in reasons]
    results = [
        *make_results("flash", cuda[0]), *make_results("xformers", cuda[1]), *make_results("masks", refusal),
        *make_results("slow", limit), *make_results("few", PASSED, cases=12), *make_results("few", refusal)[12:],
        *make_results("known", PASSED, Finding(check="weights_parity", status="expected_failure", reason="NaN")),
    ]  # fmt: skip
    assert tell(make_stored_run(*results)) == [
        "No check failed unexpectedly.",
        "known conforms, except for 30 failures that it declares.",
        "No verdict on few: nothing failed, but it refuses 18 of the 30 cases of quick, 12 were checked, "
        "and a verdict needs 20.",
        "flash and xformers cannot run here (need CUDA).",
        "masks refuses every case (takes no mask).",
        "slow was not run (predicted 5 s a call).",
    ]


def test_the_command_that_leads_to_a_verdict_is_whole() -> None:
    """One command checks all implementations without a verdict; none is named after a large suite, or for odd names."""
    refusal = Finding(check="forward_parity", status="unsupported", reason="takes no mask")
    few = [
        *make_results("one", PASSED, cases=12), *make_results("one", refusal, cases=13)[12:],
        *make_results("two.py:Two", PASSED, cases=13),
    ]  # fmt: skip
    _, first, sentence = judge(make_stored_run(*few)).places[0].sentences
    assert first.step is None
    assert sentence.step is not None
    assert (sentence.kind, sentence.step.words, sentence.step.command) == (
        "gap",
        "To check more cases (core is a larger suite than quick; a verdict needs 20 cases) and write this page again "
        "with them:",
        "attnbench conform --suite core one two.py:Two; attnbench report --since r",
    )  # fmt: skip
    large = judge(make_stored_run(*few, run=make_run(suite="core"))).places[0].sentences
    assert [one.step for one in large] == [None, None, None]
    _, odd = judge(make_stored_run(*make_results("\x1b[2J", PASSED, cases=2))).places[0].sentences
    assert odd.step is not None
    assert odd.step.command.startswith("attnbench conform --suite core; ")
    run = replace(make_run(), command="attnbench run --results='a b' --reports c")
    _, folders = judge(make_stored_run(*few[:12], run=run)).places[0].sentences
    assert folders.step is not None
    assert folders.step.command == (
        "attnbench conform --suite core --results 'a b' one; attnbench report --since r --results 'a b' --reports c"
    )


def test_machines_with_the_same_verdict_share_it() -> None:
    """Machines of which the same is said have one verdict, under both names; another result keeps its own."""
    both = [make_stored_run(*make_results("sdpa", PASSED, run=name), run=make_run(name, machine=f"m-{name}"))
            for name in ("r", "s")]  # fmt: skip
    (place,) = judge(*both).places
    assert (place.label, [sentence.text for sentence in place.sentences]) == ("m-r; m-s", ["sdpa conforms."])
    assert '<p class="place">m-r; m-s</p>' in render_page(both)
    third = make_stored_run(*make_results("sdpa", FAILED, run="t"), run=make_run("t", machine="m-t"))
    assert [place.label for place in judge(*both, third).places] == ["m-r; m-s", "m-t"]


def test_an_incomplete_run_says_on_what_its_recommendations_rest() -> None:
    """Timed and missing calls are counted; without a timed call nothing is recommended; a complete run is silent."""
    stored = read_run(REAL)
    timed = sum(result.timing is not None for result in stored.results)
    planned = {name: replace(one, timed=one.timed + 2) for name, one in (stored.run.planned or {}).items()}
    lacking = replace(stored, run=replace(stored.run, planned=planned))
    assert judge(stored).basis == ""
    assert judge(lacking).basis == (
        f"What to use here rests on {timed} timed calls only; {2 * len(planned)} planned calls are missing."
    )
    untimed = replace(lacking, results=tuple(replace(result, timing=None) for result in stored.results))
    calls = sum(result.memory is not None for result in merge_runs([untimed]))
    nothing = "This report recommends no implementation: no call was timed."
    assert judge(untimed).basis == nothing
    refused = sum(result.untimed is not None for result in merge_runs([untimed]))
    wanted = sum(one.timed for one in planned.values()) - refused
    assert judge(untimed).extent == (
        f"So far: checks are missing; 0 of {wanted} planned calls timed; peak memory measured for {calls} of {wanted}."
    )
    every = replace(stored, end=None, results=untimed.results)
    assert judge(every).extent == (
        f"So far: all checks ended; 0 of {timed} planned calls timed; peak memory measured for {calls} of {calls}."
    )
    bare = replace(untimed, results=tuple(replace(result, memory=None) for result in untimed.results))
    assert judge(bare).extent.endswith(f"peak memory measured for 0 of {wanted}.")


def test_a_report_without_times_says_in_place_why_and_leads_to_the_reasons() -> None:
    """The line counts the calls that failed, were refused or were left out; a link leads to the table of reasons.

    Where times would be, a sentence names what was not measured because it failed.
    """
    reasons = ("failed: off", "error: no", "unsupported: needs a mask", "not_run: too long")
    calls = make_results("sdpa", FAILED, cases=4, suite=PERF)
    untimed = [replace(call, untimed=reason) for call, reason in zip(calls, reasons, strict=True)]
    stored = make_stored_run(*untimed, *make_results("right", PASSED, cases=1, suite=PERF))
    (place,) = judge(stored).places
    assert place.checked.endswith("; no call was timed (2 failed a check, 1 refused, 1 left out).")
    page = render_page([stored])
    assert '<a href="#untimed">Why calls were not timed</a>' in page
    assert page.count('<details id="untimed">') == 1
    sentence = "Not measured, because it failed: sdpa (2 calls)."
    assert sentence in page.partition('<section id="measured">')[2]


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("interrupted", "The run was stopped by Ctrl-C or by a signal."),
        ("error", "An error stopped the run."),
        (None, "The run has no end on record: its process was killed, or is still running."),
    ],
)
def test_an_unfinished_line_is_followed_by_its_reason_its_folder_and_its_command(
    outcome: Literal["interrupted", "error"] | None, words: str
) -> None:
    """What is unfinished and what has no verdict has a command in the next line, and a colour and a sign of its own.

    At the top of the page, only the command that finishes the run is shown; "What is missing" has both.
    """
    run = make_run(
        planned={"sdpa": Planned(cases=30, timed=4), "few": Planned(cases=2)}, schema=4,
        implementations=("sdpa", "few"), command="attnbench run sdpa few --results mine",
    )  # fmt: skip
    end = End(run="r", time=run.time, outcome=outcome, exit_code=1) if outcome else None
    results = [*make_results("sdpa", PASSED), *make_results("few", PASSED, cases=2)]
    stored = make_stored_run(*results, run=run, end=end)
    lines = list(format_lines(judge(stored)))
    assert lines[0].startswith("Timing had not begun: the run ")
    assert lines[1] == (
        f"{words} To finish the run, in the folder where it was started (its results are in mine): "
        "attnbench run --resume r --results mine"
    )
    assert lines[2] == "No check failed unexpectedly."
    assert lines[4].startswith("No verdict on few: ")
    assert "attnbench conform --suite core --results mine few; attnbench report --since r " in lines[5]
    page = render_page([stored])
    header = page[page.index("<header>") : page.index("</header>")]
    kinds = re.findall(r'class="told say-(\w+)">|<div class="command (next)"', header)
    assert ["".join(one) for one in kinds] == ["gap", "next", "good", "good", "gap", "gap"]
    for kind, sign in {"bad": "✗", "gap": "?", "good": "✓", "other": "–"}.items():
        assert f'.told.say-{kind}::before {{ content: "{sign}"; }}' in page


def test_a_run_that_was_cut_says_so_in_the_line_of_the_verdict() -> None:
    """What was not finished follows what is wrong, and does not conform; the second line says what was checked."""
    names = ("sdpa", "right", "varlen")
    run = make_run(planned=dict.fromkeys(names, Planned(cases=30)), schema=4, implementations=names)
    results = [
        *make_results("sdpa", FAILED, cases=28), *make_results("sdpa", PASSED)[28:],
        *make_results("right", PASSED), *make_results("varlen", PASSED, cases=21),
    ]  # fmt: skip
    found = judge(make_stored_run(*results, run=run))
    assert not found.complete
    assert list(format_lines(found)) == [
        "sdpa is wrong: forward_parity fails. 28 findings of 1 check failed, on 28 cases of quick.",
        "varlen (21 of 30 cases done) was not finished: the run was cut.",
        f"{CUT}: attnbench run --resume r",
        "right conforms.",
        "Checked: 3 implementations, 30 cases of quick, 1 check, 81 findings, each of one check on one case (53 "
        "passed, 28 failed); no call was timed.",
        "This report recommends no implementation: no call was timed. So far: checks are missing.",
    ]


def test_every_section_of_an_incomplete_report_says_what_may_be_missing(tmp_path: Path) -> None:
    """Failures, conformance and measures each have a sentence on the page; of several runs the count.

    A complete run has none of them.
    """
    whole = read_run(REAL)
    cut = replace(whole, end=None, results=tuple(merge_runs([whole])[1:]))
    other = replace(
        whole, run=replace(whole.run, id="other"), results=tuple(replace(one, run="other") for one in whole.results)
    )
    own = [f": {WARNINGS[section]}." for section in ("failures", "conformance")]
    incomplete = "The run is incomplete", "1 of 2 runs is incomplete"
    for runs, start in (([cut], incomplete[0]), ([whole], ""), ([cut, other], incomplete[1])):
        write(runs, tmp_path)
        text = (tmp_path / "index.html").read_text("utf-8")
        assert [text.count(f"{start}{sentence}") for sentence in own] == [bool(start)] * 2
        assert text.count(f"{start}. So far: checks are missing; ") == bool(start)


def test_where_only_timings_are_missing_no_check_is_said_to_be_missing() -> None:
    """All planned calls were checked before timing: the failures are all; without one call they may be more."""
    stored = replace(read_run(REAL), end=None)
    results = merge_runs([stored])
    untimed = replace(stored, results=tuple(replace(one, timing=None, memory=None) for one in results))
    assert judge(untimed).checks_complete
    fewer = replace(untimed, results=untimed.results[1:])
    for one in (fewer, replace(untimed, lost_lines=1), replace(untimed, run=replace(untimed.run, planned={}))):
        assert not judge(one).checks_complete
    assert judge(read_run(REAL)).checks_complete


def test_an_implementation_whose_timing_was_not_finished_still_conforms() -> None:
    """If all checks were made and only timings are missing, the verdict on conformance stands."""
    run = make_run(planned={"sdpa": Planned(cases=30, timed=4)}, schema=4, implementations=("sdpa",))
    assert tell(make_stored_run(*make_results("sdpa", PASSED), run=run)) == [
        "Timing had not begun: the run was cut.",
        "No check failed unexpectedly.",
        "sdpa conforms.",
    ]


def test_a_profile_is_no_verdict_on_conformance() -> None:
    """Implementations that were only profiled are said to pass the checks before timing."""
    measured = [
        replace(
            one,
            timing=Timing(samples_ns=((5, 6),), threads=2),
            memory=Memory(peak_bytes=1, threads=2, method="allocator"),
        )
        for one in make_results("sdpa", PASSED, cases=2, suite=PERF)
    ]
    line, command, checked = format_lines(judge(make_stored_run(*measured, run=make_run(suite=PERF))))
    assert line == "sdpa passes the checks before timing; a profile is no verdict on conformance."
    assert command.endswith(" attnbench conform --suite core sdpa; attnbench report --since r")
    assert checked == (
        "Checked: 1 implementation, 2 cases of the profile, 1 check, 2 findings, each of one check on one case (2 "
        "passed, none failed); 2 calls timed."
    )


def test_alike_machines_share_their_lines_and_say_that_the_numbers_are_of_each() -> None:
    """Two machines with equal lines have "on each" in the line of what was checked; the folded tables count both."""
    refused = Finding(check="forward_parity", status="unsupported", reason="no")
    runs = [
        make_stored_run(
            *make_results("sdpa", PASSED, run=name), *make_results("other", refused, run=name),
            run=make_run(name, machine=f"m-{name}"),
        )
        for name in ("r", "s")
    ]  # fmt: skip
    (checked,) = [line for line in format_lines(judge(*runs)) if ": Checked on each: " in line]
    assert checked.startswith("m-r; m-s: ")
    assert " 30 findings, each of one check on one case (30 passed, none failed)" in checked
    (folded,) = collect_content(runs).folded
    assert folded.summary == "Refused: 60 findings of 1 implementation, on 2 machines together"
    (own,) = collect_content([runs[0], make_stored_run(*make_results("sdpa", PASSED, run="s"), run=runs[1].run)]).folded
    assert own.summary == "Refused: 30 findings of 1 implementation, on m-r"


def test_each_machine_and_device_has_its_own_sentences() -> None:
    """What is wrong on one machine or device is not added to another; every line has the label of its place."""
    first = make_stored_run(*make_results("sdpa", PASSED), run=make_run())
    second = make_stored_run(
        *make_results("sdpa", FAILED, cases=3, run="s"), run=make_run("s", machine="other"), ends_in_line=True,
        lost_lines=1,
    )  # fmt: skip
    third = make_stored_run(*make_results("sdpa", PASSED, run="t", device="cuda"), run=make_run("t", machine="other"))
    assert [line for line in format_lines(judge(first, second, third)) if "Checked" not in line] == [
        "other, cpu: sdpa is wrong: forward_parity fails. 3 findings of 1 check failed, on 3 cases of quick.",
        "other, cpu: Run s was cut.",
        "other, cpu: The last line was half-written when the run was cut.",
        f"{CUT.replace('run, in', 'run, on other, in')}: attnbench run --resume s",
        "other, cuda; some-cpu: sdpa conforms.",
        "This report recommends no implementation: no call was timed. So far: checks are missing.",
    ]
    assert [place.label for place in judge(first, second).places] == ["other", "some-cpu"]


def test_without_findings_nothing_was_checked() -> None:
    """The verdict on a run without findings says that nothing was checked."""
    assert tell(make_stored_run()) == ["Nothing was checked."]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "text",
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', r"\1", "/", "..", "\0", "x" * 10_000, "\u202e", ""],
)
def test_names_of_any_kind_are_text(text: str, several: bool) -> None:
    """Names and reasons from a run file are text in the header, with one machine and with two."""
    finding = Finding(check=text, status="failed", reason=text or "none")
    refusal = Finding(check="forward_parity", status="unsupported", reason=text or "none")
    runs = [
        make_stored_run(
            *make_results(text, finding, run=name), *make_results(f"{text}2", refusal, run=name),
            run=make_run(name, machine=f"{text}{name}", suite=text),
        )
        for name in (("r", "s") if several else ("r",))
    ]  # fmt: skip
    for line in format_lines(judge(*runs)):
        assert len(line) < 1_000
        assert line.isprintable()
    page = render_page(runs)
    header = page[page.index("<header>") : page.index("</header>")]
    assert set(re.findall(r"</?([a-z0-9]+)", header)) <= {"header", "p", "a", "div", "h1", "span", "pre", "button"}


def test_the_command_prints_the_table_and_the_path_of_the_page(tmp_path: Path) -> None:
    """The summary comes first, and the path of the page is the last line; the page has the sentences of the verdict."""
    done = CliRunner().invoke(command, [str(REAL), "--reports", str(tmp_path)], standalone_mode=False)
    *said, path = done.output.splitlines()
    assert (done.return_value, path) == (0, str(tmp_path / "index.html"))
    shown = format_summary(summarize([read_run(REAL)]))
    assert "\n".join(said).startswith(shown)
    text = html.unescape(re.sub(r"<[^>]*>|\\", "", (tmp_path / "index.html").read_text(encoding="utf-8")))
    for place in judge(read_run(REAL)).places:
        assert all(one.text in " ".join(text.split()) for one in place.sentences)


# A run cut at any byte


def cut(at: int, folder: Path) -> Path:
    """Write the first bytes of the real run to a file."""
    path = folder / "cut.jsonl"
    path.write_bytes(REAL.read_bytes()[:at])
    return path


def list_cuts(count: int) -> Iterator[int]:
    """Yield places for a cut: around each border of lines, and ``count`` random ones."""
    content = REAL.read_bytes()
    for place in (place for place, byte in enumerate(content) if byte == ord("\n")):
        yield from (at for at in (place - 1, place, place + 1, place + 2) if at < len(content))
    yield from random.Random(21).sample(range(len(content)), count)


def test_a_run_cut_at_any_byte_says_so(tmp_path: Path) -> None:
    """At every cut behind the first line the verdict is incomplete and says so; only the last line break is no loss."""
    content = REAL.read_bytes()
    first = content.index(b"\n")
    for at in sorted({*list_cuts(300), *range(len(content) - 120, len(content))}):
        path = cut(at, tmp_path)
        if at < first:
            with pytest.raises(ResultsError, match="contains no run"):
                read_run(path)
            continue
        found = judge(read_run(path))
        assert found.complete == (at == len(content) - 1), at
        assert ("was cut" in " ".join(format_lines(found))) == (not found.complete), at


def test_the_report_of_a_cut_run_is_written_and_exits_with_3(tmp_path: Path) -> None:
    """At line borders and at random bytes the report is written without a traceback, and the exit code is 3."""
    content = REAL.read_bytes()
    borders = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")][:-1]
    for at in (*borders, *(at for at in list_cuts(4) if at > len(content) // 2)):
        words = [str(cut(at, tmp_path)), "--reports", str(tmp_path / "report")]
        done = CliRunner().invoke(command, words, standalone_mode=False)
        assert done.exception is None, at
        assert done.return_value == (INCOMPLETE if at != len(content) - 1 else 0), at


def test_a_line_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A line in the middle that cannot be read is counted in the verdict, and the exit code is 3."""
    first, ceiling, *rest = REAL.read_bytes().splitlines(keepends=True)
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join([first, ceiling[:20] + b"\n", *rest]))
    done = CliRunner().invoke(command, [str(path), "--reports", str(tmp_path / "report")], standalone_mode=False)
    assert done.return_value == INCOMPLETE
    assert "1 line of the run could not be read." in done.output


def test_an_interrupted_run_says_so() -> None:
    """A run with an end that says that it was interrupted is incomplete."""
    stored = read_run(REAL)
    assert stored.end is not None
    found = judge(replace(stored, end=End(run=stored.run.id, time="t", outcome="interrupted", exit_code=130)))
    assert not found.complete
    assert "The run was interrupted." in " ".join(format_lines(found))


def test_the_report_of_the_newest_run_names_newer_runs_without_results(tmp_path: Path) -> None:
    """If no run is named, a newer run that was cut before its first result is named in a warning."""
    folder = tmp_path / "results" / "some-cpu"
    folder.mkdir(parents=True)
    (folder / "20260101-000000-aaaa.jsonl").write_bytes(REAL.read_bytes())
    (folder / "20260102-000000-aaaa.jsonl").write_bytes(REAL.read_bytes().partition(b"\n")[0])
    words = ["--results", str(folder.parent), "--reports", str(tmp_path / "report")]
    done = CliRunner().invoke(command, words, standalone_mode=False)
    assert "warning: the newer run 20260102-000000-aaaa has no results" in done.output


def test_compare_says_that_a_run_is_incomplete(tmp_path: Path) -> None:
    """``compare`` has a line about each run that is incomplete, and none about a complete one."""
    path = cut(len(REAL.read_bytes()) - 3_000, tmp_path)
    done = CliRunner().invoke(compare, [str(REAL), str(path)], standalone_mode=False)
    assert "warning: NEW is incomplete: The timing of sdpa (0 of 1 calls timed) had not begun: run " in done.output
    assert "BASE is incomplete" not in done.output


def test_a_cut_run_names_each_implementation_and_the_command_that_finishes_it() -> None:
    """Those without a result are not started, all of the run are counted; page and Markdown have the command."""
    names = ("sdpa", "varlen", "later")
    run = make_run(
        command="attnbench run sdpa varlen later --results runs --reports=out --suite quick", implementations=names,
        planned=dict.fromkeys(names, Planned(cases=30, timed=6)), schema=4,
    )  # fmt: skip
    results = [*make_results("sdpa", PASSED), *make_results("varlen", PASSED, cases=14)]
    stored = make_stored_run(
        *results, run=run, ends_in_line=True, lost_lines=1, problems=("r.jsonl line 46 cannot be read",)
    )
    lines = list(format_lines(judge(stored)))
    assert lines[:3] == [
        "varlen (14 of 30 cases done) and later (not started) were not finished: the run was cut.",
        "Timing had not begun.",
        "The last line was half-written when the run was cut.",
    ]
    assert lines[-1].startswith("This report recommends no implementation: no call was timed. So far: checks are ")
    assert lines[-2] == (
        "Checked: 2 of 3 implementations, 30 cases of quick, 1 check, 44 findings, each of one check on one case (44 "
        "passed, none failed)."
    )
    command_line = "attnbench run --resume r --results runs --reports out"
    assert lines[3] == f"{CUT.replace('in results)', 'in runs)')}: {command_line}"
    page = re.sub(r'<span class="word">(.*?)</span>', r"\1", render_page([stored]))
    assert f'<pre>{command_line}</pre><button class="copy" type="button" hidden data-copy="{command_line}">' in page
    assert "later: not started" in page
    assert "<details open><summary>How much was covered" in page


@pytest.mark.parametrize(
    ("text", "name", "finishes"),
    [
        ("attnbench run a", "r", "attnbench run --resume r"),
        ("attnbench conform a --reports", "r", "attnbench conform --resume r"),
        ("attnbench fuzz a", "r", ""),
        ("attnbench", "r", ""),
        ("attnbench run 'a", "r", ""),
        ("attnbench run a --results 'x; rm y'", "r", "attnbench run --resume r --results 'x; rm y'"),
        ("attnbench run a", "r\x1b[2J", ""),
    ],
)
def test_only_commands_that_can_be_resumed_are_named_and_words_are_quoted(text: str, name: str, finishes: str) -> None:
    """A command without --resume, one that cannot be split, and an id with control characters have no next step."""
    assert format_resuming(make_run(name, command=text)) == finishes


def test_each_wrong_implementation_leads_to_its_failures() -> None:
    """The line of a wrong implementation links to the heading of its failures, on the right machine."""
    runs = [
        make_stored_run(*make_results("sdpa", FAILED, run=name, cases=cases), run=make_run(name, machine=f"m-{name}"))
        for name, cases in (("r", 30), ("s", 29))
    ]
    page = render_page(runs)
    links = re.findall(r'say-bad"><a href="#([^"]*)"', page)
    assert len(set(links)) == 2
    assert all(page.count(f'<h3 id="{link}">sdpa on m-') == 1 for link in links)
