"""Tests of reports whose runs hold hostile text in every field: it is shown as text, and nothing runs or escapes."""

import csv
import dataclasses
import json
import random
import re
import types
import typing
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from markdown_it import MarkdownIt

from attnbench.analysis.exclusions import exclude_implausible
from attnbench.analysis.run_diff import compare_runs
from attnbench.records import types as records
from attnbench.records.run_file import StoredRun, read_run
from attnbench.records.types import (
    Ceiling,
    Completion,
    End,
    Finding,
    Machine,
    Memory,
    Planned,
    Result,
    Run,
    StoredJob,
    Timing,
)
from attnbench.records.value_facts import Compared, WrongDtype
from attnbench.report import write
from attnbench.report.comparison import markdown as comparison_markdown
from attnbench.report.comparison import page as comparison_page
from attnbench.report.comparison.content import collect_comparison
from attnbench.report.csv_files import render_csv
from attnbench.report.hidden_characters import spell_out
from attnbench.report.markdown_text import escape, format_code, format_console
from attnbench.report.plugin_sections import place_section
from attnstudies import figures as studies
from rendered_reports import render_markdown, render_page

RAN = "window.ran=1"
# Texts that do harm where a program reads them as something else than text. ``window.ran`` tells that one was run.
HOSTILE = (
    f"<script>{RAN}</script>",
    f'"><img src=x onerror={RAN}>',
    f"' onmouseover='{RAN}' x='",
    f"</style><script>{RAN}</script>",
    f"</script><script>{RAN}</script>",
    f"]]></svg><script>{RAN}</script>",
    f"javascript:{RAN}",
    f"[x](javascript:{RAN})",
    f"<a href=javascript:{RAN}>x</a>",
    "<style>*{display:none}</style>",
    "<base href=https://example.org/><img src=https://example.org/x.png>",
    "![x](https://example.org/x.png) https://example.org www.example.org a@example.org",
    "<!-- studies -->",
    "\n<!-- studies -->\n",
    "<!-- end of studies -->",
    "\n<!-- link to studies -->\nx\n<!-- end of link to studies -->\n",
    "<!-- not closed",
    "-->",
    "{{7*7}}{% raw %}{#",
    r"\1\g<1>\\",
    "/",
    "..",
    "../../../escaped",
    "/tmp/escaped",
    "C:\\escaped",
    "nul\x00l",
    "\x1b[31mred\x07",
    "left \u202e right \u2066 \u200f \u2028 \ufeff",
    "שלום 漢字 🙂",
    "a" * 10_000,
    "<b>" * 3_000,
    "",
    " ",
    "\r\n\t",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "`code` ``` ~~~",
    "a\n```\n# heading\n",
    "a|b\\|c",
    "# heading",
    "1. item",
    "- item",
    "> quote",
    "$\\frac{1}{0}$",
    "%s%n{0}",
    "&lt;b&gt;&#60;",
    "-",
    "#",
    "nan",
    "None",
)
SEEDS = (1, 2)
CASE = "multihead/B1.L{length}.S{length}.E256.H4/bias/mask=none/regime=plain/seed=0/float32/cpu/{mode}"
NAMES = ("torch_mha", "mine", "other")


def make_run(number: int) -> StoredRun:
    """Make a run on a machine of its own, with a value in each field that may hold text."""
    machine = Machine(
        name=f"machine {number}", cpu="cpu", cores=4, memory_bytes=2**33, gpu="gpu", driver="driver", isa="isa",
        system="system",
    )  # fmt: skip
    run = Run(
        id=f"run-{number}", time="time", command="command", machine=machine, versions={"torch": "2"}, threads=2,
        commit="commit", suite="core", suite_digest="digest", implementations=NAMES, sources={"torch_mha": "hash"},
        commits={"torch_mha": "commit"},
        list_digest="whole", parts=("part",), node="node",
        job=StoredJob(command="profile", options={"lengths": "64"}, planned={"torch_mha": Planned(cases=10, timed=3)}),
    )  # fmt: skip
    ceiling = Ceiling(run=run.id, device="cpu", dtype="float32", threads=2, flop_per_s=1e11, bytes_per_s=1e9)
    completion = Completion(
        run=run.id, implementation="mine", suite="core", list_digest="d", listed=9, refused={"refusal": (1,)},
        unanswered=(2,), strength=2, combinations=100, taken=30, covered_by_list=20, covered=30, cases=("further",),
        restrictions=("restriction",), notes=("note",), pool_digest="pool", first_raised="raised", no_answer="silent",
    )  # fmt: skip
    results = [*_make_checked(run), *_make_timed(run)]
    return StoredRun(
        run=run, results=tuple(results), ceilings=(ceiling,), completions=(completion,), path=Path(f"{run.id}.jsonl"),
        problems=("problem",), end=End(run=run.id, time="time", outcome="finished", exit_code=0),
        timed_lines={("mine", CASE.format(length=8, mode="eval")): 2},
    )  # fmt: skip


def _make_checked(run: Run) -> list[Result]:
    case = CASE.format(length=8, mode="eval")
    return [
        Result(
            run=run.id, implementation=name, case=case, suite="core", untimed="untimed",
            findings=tuple(
                Finding(check=f"check {status}", status=status, reason=f"reason {status}", warnings=("warning",))
                for status in records.STATUSES
            ),
        )
        for name in NAMES
    ]  # fmt: skip


def _make_timed(run: Run) -> list[Result]:
    made = []
    for place, name in enumerate(NAMES):
        for length in (64, 128, 256):
            samples = tuple(tuple(10_000 * length * (p + 20 + place) for _ in range(5)) for p in range(9))
            timing = Timing(
                samples_ns=samples,
                threads=2,
                interleaved_with=tuple(n for n in NAMES if n != name),
                clock="clock",
                values="fresh",
            )
            memory = Memory(peak_bytes=length * 2**20, threads=2, method="allocator")
            made.append(
                Result(
                    run=run.id, implementation=name, case=CASE.format(length=length, mode="inference"), suite="perf",
                    findings=(Finding(check="check passed", status="passed"),), flop=2**30, bytes=2**20,
                    timing=timing if length < 256 else None, memory=memory if length < 256 else None,
                    untimed=None if length < 256 else "untimed", kernels=("kernel ×2",),
                )
            )  # fmt: skip
    return made


class Spoiler:
    """Replaces text in every field of a record, equal texts by equal texts, so that records still fit together."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._texts: dict[str, str] = {}
        self.used: list[str] = []

    def spoil(self, value: Any, hint: Any) -> Any:
        """Replace each text in a value of this type."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._spoil_record(value)
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            return self.spoil(value, next(one for one in arguments if one is not types.NoneType))
        if hint is str:
            return self._choose(value or "")
        if hint is Path:
            return Path("stored") / re.sub(r"[/\0]", "", self._choose(str(value)))[:200]
        if typing.get_origin(hint) is tuple:
            return tuple(self.spoil(one, arguments[0]) for one in value)
        if typing.get_origin(hint) in (dict, Mapping):
            return {self.spoil(key, arguments[0]): self.spoil(one, arguments[1]) for key, one in value.items()}
        return value

    def _spoil_record(self, record: Any) -> Any:
        made = record
        for name, hint in typing.get_type_hints(type(record)).items():
            spoiled = self.spoil(getattr(record, name), hint)
            if name == "case":
                spoiled = self._spoil_case(record.case)
            if spoiled == "" and isinstance(record, Finding) and name == "reason":
                continue  # a finding refuses an empty reason
            made = replace(made, **{name: spoiled})
        return made

    def _spoil_case(self, case: str) -> str:
        """Replace each part of a case id; the parts of a case cannot hold its separator."""
        parts = case.split("/")
        return "/".join([parts[0], *parts[1:3], *(self._choose(part).replace("/", "") for part in parts[3:])])

    def _choose(self, text: str) -> str:
        # The reference and the suites decide what is computed, so they stay in half of the trials.
        keeps = text in {"torch_mha", "perf", "core", "inference", "cpu"} and self._random.random() < 0.5
        if text not in self._texts:
            self._texts[text] = text if keeps else self._random.choice(HOSTILE)
        chosen = self._texts[text]
        self.used.append(chosen)
        return chosen


def spoil_runs(seed: int, machines: int) -> list[StoredRun]:
    """Make runs on this many machines, with hostile text in every field."""
    spoiler = Spoiler(seed)
    return [typing.cast("StoredRun", spoiler.spoil(make_run(number), StoredRun)) for number in range(machines)]


def list_text_fields(kind: Any) -> set[tuple[str, str]]:
    """Return the fields of a dataclass, and of the dataclasses in it, whose type mentions ``str``."""
    found = set()
    for name, hint in typing.get_type_hints(kind).items():
        inner = {hint, *typing.get_args(hint)}
        for one in list(inner):
            inner |= set(typing.get_args(one))
        if inner & {str, Path}:
            found.add((kind.__name__, name))
        for one in inner:
            if dataclasses.is_dataclass(one) and one is not kind:
                found |= list_text_fields(one)
    return found


def test_the_trial_reaches_every_field_that_may_hold_text() -> None:
    """No field of the stored types that may hold text is left as it was; a new field has to be filled in above."""
    reached: set[tuple[str, str]] = set()

    def visit(value: Any) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for name in typing.get_type_hints(type(value)):
                own = getattr(value, name)
                if own not in ((), "", None, {}):
                    reached.add((type(value).__name__, name))
                visit(own)
        elif isinstance(value, tuple):
            for one in value:
                visit(one)

    visit(make_run(0))
    assert list_text_fields(StoredRun) - reached == set()
    assert len(list_text_fields(StoredRun)) > 40


@pytest.mark.extended
@pytest.mark.parametrize("machines", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_runs_and_nothing_is_written_outside(browser: Any, tmp_path: Path, seed: int, machines: int) -> None:
    """Hostile text in every field: the page runs nothing and loads nothing, and all files are in the folder."""
    folder = tmp_path / "inside" / "report"
    runs = spoil_runs(seed, machines)
    page = write(runs, folder)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent == folder and re.fullmatch(r"[a-z0-9-]+\.[a-z]+", path.name) for path in written)
    assert not Path("/tmp/escaped").exists()
    assert_is_quiet(browser, page)
    shown = " ".join(browser.open(page).page.evaluate("document.body.textContent").split())
    for name in {result.implementation for one in runs for result in one.results}:
        assert " ".join(spell_out(name).split()) in shown
    for path in folder.glob("*.svg"):
        ET.fromstring(path.read_bytes())
    for path in folder.glob("*.csv"):
        assert_is_harmless(path)
    assert_is_plain(folder / "report.md")


@pytest.mark.extended
@pytest.mark.parametrize("seed", SEEDS)
def test_a_comparison_of_hostile_runs_is_text(browser: Any, tmp_path: Path, seed: int) -> None:
    """Hostile text in every field of both runs: the page runs nothing, and Markdown stays short and plain."""
    spoiler = Spoiler(seed)
    before, after = make_run(0), make_run(0)
    worse = [
        replace(
            r, timing=None, memory=None, untimed="left",
            findings=tuple(replace(f, status="failed", reason=f"reason {f.status}") for f in r.findings),
        )
        for r in after.results[:4]
    ]  # fmt: skip
    bigger = [replace(r, memory=replace(r.memory, peak_bytes=2**30)) if r.memory else r for r in after.results[4:]]
    after = replace(after, results=(*worse, *bigger), run=replace(after.run, id="run-9", versions={"torch": "3"}))
    after = replace(after, results=tuple(replace(r, run="run-9") for r in after.results), completions=(), ceilings=())
    spoiled = [typing.cast("StoredRun", spoiler.spoil(one, StoredRun)) for one in (before, after)]
    ((base,), _), ((new,), _) = (exclude_implausible([one]) for one in spoiled)
    content = collect_comparison(list(compare_runs(base, new, threshold=0.05)), base, new, threshold=0.05)
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page.render(content), encoding="utf-8")
    assert_is_quiet(browser, path)
    text = comparison_markdown.render(content)
    assert len(text) <= comparison_markdown.LONGEST
    for token in MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text):
        assert token.type not in {"html_block", "fence", "code_block"}
        for child in token.children or ():
            assert child.type not in {"link_open", "s_open", "html_inline", "image"}, child


def assert_is_quiet(browser: Any, path: Path) -> None:
    """Assert that a page has no element that only data could have made, and that nothing ran or was asked for."""
    opened = browser.open(path)
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert (opened.messages, opened.requests, opened.dialogs) == ([], [], [])
    assert page.evaluate("window.ran") is None
    counts = page.evaluate(
        "Object.fromEntries(['script', 'style', 'base', 'iframe', 'form', 'link', 'main', 'nav']"
        ".map(name => [name, document.querySelectorAll(name).length]))"
    )
    assert counts == {"script": 1, "style": 1, "base": 0, "iframe": 0, "form": 0, "link": 1, "main": 1, "nav": 1}
    attributes = """() => [...document.querySelectorAll('*')].flatMap(one => [...one.attributes])
      .filter(one => one.name.startsWith('on') || one.name === 'style'
        || ['href', 'src'].includes(one.name) && !/^(#|data:|[a-z-]+[.](csv|json|md)$)/.test(one.value))
      .map(one => one.name + '=' + one.value)"""
    assert page.evaluate(attributes) == []
    broken = "[...document.images].filter(one => !one.complete || one.naturalWidth === 0).length"
    assert page.evaluate(broken) == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert all(re.fullmatch(r"[a-z0-9-]+", one) for one in ids)
    assert len(ids) == len(set(ids))


def assert_is_harmless(path: Path) -> None:
    """Assert that no cell of a CSV file is a formula, and that each row has a cell for each column."""
    with path.open(encoding="utf-8", newline="") as stream:
        head, *rows = list(csv.reader(stream))
    for row in rows:
        assert len(row) == len(head), path.name
        for cell in row:
            number = re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|-?inf", cell)
            assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), (path.name, cell)


def assert_is_plain(path: Path) -> None:
    """Assert that a Markdown file has no HTML, links, images or headings but those of the report itself."""
    text = path.read_text("utf-8")
    tokens = MarkdownIt("gfm-like", {"linkify": False, "html": True}).parse(text)
    assert not [token for token in tokens if token.type == "html_block"]
    for token in tokens:
        if token.type == "fence":
            assert token.info == "console"
            assert token.content.startswith("$ attnbench reproduce ")
        for child in token.children or ():
            assert child.type not in {"link_open", "s_open"}, child
            assert child.type != "html_inline" or child.content == "<br>"
            assert child.type != "image" or re.fullmatch(r"[a-z0-9-]+\.png", str(child.attrs["src"]))


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_facts_are_texts(text: str) -> None:
    """Whatever the texts of a fact hold, page and Markdown show them as text."""
    fact = WrongDtype(compared=Compared(quantity=text), dtype=text, expected=text)
    finding = Finding(check="forward_parity", status="failed", facts=(fact,))
    refused = Finding(check="forward_parity", status="unsupported", reason=text or "-", warnings=(text,))
    results = [Result(run="run-0", implementation=name, case=CASE.format(length=8, mode="eval"), findings=(one,))
               for name, one in (("mine", finding), ("other", refused))]  # fmt: skip
    stored = replace(make_run(0), results=tuple(results), ceilings=(), completions=())
    page = render_page([stored])
    assert page.count("<script") == 1  # the page's own
    assert "<img src=x" not in page
    assert "<script" not in render_markdown([stored]).replace("\\<", "")


@pytest.mark.parametrize("machines", [1, 2])
def test_text_that_looks_like_a_placeholder_is_text(tmp_path: Path, machines: int) -> None:
    """A study is inserted once, and nothing else of a report changes, whatever a run and a study have as their text."""
    slots = [one for one in HOSTILE if "<!--" in one]
    runs = [make_run(number) for number in range(machines)]
    for place, one in enumerate(runs):
        results = [
            replace(r, findings=tuple(replace(f, reason=text) for f, text in zip(r.findings, slots * 2, strict=False)))
            for r in _make_checked(one.run)
        ]
        run = replace(one.run, command=slots[place], time=slots[-1], commit=slots[1])
        runs[place] = replace(one, run=run, results=tuple(results), problems=tuple(slots))
    before, after = tmp_path / "before", tmp_path / "after"
    write(runs, before)
    plain = (before / "index.html").read_text("utf-8")
    for folder in (before, after):
        for _ in range(2):
            make_study(slots[0] + slots[1], folder)
    write(runs, after)
    with_study = (before / "index.html").read_text("utf-8")
    assert with_study == (after / "index.html").read_text("utf-8")
    assert with_study.count('<section id="studies">') == 1
    place_section(before, "studies", None)
    assert (before / "index.html").read_text("utf-8") == plain


def make_study(text: str, folder: Path) -> None:
    """Write a study whose texts are all hostile."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    frame = pd.DataFrame({text: [text, "=1"], "n": [1, 2]})
    study = studies.StudyFigures(title=text, text=f"{text}\n\n{text}", figures={"": figure}, table=frame, summary=frame)
    studies.write("trial", study, folder)


@pytest.mark.extended
def test_a_study_runs_nothing_and_stays_in_its_folder(browser: Any, tmp_path: Path) -> None:
    """Names, titles, texts and tables of studies are text, on the page and in their files."""
    from matplotlib.figure import Figure

    page = write([make_run(0)], tmp_path / "inside" / "report")
    for number, text in enumerate(HOSTILE):
        frame = pd.DataFrame({text or "none": [text], "n": [-1]})
        study = studies.StudyFigures(
            title=text, text=f"{text}\n\n{text}", figures={text: Figure(figsize=(1, 1))} if number < 30 else {},
            table=frame, summary=frame,
        )  # fmt: skip
        studies.write(text, study, page.parent)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent == page.parent and re.fullmatch(r"[a-z0-9-]+\.[a-z]+", path.name) for path in written)
    assert_is_quiet(browser, page)
    assert browser.open(page).page.locator("#studies details").count() == len(set(HOSTILE))
    for path in page.parent.glob("*.csv"):
        assert_is_harmless(path)


def test_the_file_of_a_run_with_every_hostile_text_is_read_and_reported(tmp_path: Path) -> None:
    """A stored line with null bytes or a lone surrogate is read, or counted as unreadable; the report is written."""
    run = make_run(0)
    lines = [{"record": "run"} | _to_plain(run.run)]
    lines += [
        {"record": "result"} | _to_plain(replace(result, implementation=text))
        for text in (*(one for one in HOSTILE if len(one) < 100), "\ud800", "a\udfffb")
        for result in (run.results[0], run.results[3])
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")
    page = write([read_run(path)], tmp_path / "report")
    assert "cannot be read and is left out" in page.read_text("utf-8")


def _to_plain(record: Any) -> dict[str, Any]:
    return typing.cast("dict[str, Any]", dataclasses.asdict(record))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ✓ − é", "plain ✓ − é"),
        ("a\x00b", "a\\x00b"),
        ("a\r\nb\rc\td", "a\nb\nc d"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("\ud800", "\\ud800"),
        ("שלום", "שלום"),
    ],
)
def test_hidden_characters_are_spelled_out(text: str, shown: str) -> None:
    """Characters that cannot be shown, or that change the order of others, are shown as their escapes."""
    assert spell_out(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b*c", r"a\_b\*c"),
        ("a|b\\c", r"a\|b\\c"),
        ("<!-- x -->", r"\<!-- x --\>"),
        ("a\n\n# b", "a # b"),
        ("# b", r"\# b"),
        ("- b", r"\- b"),
        ("10. b", r"10\. b"),
        ("10.5 b", r"10\.5 b"),
        ("https://example.org www.example.org a@b.c", r"https\://example.org www\.example.org a\@b.c"),
        ("31 % (no weights); 2 cases", "31 % (no weights); 2 cases"),
    ],
)
def test_markdown_is_escaped(text: str, shown: str) -> None:
    """Marks of Markdown and of HTML get a backslash, and a text stays on one line."""
    assert escape(text) == shown


def test_code_in_markdown_holds_backticks_and_line_breaks() -> None:
    """The fence of code is longer than every run of backticks in it; further lines of a command have a prompt."""
    assert format_code("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert format_code("a|b\nc") == "`a\\|b c`"
    assert format_code("") == "(empty)"
    assert format_console("one\n```\n<!-- studies -->") == "````console\n$ one\n> ```\n> <!-- studies -->\n````"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@a", "'@a"), ("\t=a", "' =a"), ("a=1", "a=1"), (-1.5, "-1.5")],
)
def test_no_cell_is_a_formula(cell: Any, shown: str) -> None:
    """A text that a spreadsheet would compute begins with an apostrophe; a number is a number."""
    (head, row) = csv.reader(b"".join(render_csv(["=head"], [[cell]])).decode().splitlines())
    assert (head, row) == (["'=head"], [shown])
