"""Tests of the summary on a terminal and as Markdown."""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from attnbench.analysis.summarize import summarize
from attnbench.records.run_file import read_run
from attnbench.report.console import Console, count_cells
from attnbench.report.markdown import render
from attnbench.report.terminal import format_summary, print_summary
from summarized_runs import check_cases, end, make_mixed_run
from timed_runs import REFERENCE, case_of, store, time_calls

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_table_fits_the_terminal(width: int, snapshot: SnapshotAssertion) -> None:
    """A wide terminal has one table; a narrow one has a table for each pass. Only commands are longer than a line."""
    text = format_summary(summarize([make_mixed_run()]), width)
    assert text == snapshot
    long = [line for line in text.splitlines() if count_cells(line) > width]
    assert all(line.startswith("  attnbench reproduce ") for line in long)


def test_markdown_is_short(snapshot: SnapshotAssertion) -> None:
    """The table and the failures of seven implementations fit into 60 lines."""
    text = render(summarize([make_mixed_run()]))
    assert text == snapshot
    assert text.count("\n") < 60


@pytest.mark.parametrize("width", [40, 60, 80])
def test_lengths_that_do_not_fit_are_named(width: int) -> None:
    """No cell is cut: fewer lengths are shown, the largest among them, and a line names the others."""
    lengths = [2**n for n in range(4, 15)]
    calls = [time_calls(name, case=case_of(n)) for n in lengths for name in (REFERENCE, "a")]
    text = format_summary(summarize([end(store([*check_cases(REFERENCE), *calls]))]), width)
    lines = text.splitlines()
    assert max(map(count_cells, lines)) <= width
    note = " ".join(text.split()).partition("lengths ")[2].partition(" of forward")[0]
    hidden = set(map(int, note.replace(" and", ",").split(", ")))
    # The table of the pass is the first with numbers of lengths; the next one has the memory.
    heading = next(line.split() for line in lines if line.strip().endswith("16384"))
    assert set(map(int, heading)) | hidden == set(lengths)
    assert hidden.isdisjoint(map(int, heading))


def test_a_long_name_ends_in_an_ellipsis() -> None:
    """A name that is longer than its column is cut with a mark."""
    text = format_summary(summarize([end(store(check_cases("n" * 59)))]), 60)
    assert "n…" in text


def test_a_terminal_has_colours() -> None:
    """Verdicts and marks have colours on a terminal, and text alone carries the same facts."""
    summary = summarize([make_mixed_run()])
    file = StringIO()
    print_summary(summary, Console(file=file, styled=True))
    shown = file.getvalue()
    assert "\x1b[1;31mNO" in shown
    assert "\x1b[32m" in shown
    assert "\x1b" not in format_summary(summary)


HOSTILE = "x|y`z<b>\u202e\x1b[31m\n# no\r</table>"


def test_hostile_names_and_reasons_are_spelled_out() -> None:
    """Control characters reach no terminal, and markup is no markup in Markdown."""
    mixed = make_mixed_run()
    results = tuple(
        replace(one, implementation=HOSTILE if one.implementation == "other" else one.implementation)
        for one in mixed.results
    )
    untimed = replace(time_calls(HOSTILE), timing=None, memory=None, untimed=HOSTILE)
    stored = replace(mixed, results=(*results, untimed))
    stored = replace(stored, run=replace(stored.run, machine=replace(stored.run.machine, name=HOSTILE)))
    summary = summarize([stored])
    for text in (format_summary(summary), format_summary(summarize([stored])), render(summary)):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\n# no" not in text
    for line in render(summary).splitlines():
        assert "<b>" not in re.sub(r"(`+).*?\1|\\<|<br>", "", line)
        if line.startswith("| `"):
            assert line.replace("\\|", "").count("|") == 12


def test_a_stored_run_of_an_older_schema_is_shown() -> None:
    """Runs of schemas 1 to 6 give a table."""
    for path in sorted(DATA.glob("run-schema-*.jsonl")):
        assert format_summary(summarize([read_run(path)])), path
