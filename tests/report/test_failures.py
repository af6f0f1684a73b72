"""Tests of the failures of a report: how they are grouped, chosen and ordered, and that their texts stay texts."""

import csv
import html
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.root_causes import find_root_causes
from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import StoredRun
from attnbench.records.types import Finding, Machine, Result, Run, Status, format_reproduce_line
from attnbench.report import failures, write
from attnbench.report.content import collect_content
from attnbench.report.failures import Failures, collect_failures
from attnbench.report.numbers import shorten_text
from rendered_reports import render_markdown, render_page

CASE = "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed={}/float32/cpu/eval"
REQUIRED = read_checks()["forward_parity"].requirement
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    r"\1",
    "a/../b",
    "null\x00byte",
    "line\n```\n# head\r\x1b[201~",
    "\u202eright to left",
    "'; touch owned; '",
    "-x",
    "x" * 10_000,
)


def make_run(number: int = 1) -> Run:
    """Make the record of a run on an invented machine."""
    return Run(
        id=f"20260101-00000{number}-abcd", time="2026-01-01T00:00:00+00:00", command="attnbench conform",
        machine=Machine(name=f"machine-{number}", cpu="Some CPU", cores=4, memory_bytes=2**30), versions={}, threads=2,
    )  # fmt: skip


def fail(
    check: str,
    reason: str = "It holds. But it is off.",
    status: Status = "failed",
    *,
    excess: float | None = None,
    warning: str = "",
) -> Finding:
    """Make a failed finding, whose error is ``excess`` times the allowed error."""
    return Finding(
        check=check, status=status, reason=reason, measured=None if excess is None else excess * 0.5,
        allowed=None if excess is None else 0.5, warnings=(warning,) if warning else (),
    )  # fmt: skip


def make_stored_run(*found: tuple[str, Finding], number: int = 1) -> StoredRun:
    """Make a run with one result for each implementation and finding; each result has a case of its own."""
    run = make_run(number)
    results = tuple(
        Result(run=run.id, implementation=name, case=CASE.format(place), findings=(finding,), suite="quick")
        for place, (name, finding) in enumerate(found)
    )
    return StoredRun(run=run, results=results, path=Path(f"{run.id}.jsonl"))


def collect(*found: tuple[str, Finding]) -> Failures:
    """Collect the failures of one run."""
    stored = make_stored_run(*found)
    return collect_failures([stored], stored.results)


def test_the_groups_are_those_that_conform_prints() -> None:
    """A group has the findings of one root cause: the page and the terminal show the same groups."""
    found = [("mine", fail(name)) for name in ("forward_parity", "input_gradients", "forward_parity")]
    found.append(("yours", fail("stays_finite")))
    stored = make_stored_run(*found)
    causes = find_root_causes(stored.results)
    made = collect_failures([stored], stored.results).groups
    assert sorted((group.implementation, sorted(group.checks.items())) for group in made) == sorted(
        (cause.implementation, sorted(cause.checks.items())) for cause in causes
    )


def test_a_group_tells_its_worst_case_and_how_to_reproduce_it() -> None:
    """The command is that of the case with the largest error over the allowed error."""
    (group,) = collect(*[("mine", fail("forward_parity", f"{REQUIRED} But {n} differ.", excess=n)) for n in (3, 70, 9)]
                       ).shown  # fmt: skip
    assert (group.worst.case, group.worst.excess, group.worst.fault) == (
        CASE.format(1),
        "70.0 × the allowed error",
        "70 differ.",
    )
    assert group.command == f"attnbench reproduce '{CASE.format(1)}' --check forward_parity mine"
    assert [one.excess for one in group.listed] == [f"{n} × the allowed error" for n in ("70.0", "9.00", "3.00")]
    assert (group.requirement, group.size) == (REQUIRED, "failed, 3 cases of quick")


@pytest.mark.parametrize(
    ("measured", "allowed", "excess"),
    [
        (8.2e-9, 0.0, "must be exact; off by up to 8.2e-09"),
        (math.inf, 1.0, "∞ × the allowed error"),
        (None, 1.0, ""),
        (math.nan, 1.0, ""),
        (-1.0, 1.0, ""),
        (1.0, -1.0, ""),
    ],
)
def test_an_error_where_none_is_allowed_is_told_itself_and_one_without_sense_is_left_out(
    measured: float | None, allowed: float, excess: str
) -> None:
    """Where nothing is allowed the error itself is told; an error that is missing, NaN or negative gives no number."""
    finding = Finding(check="forward_parity", status="failed", reason="off", measured=measured, allowed=allowed)
    (group,) = collect(("mine", finding)).shown
    assert group.worst.excess == excess


def test_the_largest_groups_come_first_then_the_worst() -> None:
    """Of equally large groups, one without a number is the worst, then the largest error; exceptions come last."""
    found = [("mine", fail("stays_finite", excess=2)), ("mine", fail("repeats_itself", excess=5))]
    found += [("mine", fail("no_stale_state"))] + [("mine", fail("forward_parity", excess=1))] * 2
    found += [("mine", fail("weights_parity", "ValueError: no", "error"))] * 9
    assert [group.title for group in collect(*found).groups] == [
        "forward_parity", "no_stale_state", "repeats_itself", "stays_finite", "weights_parity",
    ]  # fmt: skip


def test_the_page_has_at_most_200_groups_and_the_csv_all(tmp_path: Path) -> None:
    """Of 230 groups the page shows 200, the largest of each implementation among them, and says so."""
    found = [("many", fail(f"check_{n}", "off")) for n in range(229)]
    stored = make_stored_run(*found * 2, ("few", fail("stays_finite")))
    page = write([stored], tmp_path).read_text("utf-8")
    assert page.count('<article class="failure"') == failures.MOST_GROUPS == 200
    assert "Shown are 200 of 230 groups of failures" in page
    rows = list(csv.DictReader((tmp_path / "failures.csv").read_text("utf-8").splitlines()))
    assert (len(rows), sum(int(row["findings"]) for row in rows)) == (230, 459)
    assert any(group.implementation == "few" for group in collect_content([stored]).failures.shown)


def test_a_group_lists_twenty_cases_and_counts_the_others(tmp_path: Path) -> None:
    """Of 25 cases the page lists 20, and says that 5 more are in findings.csv; these have all of them."""
    page = write([make_stored_run(*[("mine", fail("forward_parity"))] * 25)], tmp_path).read_text("utf-8")
    assert len(re.findall(r"<tr><td><code>multihead/", page)) == failures.MOST_CASES == 20
    assert "25 failed findings" in page
    assert "And 5 further findings, all in findings.csv." in page
    assert len((tmp_path / "findings.csv").read_text().splitlines()) == 26


def test_a_failure_is_shown_with_its_reason_and_the_command_that_reproduces_it() -> None:
    """The page gives the reason, the warnings and the command, with a button that copies it."""
    finding = fail("forward_parity", "3 of 240 values are off", warning="rather slow")
    text = html.unescape(render_page([make_stored_run(("mine", finding))]))
    command = f"attnbench reproduce '{CASE.format(0)}' --check forward_parity mine"
    text = re.sub(r'<span class="word">(.*?)</span>', r"\1", text)
    assert f'<pre>{command}</pre><button class="copy" type="button" hidden data-copy="{command}">' in text
    assert "3 of 240 values are off" in text
    assert "Warning: rather slow" in text


def test_every_group_has_an_anchor_of_its_own() -> None:
    """Two groups of one check, and the same failure on two machines, have different ids; all links have a target."""
    found = [("mine", fail("forward_parity", "one", status)) for status in ("failed", "error")]
    page = render_page([make_stored_run(*found), make_stored_run(*found, number=2)])
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    links = re.findall(r'href="#(failure-[^"]*)"', page)
    assert len(set(links)) == 2
    assert set(links) <= set(ids)
    assert page.count('<article class="failure"') == 4


def test_failures_of_two_machines_are_not_joined() -> None:
    """Each machine has its own groups, and the headings name the machine; with one machine they do not."""
    failed = ("mine", fail("forward_parity"))
    both = [make_stored_run(failed), make_stored_run(failed, number=2)]
    shown = collect_content(both).failures.shown
    assert [(group.machine, group.count) for group in shown] == [("machine-1", 1), ("machine-2", 1)]
    assert "mine on machine-2" in render_page(both)
    assert "mine on machine-1" not in render_page(both[:1])


@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_run_stay_texts(text: str, machines: int) -> None:
    """Names, checks, reasons and warnings of any kind are no markup in the page, and end no block of the Markdown."""
    own = [(text, replace(fail(text, text, status, warning=text))) for status in ("failed", "expected_failure",
           "unsupported", "not_run")]  # fmt: skip
    runs = [make_stored_run(*own, number=number) for number in range(1, machines + 1)]
    page = render_page(runs)
    assert page.count("<script") == 1  # the page's own
    assert "<img src=x" not in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch("[a-z0-9-]+", one) for one in ids)
    command = format_reproduce_line(text, CASE.format(0), text)
    assert command in html.unescape(page)
    assert "\n# head" not in render_markdown(runs)


def test_long_reasons_are_cut_on_the_page_and_whole_in_the_csv(tmp_path: Path) -> None:
    """A reason of 10,000 characters is cut on the page; findings.csv has all of it."""
    long = "word " * 2_000
    found = [("mine", fail("forward_parity", long)), ("mine", fail("stays_finite", long, "unsupported"))]
    page = write([make_stored_run(*found)], tmp_path).read_text("utf-8")
    assert long not in page
    assert page.count("word ") < 1_000
    assert (tmp_path / "findings.csv").read_text("utf-8").count(long.strip()) == 2


def test_many_failing_implementations_show_few_groups_each() -> None:
    """One failing implementation shows 5 groups unfolded, and each of ten shows 2; the other groups are folded."""
    checks = list(read_checks())[:8]
    for names, unfolded in ((1, 5), (10, 2), (40, 1)):
        made = collect(*[(f"i{n}", fail(check, f"x But {check}.")) for n in range(names) for check in checks])
        assert [len(first) for _, _, first, _ in made.blocks] == [unfolded] * names


def test_a_long_text_is_cut_between_words() -> None:
    """A text is cut after its last whole word; one without a space is cut anywhere."""
    assert shorten_text("must be allowed here", 14) == "must be …"
    assert shorten_text("x" * 30, 5) == "xxxxx …"
