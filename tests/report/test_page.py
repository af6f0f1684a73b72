"""Tests of the page of a report in a browser: what it shows, what it does with and without script, and on paper."""

import base64
import hashlib
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from attnbench.checks.catalogue import read_checks
from attnbench.records.run_file import read_run
from attnbench.records.types import Finding
from attnbench.report import write
from attnbench.report.page import make_environment
from timed_runs import case_of, check, store

pytestmark = pytest.mark.long

EXAMPLE = sorted((Path(__file__).parents[2] / "results" / "example").glob("*.jsonl"))
# Widths of windows, in CSS pixels: a phone, a tablet, a laptop and a large screen.
WIDTHS = (390, 768, 1440, 1920)
# Height of the page of the example before anything is unfolded, in windows of 1440 × 900 px.
SCREENS = 8

# A table with the attributes that the script acts on, as any section may write it. The template engine escapes it.
TRIAL = """
<section id="trial"><h2>Trial</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Trial"><table class="sortable filterable">
<thead><tr><th data-sort="text">name</th><th data-sort="number">time</th><th>note</th></tr></thead>
<tbody>
{% for name, value, shown in rows %}
<tr><td>{{ name }}</td><td{% if value %} data-value="{{ value }}"{% endif %}>{{ shown }}</td>
<td>row {{ loop.index }}</td></tr>
{% endfor %}
</tbody></table></div>
<details id="outer"><summary>outer</summary><details><summary>inner</summary><p id="deep">deep</p></details></details>
<p><button class="copy" type="button" hidden data-copy="{{ command }}">copy</button></p>
<p><a id="link" href="#deep">to what is folded</a></p>
</section>
"""
ROWS = (("beta", 2000, "2 000"), ("alpha", "", "–"), ("gamma", 30.5, "30.5"), ("Delta", -1, "−1"))
COMMAND = "attnbench reproduce 'a/b' --check \"c\""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the example runs."""
    return write([read_run(path) for path in EXAMPLE], tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def trial(example: Path) -> Path:
    """Return the page of the example runs with one more section, which has what the script acts on."""
    section = make_environment().from_string(TRIAL).render(rows=ROWS, command=COMMAND)
    path = example.with_name("trial.html")
    path.write_text(example.read_text("utf-8").replace("</main>", f"{section}</main>"), encoding="utf-8")
    return path


def find_violations(page: Any) -> list[str]:
    """Return the serious and critical findings of axe-core, each with the elements concerned."""
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate('axe.run({resultTypes: ["violations"]})')["violations"]
    return [
        f"{one['id']}: {[node['html'][:200] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in {"serious", "critical"}
    ]


@pytest.mark.extended
def test_the_page_prints_no_error_and_asks_for_nothing(browser: Any, example: Path) -> None:
    """A browser that opens the page prints nothing to its console, sends no request, and shows no dialog."""
    opened = browser.open(example)
    assert (opened.messages, opened.requests, opened.dialogs) == ([], [], [])
    assert opened.page.title().startswith("Attention report · ")


@pytest.mark.extended
def test_the_policy_allows_only_the_style_and_the_script_of_the_page(browser: Any, example: Path) -> None:
    """The policy has the hashes of the embedded style and script; a browser refuses every other script and style."""
    text = example.read_text("utf-8")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    (style,), (script,) = (re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("style", "script"))
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    assert policy.replace("&#39;", "'") == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    opened = browser.open(example)
    opened.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>");
          document.body.insertAdjacentHTML("beforeend", "<p style='color:red' id=p>");
        }"""
    )
    opened.page.wait_for_timeout(50)
    assert opened.page.evaluate("window.ran") is None
    assert opened.page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    assert len(opened.messages) >= 3


@pytest.mark.extended
def test_the_page_is_the_same_without_script(browser: Any, trial: Path) -> None:
    """Without script, the page has the same text; only fields and buttons of the script are missing."""
    with_script, without = (browser.open(trial, java_script_enabled=on).page for on in (True, False))
    assert without.locator("main section").count() == with_script.locator("main section").count()
    for place in ("h1", "nav", "#summary", "#conformance", "#methods"):
        assert without.locator(place).first.inner_text() == with_script.locator(place).first.inner_text()
    assert without.locator("button:visible, input:visible").count() == 0
    assert with_script.locator("#trial button:visible, #trial input:visible").count() == 4


@pytest.mark.extended
def test_links_of_the_navigation_lead_to_the_sections_that_exist(browser: Any, example: Path) -> None:
    """Each section of the page has one link, in the page's order, and each link has a target."""
    page = browser.open(example).page
    links = [link.get_attribute("href") for link in page.locator("nav a").all()]
    ids = page.evaluate("[...document.querySelectorAll('main > section[id]')].map(one => '#' + one.id)")
    assert links == ids
    known = ["failures", "figures", "maps", "measures", "conformance", "places", "runs", "methods"]
    assert links == [f"#{anchor}" for anchor in known if f"#{anchor}" in links]
    page.locator("nav a").last.click()
    assert page.evaluate("scrollY") > 900


@pytest.mark.extended
def test_every_link_inside_the_page_has_a_target(browser: Any, example: Path) -> None:
    """No link leads to an anchor that the page does not have, and no id occurs twice."""
    page = browser.open(example).page
    dead = """() => [...document.querySelectorAll('a[href^="#"]')].map(one => one.getAttribute("href").slice(1))
      .filter(id => !document.getElementById(id))"""
    assert page.evaluate(dead) == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.extended
def test_files_beside_the_page_are_links(browser: Any, example: Path) -> None:
    """The footer and the text link to files that exist and have rows, by relative addresses."""
    page = browser.open(example).page
    links = page.locator("footer a")
    names = [link.get_attribute("href") for link in links.all()]
    assert "timings.csv" in names
    for name in names:
        assert len((example.parent / name).read_text("utf-8").splitlines()) > 1
    empty = {path.name for path in example.parent.glob("*.csv") if path.read_text("utf-8").count("\n") < 2}
    assert not empty & set(names)
    assert page.locator('main a[href="timings.csv"]').count() > 0


@pytest.mark.extended
def test_a_chapter_is_visible_when_its_link_is_followed(browser: Any, example: Path) -> None:
    """The link of a chapter unfolds its checks, and the chapter's name is in the window."""
    page = browser.open(example).page
    link = page.locator("#conformance .matrix tbody th a").nth(3)
    link.click()
    name = page.locator(f"#conformance h4[id='{link.get_attribute('href')[1:]}']")
    assert name.inner_text() == link.inner_text()
    top = name.bounding_box()["y"]
    assert 0 <= top < 100


@pytest.mark.extended
def test_twenty_implementations_fit_on_a_laptop(browser: Any, tmp_path: Path) -> None:
    """At 1440 px the matrix shows twenty implementations, each with passed and refused findings, without scrolling."""
    findings = [Finding(check=name, status="passed") for name in list(read_checks())[:40]]
    refused = [replace(one, status="unsupported", reason="returns no weights") for one in findings]
    results = [
        replace(check(f"implementation_{number}", case_of(length)), findings=tuple(own))
        for number in range(20)
        for length, own in [*((at, findings) for at in range(1, 21)), *((at, refused) for at in range(21, 36))]
    ]
    page = browser.open(write([store(results)], tmp_path), width=1440).page
    box = page.locator("#conformance .scroll").first
    assert box.evaluate("one => one.scrollWidth - one.clientWidth") <= 1


@pytest.mark.extended
@pytest.mark.parametrize("width", [390, 1440])
def test_the_matrix_has_no_height_limit_and_its_marks_align(browser: Any, example: Path, width: int) -> None:
    """The box of the matrix does not scroll up and down; marks of a kind of one implementation end at one edge."""
    page = browser.open(example, width=width, height=600).page
    box = page.locator("#conformance .scroll").first
    assert box.evaluate("one => one.scrollHeight - one.clientHeight") <= 1
    ragged = """() => { const edges = {}; for (const row of document.querySelector('.matrix').tBodies[0].rows)
      [...row.cells].forEach((cell, at) => { if (at && cell.firstElementChild) (edges[at] ??= new Set()).add(
        cell.firstElementChild.className + Math.round(cell.firstElementChild.getBoundingClientRect().right)); });
      return Object.values(edges).filter(one => one.size > 1).length; }"""
    assert page.evaluate(ragged) == 0


@pytest.mark.extended
def test_a_rule_separates_the_columns_of_implementations(browser: Any, example: Path) -> None:
    """Every name of the matrix, and the first mark below it, has a rule at its left."""
    page = browser.open(example).page
    for selector in ("table.matrix td.first", "table.matrix thead th + th"):
        widths = page.eval_on_selector_all(selector, "all => all.map(one => getComputedStyle(one).borderLeftWidth)")
        assert {*widths} == {"1px"}


@pytest.mark.extended
@pytest.mark.parametrize("width", WIDTHS)
def test_a_box_that_scrolls_sideways_shows_it(browser: Any, example: Path, width: int) -> None:
    """Every such box has shadows that stay at its edges; a figure also says so, if and only if it scrolls."""
    page = browser.open(example, width=width).page
    layers = page.eval_on_selector_all(".scroll", "all => all.map(one => getComputedStyle(one).backgroundAttachment)")
    assert {*layers} == {"local, local, scroll, scroll"}
    told = page.eval_on_selector_all(
        "figure .scroll",
        """all => all.filter(one => one.clientWidth).map(one =>
            [one.scrollWidth > one.clientWidth, getComputedStyle(one, "::before").display !== "none"])""",
    )
    assert told
    assert all(scrolls is says for scrolls, says in told)
    assert any(scrolls for scrolls, _ in told) == (width < 1000)
    tables = page.eval_on_selector_all(
        ".scroll:has(> table)",
        """all => all.filter(one => one.clientWidth && one.scrollWidth > one.clientWidth).map(one =>
            getComputedStyle(one, "::before").display)""",
    )
    assert width > 700 or (tables and "none" not in tables)


@pytest.mark.extended
@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_measures_are_equally_wide_and_within_the_text(browser: Any, example: Path, width: int) -> None:
    """The boxes of the tables have one width, that of the text, and numbers are at the right."""
    page = browser.open(example, width=width).page
    page.evaluate("document.querySelectorAll('#measures details.place').forEach(one => { one.open = true; })")
    sizes = """() => [...document.querySelectorAll('#measures .scroll:has(> .measures)')]
      .filter(one => one.checkVisibility()).map(one => Math.round(one.getBoundingClientRect().width))"""
    found = page.evaluate(sizes)
    # Two passes of one place, and one of each of two forms of another.
    assert len(found) == 4
    assert set(found) == {round(page.evaluate("document.querySelector('#measures').clientWidth"))}
    cell = page.locator("#measures .measures td[data-value]").nth(1)
    assert cell.evaluate("one => getComputedStyle(one).textAlign") == "right"


@pytest.mark.extended
def test_words_of_a_command_are_not_broken(browser: Any, example: Path) -> None:
    """On a phone, an option of a command stays on one line, and the button to copy stands below, also in the header."""
    page = browser.open(example, width=390).page
    command = page.locator("#runs .command").first
    page.locator("header").evaluate("(one, other) => one.append(other.cloneNode(true))", command.element_handle())
    broken = """one => [...one.querySelectorAll('.word')].filter(word => word.getClientRects().length > 1
      || (word.getBoundingClientRect().height > 30 && word.getBoundingClientRect().width < 200)).length"""
    assert command.locator(".word").count() > 1
    assert command.evaluate(broken) == 0
    for shown in (command, page.locator("header .command").last):
        pre, button = (shown.locator(tag).bounding_box() for tag in ("pre", "button"))
        assert button["y"] >= pre["y"] + pre["height"]


@pytest.mark.extended
@pytest.mark.parametrize("width", WIDTHS)
def test_the_word_of_a_button_is_not_broken(browser: Any, example: Path, width: int) -> None:
    """Beside a command of several lines, the button to copy has its word on one line."""
    page = browser.open(example, width=width).page
    page.evaluate("document.querySelectorAll('.command pre').forEach(one => { one.textContent = 'word '.repeat(99); })")
    found = page.evaluate(
        """() => [...document.querySelectorAll('button.copy')].filter(one => one.checkVisibility())
          .map(one => one.clientHeight)"""
    )
    assert found
    assert max(found) < 30


@pytest.mark.extended
def test_the_skip_link_is_first_and_focus_is_visible(browser: Any, trial: Path) -> None:
    """The keyboard reaches the skip link, then all else in the page's order; what has the focus has an outline."""
    page = browser.open(trial).page
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused}.getAttribute('href')") == "#main"
    assert page.evaluate(f"{focused}.getBoundingClientRect().left") >= 0
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.closest('header, nav') !== null")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{focused}.id") == "main"
    tops = []
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") != "none"
        tops.append(page.evaluate(f"[...document.querySelectorAll('*')].indexOf({focused})"))
    assert tops == sorted(set(tops))


def read_column(page: Any, column: int) -> list[str]:
    """Return the texts of the visible cells of a column of the trial table."""
    cells = f"#trial tbody tr:not([hidden]) td:nth-child({column})"
    return [text.strip() for text in page.locator(cells).all_inner_texts()]


@pytest.mark.extended
def test_tables_are_sorted_by_text_and_by_number(browser: Any, trial: Path) -> None:
    """A click sorts upwards, a second one downwards; cells without a value stay last; the state is in ``aria-sort``."""
    page = browser.open(trial).page
    name, time = page.locator("#trial th button").all()
    name.click()
    assert read_column(page, 1) == ["alpha", "beta", "Delta", "gamma"]
    time.focus()
    page.keyboard.press("Enter")
    assert read_column(page, 2) == ["−1", "30.5", "2 000", "–"]
    heads = page.locator("#trial th").all()
    assert [head.get_attribute("aria-sort") for head in heads] == [None, "ascending", None]
    time.click()
    assert read_column(page, 2) == ["2 000", "30.5", "−1", "–"]
    assert heads[1].get_attribute("aria-sort") == "descending"


@pytest.mark.extended
def test_a_filter_shows_the_rows_with_every_word(browser: Any, trial: Path) -> None:
    """Rows that lack one of the words are hidden, in any case of letters, and the number of rows is told."""
    page = browser.open(trial).page
    field = page.locator("#trial input[type=search]")
    field.fill("ROW  a")
    assert read_column(page, 1) == ["beta", "alpha", "gamma", "Delta"]
    field.fill("delta 4")
    assert read_column(page, 1) == ["Delta"]
    assert page.locator("#trial [role=status]").inner_text() == "1 of 4 rows"
    field.fill("")
    assert len(read_column(page, 1)) == 4


def wait_until(page: Any, expression: str) -> None:
    """Wait at most a minute until an expression is true.

    Playwright's ``wait_for_function`` evaluates in the page, whose policy forbids ``eval``.
    """
    deadline = time.monotonic() + 60
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression


@pytest.mark.extended
def test_a_button_copies_its_text(browser: Any, trial: Path) -> None:
    """The clipboard gets the text of ``data-copy`` to the letter, and the button says so."""
    page = browser.open(trial, permissions=["clipboard-read", "clipboard-write"]).page
    button = page.locator("#trial button.copy")
    button.click()
    wait_until(page, "document.querySelector('#trial button.copy').textContent === 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == COMMAND


@pytest.mark.extended
def test_without_a_clipboard_the_older_command_copies(browser: Any, trial: Path) -> None:
    """Where the page may not use the clipboard, the text is copied as a selection."""
    page = browser.open(trial).page
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.evaluate("document.addEventListener('copy', () => { window.copied = document.activeElement.value; })")
    page.locator("#trial button.copy").click()
    wait_until(page, "window.copied !== undefined")
    assert page.evaluate("window.copied") == COMMAND


@pytest.mark.extended
def test_an_address_opens_what_it_points_into(browser: Any, trial: Path) -> None:
    """What is folded around an anchor opens when the page is opened there, and at each click on a link to it."""
    visible = "document.getElementById('deep').checkVisibility()"
    there = browser.open(trial, anchor="#deep").page
    assert there.evaluate(visible)
    page = browser.open(trial).page
    assert not page.evaluate(visible)
    page.locator("#link").click()
    wait_until(page, visible)
    page.evaluate("document.getElementById('outer').open = false")
    page.locator("#link").click()
    assert page.evaluate(visible)
    # An address that names nothing, or that is no text at all, is no error.
    wrong = browser.open(trial, anchor="#%E0%A4%A")
    assert wrong.messages == []


@pytest.mark.extended
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, trial: Path, scheme: str) -> None:
    """axe-core has no serious and no critical finding, in light and in dark, with everything unfolded."""
    opened = browser.open(trial, color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert find_violations(opened.page) == []


@pytest.mark.extended
def test_axe_finds_a_missing_name(browser: Any, trial: Path) -> None:
    """An image without a text is a finding: the test above can fail."""
    opened = browser.open(trial)
    opened.page.evaluate("document.querySelector('main').append(document.createElement('img'))")
    assert any(one.startswith("image-alt") for one in find_violations(opened.page))


@pytest.mark.extended
def test_dark_and_light_differ(browser: Any, example: Path) -> None:
    """The page follows the colour scheme of the system: text and paper exchange brightness."""
    colours = "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    brightness = []
    for scheme in ("light", "dark"):
        page = browser.open(example, color_scheme=scheme).page
        text, paper = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in page.evaluate(colours))
        brightness.append(text < paper)
    assert brightness == [True, False]


@pytest.mark.extended
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_never_scrolls_sideways(browser: Any, trial: Path, width: int) -> None:
    """The page is as wide as the window, folded and unfolded; what is wider scrolls inside a region with the focus."""
    page = browser.open(trial, width=width).page
    for unfolded in (False, True):
        page.evaluate("open => document.querySelectorAll('details').forEach(one => { one.open = open; })", unfolded)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("[...document.body.children].every(one => one.scrollWidth <= innerWidth)")
    loose = """() => [...document.querySelectorAll('main *')].filter(one => one.scrollWidth > one.clientWidth + 1
      && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX) && one.tabIndex < 0)
      .map(one => one.outerHTML.slice(0, 99))"""
    assert page.evaluate(loose) == []


@pytest.mark.extended
@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_is_broken_letter_by_letter(browser: Any, example: Path, width: int) -> None:
    """No cell or paragraph with a word of three letters or more is narrower than two of them."""
    page = browser.open(example, width=width).page
    narrow = """() => [...document.querySelectorAll('main :is(td, th, p, li, dd)')].filter(one =>
      /\\w{3}/.test(one.textContent) && one.checkVisibility() && one.getBoundingClientRect().height > 0
      && getComputedStyle(one).writingMode === 'horizontal-tb'
      && one.getBoundingClientRect().width < 2 * parseFloat(getComputedStyle(one).fontSize) * 0.5)
      .map(one => one.outerHTML.slice(0, 99))"""
    assert page.evaluate(narrow) == []


@pytest.mark.extended
def test_the_example_is_short_before_it_is_unfolded(browser: Any, example: Path) -> None:
    """The page of the example takes fewer than eight windows of 1440 × 900 px."""
    page = browser.open(example).page
    assert page.evaluate("document.documentElement.scrollHeight") < SCREENS * 900


@pytest.mark.extended
def test_paper_has_what_is_decided_from(browser: Any, example: Path, tmp_path: Path) -> None:
    """The summary, failures, the matrix with all columns and figures are printed; tables of measures are not."""
    opened = browser.open(example)
    assert opened.page.pdf(path=str(tmp_path / "page.pdf"), format="A4").startswith(b"%PDF")
    opened.page.emulate_media(media="print")
    for place in ("h1", "#summary table", "#failures", "#conformance table"):
        assert opened.page.locator(place).first.is_visible()
    # What the screen shows only when it is unfolded is printed as well.
    for place in ("#maps table", "#figures figure img"):
        assert all(one.is_visible() for one in opened.page.locator(place).all())
    for place in ("nav", "#measures table", "button.copy", ".filter"):
        assert not any(one.is_visible() for one in opened.page.locator(place).all())
    # Nothing of the matrix is cut off by a box that scrolls.
    cut = """() => [...document.querySelectorAll('#conformance .scroll')].filter(one => one.checkVisibility()
      && getComputedStyle(one).overflow !== 'visible').length"""
    assert opened.page.evaluate(cut) == 0


def test_the_page_is_well_formed_and_has_no_code_in_attributes(example: Path) -> None:
    """The tags are balanced; no element has a style or a script of its own; addresses are anchors or embedded."""
    text = example.read_text("utf-8")
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.unsafe == []
    assert (text.count("<script"), text.count("<style")) == (1, 1)


class Reader(HTMLParser):
    """HTML parser that records the open tags of a page, and attributes that could run or load something."""

    empty = frozenset({"meta", "br", "wbr", "link", "hr", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.unsafe: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an opened element and its unsafe attributes."""
        for name, value in attrs:
            if name.startswith("on") or name in {"style", "srcdoc", "action", "formaction"}:
                self.unsafe.append((name, value))
            beside = name == "href" and tag == "a" and re.fullmatch(r"[a-z0-9-]+\.(csv|json|md|svg|png)", value or "")
            if name in {"src", "href"} and not beside and not (value or "").startswith(("#", "data:")):
                self.unsafe.append((name, value))
        if tag not in self.empty:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the last opened element, which must be this one."""
        assert self.open.pop() == tag
