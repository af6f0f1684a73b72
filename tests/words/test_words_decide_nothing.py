"""With other words in place of every template, no group, verdict, exit code, number, hash or order changes."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.summarize import summarize
from attnbench.records.run_file import read_run
from attnbench.words.say import say
from commands import run_command

pytestmark = [pytest.mark.long, pytest.mark.extended]

DATA = Path(__file__).parents[1] / "data"
# Implementations of which one is right, and the others are wrong, crash, refuse, raise, or answer though they refuse.
IMPLEMENTATIONS = """
import os

import torch

from attnbench.kernel import from_kernel
from attnbench.refusals import NeedsDevice


def attend(q, k, v, *, mask, scale):
    weights = (q @ k.mT * scale + (0 if mask is None else mask)).softmax(-1)
    return weights.nan_to_num(0.0) @ v


def scale_wrongly(q, k, v, *, mask, scale):
    return attend(q, k, v, mask=mask, scale=1.1 * scale)


def crash(q, k, v, *, mask, scale):
    os._exit(3)


def fail(q, k, v, *, mask, scale):
    raise RuntimeError("CUDA is not what failed")


right = from_kernel(attend, name="right", additive_mask=True)
wrong = from_kernel(scale_wrongly, name="wrong", additive_mask=True)
crashing = from_kernel(crash, name="crashing", additive_mask=True)
raising = from_kernel(fail, name="raising", additive_mask=True)
refusing = from_kernel(attend, additive_mask=True, unsupported=lambda case: NeedsDevice(devices=("cuda",)))
telling = from_kernel(scale_wrongly, additive_mask=True, unsupported=lambda case: "needs a GPU")
"""
NAMES = ("right", "wrong", "crashing", "raising", "refusing", "telling")
CASES = (
    "multihead/B2.L5.S7.E24.H3/bias+batch_first/mask=none/regime=plain/seed=0/float32/cpu/eval",
    "multihead/B2.L0.S7.E24.H3/bias+batch_first/mask=pad/regime=plain/seed=0/float32/cpu/eval",
)
# Columns of CSV files, and keys of JSON objects, that hold words.
TOLD = {
    "reason",
    "worst_reason",
    "warnings",
    "told",
    "cause",
    "title",
    "requirement",
    "summary",
    "notes",
    "doubts",
    "fault",
    "why",
}


def use_other_words(template: str, **values: Any) -> str:
    """Return other words with the same values; used in place of ``say``."""
    number = sum(map(ord, template)) * 7919 % 10007
    return f"w{number} " + " ".join(map(str, values.values()))


@contextmanager
def other_words() -> Iterator[None]:
    """Replace what ``say`` does, also where it was imported by name."""
    code = say.__code__
    say.__code__ = use_other_words.__code__
    try:
        yield
    finally:
        say.__code__ = code


def with_both_words(act: Callable[[], Any]) -> Any:
    """Return what ``act`` returns, which must be the same with other words."""
    usual = act()
    with other_words():
        other = act()
    assert other == usual
    return usual


class Skeleton(HTMLParser):
    """The tags of a page in order, each with its id and class; words may have links and places to break a line."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, str | None, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        given = dict(attrs)
        if tag not in ("a", "wbr"):
            self.tags.append((tag, given.get("id"), given.get("class")))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file without the columns that hold words."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key not in TOLD} for row in csv.DictReader(file)]


def drop_words(value: Any) -> Any:
    """Return a JSON value without the keys that hold words."""
    if isinstance(value, dict):
        return {key: drop_words(one) for key, one in value.items() if key not in TOLD}
    return [drop_words(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the implementations, and with the results of a conformance run and of a profile."""
    made = tmp_path_factory.mktemp("words")
    (made / "own.py").write_text(IMPLEMENTATIONS)
    names = [f"own.py:{name}" for name in NAMES]
    filters = [word for case in CASES for word in ("--case", case)]
    done = run_command("conform", *names, *filters, "--results", "results", cwd=made)
    assert done.returncode == 1, done.stderr
    profiled = ("profile", "torch_mha", *names[:2], *names[4:5], "--lengths", "4", "--passes", "forward")
    effort = ("--processes", "1", "--results", "results")
    done = run_command(*profiled, *effort, cwd=made)
    assert done.returncode == 1, done.stderr
    return made


def list_runs(folder: Path) -> list[Path]:
    """Return the run files, the oldest first."""
    return sorted(folder.glob("results/*/*.jsonl"), key=lambda path: path.stem)


@pytest.mark.extended
def test_a_run_has_the_same_findings(folder: Path) -> None:
    """Conform stores the same findings, facts and exit code, and writes the same numbers as JSON."""

    def conform() -> Any:
        words = ("conform", "own.py:wrong", "own.py:telling", "--case", CASES[0], "--json", "found.json")
        code = run_command(*words, "--results", "again", cwd=folder).returncode
        (path,) = folder.glob("again/*/*.jsonl")
        stored = read_run(path)
        shutil.rmtree(folder / "again")
        found = json.loads((folder / "found.json").read_text())
        # Implementations are checked at the same time, so results are stored in no fixed order.
        findings = {(result.implementation, result.case): result.findings for result in stored.results}
        return code, findings, drop_words(found["findings"])

    assert with_both_words(conform)[0] == 1


def test_the_summary_is_the_same(folder: Path) -> None:
    """Verdicts, causes, marks and answers are equal, also those of the stored runs of older schemas."""
    runs = [[read_run(path) for path in list_runs(folder)]]
    runs += [[read_run(path)] for path in sorted(DATA.glob("run-schema-*.jsonl"))]
    for own in runs:
        with_both_words(lambda own=own: summarize(own))


@pytest.mark.parametrize(("stored", "code"), [("made", 0), ("run-schema-1", 3), ("run-schema-6", 0)])
def test_a_report_has_the_same_numbers_and_parts(folder: Path, stored: str, code: int) -> None:
    """Every file of a report has the same rows, numbers, anchors and links, in the same order."""
    paths = list_runs(folder) if stored == "made" else [DATA / f"{stored}.jsonl"]

    def report() -> Any:
        exit_code = run_command("report", *paths, "--reports", "page", cwd=folder).returncode
        made = folder / "page"
        tables = {path.name: read_csv(path) for path in sorted(made.glob("*.csv"))}
        jsons = {path.name: drop_words(json.loads(path.read_text())) for path in sorted(made.glob("*.json"))}
        page = Skeleton()
        page.feed((made / "index.html").read_text())
        names = sorted(path.name for path in made.iterdir())
        shutil.rmtree(made)
        return exit_code, tables, jsons, page.tags, names

    assert with_both_words(report)[0] == code


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("reproduce", "CASE", "own.py:right", "--check", "forward_parity"), 0),
        (("reproduce", "CASE", "own.py:wrong", "--check", "forward_parity"), 1),
        (("reproduce", "CASE", "own.py:refusing", "--check", "forward_parity"), 3),
        (("list", "own.py:right", "sdpa"), 0),
        (("merge", "RUN", "--into", "merged"), 0),
        (("compare", "RUN", "RUN"), 0),
        (("profile", "own.py:nothing"), 2),
        (("report", "nothing"), 2),
    ],
)
def test_exit_codes_are_the_same(folder: Path, words: tuple[str, ...], code: int) -> None:
    """Each command ends with the same exit code."""
    run = list_runs(folder)[0]
    case = read_run(run).results[0].case
    given = [{"CASE": case, "RUN": str(run)}.get(word, word) for word in words]

    def act() -> int:
        shutil.rmtree(folder / "merged", ignore_errors=True)
        return run_command(*given, cwd=folder).returncode

    assert with_both_words(act) == code


@pytest.mark.extended
def test_the_tests_of_the_plugin_end_in_the_same_way(folder: Path) -> None:
    """The pytest plug-in gives the same outcomes."""
    case = read_run(list_runs(folder)[0]).results[0].case
    options = [word for name in NAMES[:2] for word in (f"--attention=own.py:{name}",)]
    words = ["-p", "no:cacheprovider", "-q", str(folder), *options, "--attention-check=forward_parity"]

    class Outcomes:
        def __init__(self) -> None:
            self.found: list[tuple[str, str]] = []

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            self.found.append((report.nodeid, report.outcome))

    def act() -> Any:
        outcomes = Outcomes()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            code = pytest.main([*words, f"--attention-case={case}"], plugins=[outcomes])
        return code, outcomes.found

    assert with_both_words(act)[0] == 1
