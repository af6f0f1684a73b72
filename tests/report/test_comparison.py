"""Tests of comparisons as content, as a page and as Markdown."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from attnbench.analysis.run_diff import compare_implementations, compare_runs
from attnbench.records.run_file import StoredRun
from attnbench.records.types import End, Finding, Result
from attnbench.report.comparison import markdown, page
from attnbench.report.comparison.content import ComparisonContent, collect_comparison
from timed_runs import REFERENCE, case_of, check, store, time_calls

WRONG = Finding(check="forward_parity", status="failed", reason="off by 2", measured=2.0, allowed=0.5)
REFUSED = Finding(check="forward_parity", status="unsupported", reason="takes no mask")


def make_side(
    ratio: float = 1.0, *, more_bytes: int = 0, checked: Finding | None = None, run: str = "run-1", **settings: Any
) -> StoredRun:
    """Return a run with the reference, with ``mine``, whose time is ``ratio``, and with a checked case of ``other``."""
    mine = time_calls("mine", ratio, run=run)
    assert mine.memory is not None
    mine = replace(mine, memory=replace(mine.memory, peak_bytes=mine.memory.peak_bytes + more_bytes))
    other = check("other", case_of(8, "eval"), run=run)
    other = replace(other, findings=(checked,)) if checked else other
    stored = store([time_calls(REFERENCE, run=run), mine, other], run=run, **settings)
    return replace(stored, end=End(run=run, time="2026-01-01T01:00:00+00:00", outcome="finished", exit_code=0))


def compare(base: StoredRun, new: StoredRun) -> ComparisonContent:
    """Return the content of the comparison of two stored runs."""
    return collect_comparison(list(compare_runs(base, new, threshold=0.05)), base, new, threshold=0.05)


def compare_worse() -> ComparisonContent:
    """Return a comparison with a change of each kind."""
    base = [*make_side().results, time_calls("quick", 1.5), time_calls("left")]
    new = [*make_side(1.25, more_bytes=1, checked=WRONG).results, time_calls("quick", 1.0), time_calls("came")]
    new = [replace(result, run="run-2") for result in new]
    return compare(store(base), store(new, run="run-2"))


def test_what_became_worse_comes_first() -> None:
    """Sections and sentences: wrong, slower, bigger, then better; each sentence names the implementation."""
    content = compare_worse()
    assert [section.anchor for section in content.sections] == ["wrong", "slower", "bigger", "better"]
    assert [(one.kind, one.text) for one in content.sentences] == [
        ("bad", "other became wrong: forward_parity (1 case)."),
        ("bad", "mine is slower on 1 case (+25 %, length 64, forward)."),
        ("bad", "mine has more peak memory on 1 case (+1 B, length 64, forward)."),
        ("good", "quick is faster on 1 case (−33.3 %, length 64, forward)."),
    ]
    assert content.common == "batch 1, 4 heads, width 256, float32, cpu"


def test_a_row_has_both_numbers_and_the_change_with_its_interval() -> None:
    """A time is from ratio to ratio, each with its interval; a byte more is told exactly."""
    base = store([time_calls(REFERENCE), time_calls("mine", 1.0, 1.01, 1.02)])
    new = [time_calls(REFERENCE, run="run-2"), time_calls("mine", 1.5, 1.52, 1.54, run="run-2")]
    (section,) = compare(base, store(new, run="run-2")).sections
    (row,) = section.groups[0].rows
    assert (row.base, row.new, row.unit) == ("1.01 [1.00 to 1.02]", "1.52 [1.50 to 1.54]", " × reference")
    assert row.change == "+50.5 % [+47.1 % to +54 %]"
    bigger = next(one for one in compare_worse().sections if one.anchor == "bigger")
    assert bigger.groups[0].rows[0].change == "+1 B"


def test_the_same_runs_have_no_worse_sentence() -> None:
    """Without changes there is one good sentence."""
    (sentence,) = compare(make_side(), make_side(run="run-2")).sentences
    assert (sentence.kind, sentence.text.split(" in ")[0]) == ("good", "Nothing became worse")


def test_a_comparison_without_a_verdict_is_not_said_to_be_no_worse_and_has_a_remedy() -> None:
    """Where a comparison has no verdict, one sentence says so, that the others are no worse, and how to decide it."""
    base = store([time_calls(REFERENCE), time_calls("mine", 0.7, 1.3)])
    new = store([time_calls(name, run="run-2") for name in (REFERENCE, "mine")], run="run-2")
    (gap,) = compare(base, new).sentences
    total = len(list(compare_runs(base, new, threshold=0.05)))
    assert gap.text == (
        f"Undecided: 1 of {total} comparisons, of mine, has no verdict; nothing became worse in the others. "
        "Time both again while nothing else runs, in more processes (attnbench profile --processes 30)."
    )
    assert gap.kind == "gap"


def test_what_only_one_side_has_is_listed() -> None:
    """Implementations, cases, timings and checks of one side only, with the reason on the other side."""
    base = make_side()
    untimed = replace(base.results[1], timing=None, memory=None, untimed="crashed", run="run-2")
    refused = replace(base.results[2], findings=(REFUSED,), run="run-2")
    further = [check("mine", case_of(9, "eval"), run="run-2"), check("came", case_of(8), run="run-2")]
    further[1] = replace(further[1], findings=(WRONG,))
    results = [replace(base.results[0], run="run-2"), untimed, refused, *further]
    found = compare(base, store(results, run="run-2")).only
    assert [(one.side, one.implementation, one.count, one.what, one.note) for one in found] == [
        ("BASE", "mine", "1 timing", "timings", "crashed"),
        ("BASE", "other", "1 finding", "checks that ran", "unsupported: takes no mask"),
        ("NEW", "mine", "1 case", "cases", ""),
        ("NEW", "came", "1 case", "the whole implementation", "1 with failures"),
    ]


def test_differences_of_the_runs_are_told_first() -> None:
    """Another machine, other versions and other threads are warnings, above all in Markdown."""
    new = make_side(run="run-2", machine="other-cpu", threads=4)
    new = replace(new, run=replace(new.run, versions={"torch": "2.11.0"}))
    content = compare(make_side(), new)
    assert content.warnings == (
        "The runs differ in machine some-cpu → other-cpu, threads 2 → 4 and torch 2.10.0 → 2.11.0.",
        "The runs are from different machines: times and bytes are not compared.",
    )
    assert markdown.render(content).splitlines()[2] == "> [!WARNING]"
    assert compare(make_side(), make_side(run="run-2")).warnings == ()


def test_a_change_of_the_code_is_no_warning() -> None:
    """Another commit and other source files are shown, and are what a comparison is about."""
    content = compare(make_side(sources={"mine": "a" * 64}), make_side(run="run-2", sources={"mine": "b" * 64}))
    assert content.warnings == ()
    assert [one.what for one in content.conditions if one.differs] == ["source of mine", "run"]


def test_two_implementations_have_one_run() -> None:
    """The changes of two implementations are told of the new one, and the conditions are those of both."""
    results = [time_calls("old"), time_calls("mine", 1.5)]
    stored = [store([replace(result, implementation="mine")]) for result in results]
    found = list(compare_implementations(results, base="old", new="mine"))
    content = collect_comparison(found, *stored, names=("old", "mine"))
    assert (content.one_run, content.only, content.warnings) == (True, (), ())
    assert content.sentences[0].text == "mine is slower on 1 case (+50 %, length 64, forward)."
    row = content.sections[0].groups[0].rows[0]
    assert (row.base, row.unit) == ("1", " × base")
    assert f"| 1 → {row.new} × base |" in markdown.render(content).replace("\\", "")


def make_many() -> list[StoredRun]:
    """Return two runs of many implementations with long names; in the second, each of them is slower or wrong."""
    runs = []
    for run, ratio, found in (("run-1", 1.0, None), ("run-2", 2.0, WRONG)):
        results: list[Result] = [time_calls(REFERENCE, case=case_of(n), run=run) for n in range(64, 84)]
        for number in range(30):
            name = f"implementation_{number}_{'x' * 80}"
            results += [time_calls(name, ratio, case=case_of(length), run=run) for length in range(64, 84)]
            own = check(name, case_of(8, "eval"), run=run)
            results.append(replace(own, findings=(found,)) if found else own)
        runs.append(store(results, run=run))
    return runs


def test_markdown_is_short_enough_for_a_comment() -> None:
    """Of 600 slower calls and 30 wrong implementations, the first are shown, and the others are counted."""
    text = markdown.render(compare(*make_many()))
    assert 4000 < len(text) <= markdown.LONGEST
    assert "#### Became wrong: 30" in text
    assert "#### Slower: 600" in text
    assert " more rows." in text
    assert text.index("Became wrong: 30") < text.index("Slower: 600")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Return the pages of a small and of a large comparison."""
    folder = tmp_path_factory.mktemp("pages")
    for name, content in (("small", compare_worse()), ("large", compare(*make_many()))):
        (folder / f"{name}.html").write_text(page.render(content), encoding="utf-8")
    return [folder / "small.html", folder / "large.html"]


@pytest.mark.extended
@pytest.mark.parametrize("width", [390, 768, 1440, 1920])
def test_the_page_never_scrolls_sideways(browser: Any, pages: Sequence[Path], width: int) -> None:
    """The page is as wide as the window, prints nothing to the console, and asks for nothing."""
    for path in pages:
        opened = browser.open(path, width=width)
        opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert (opened.messages, opened.requests, opened.dialogs) == ([], [], [])


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, pages: Sequence[Path], scheme: str) -> None:
    """axe-core has no serious and no critical finding, in light and in dark."""
    opened = browser.open(pages[0], color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    opened.page.evaluate(AXE_SCRIPT)
    found = opened.page.evaluate('axe.run({resultTypes: ["violations"]})')["violations"]
    assert [one["id"] for one in found if one["impact"] in {"serious", "critical"}] == []


@pytest.mark.extended
def test_the_page_works_without_script_and_sorts_with_it(browser: Any, pages: Sequence[Path]) -> None:
    """Without script all text is there; with it, a table of many rows is sorted by the change."""
    with_script, without = (browser.open(pages[1], java_script_enabled=on).page for on in (True, False))
    for place in ("h1", "nav", "#slower h3", "#conditions"):
        assert without.locator(place).first.inner_text() == with_script.locator(place).first.inner_text()
    table = with_script.locator("#slower table").first
    first = table.locator("tbody tr").first.inner_text()
    table.locator("thead button").nth(4).click()
    table.locator("thead button").nth(4).click()
    assert table.locator("tbody tr").first.inner_text() != first


@pytest.mark.extended
def test_links_of_the_page_have_targets(browser: Any, pages: Sequence[Path]) -> None:
    """Each link inside the page leads to an element, and no id occurs twice."""
    opened = browser.open(pages[0]).page
    dead = """() => [...document.querySelectorAll('a[href^="#"]')].map(one => one.getAttribute("href").slice(1))
      .filter(id => !document.getElementById(id))"""
    assert opened.evaluate(dead) == []
    ids = opened.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
