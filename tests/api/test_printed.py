"""Tests of the texts and tables that the terminal and the results of Python calls share."""

from collections import Counter

import pytest

from attnbench.api.outcome import Report
from attnbench.api.printed import TextTable, format_html, format_reasons
from attnbench.api.timing_table import tabulate_times
from timed_runs import REFERENCE, case_of, time_calls


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        ("aa", "a"),
        ("aab", "2 × a; 1 × b"),
        ("abbc", "2 × b; 1 × a; 1 × c"),
        ("aabcd", "2 × a (and 3 more reasons)"),
    ],
)
def test_up_to_three_reasons_are_printed(reasons: str, text: str) -> None:
    """Up to three reasons are all given, the most common first; of more reasons only the most common one."""
    assert format_reasons(Counter(reasons)) == text


def test_html_has_at_most_a_hundred_rows_and_escapes_every_text() -> None:
    """Text of a table is escaped, and rows beyond the first hundred are counted."""
    table = TextTable(title="<t>", head=("<h>",), rows=(("<c>",),) * 102, legend="<l>")
    html = format_html([table], ["<n>"])
    assert html.count("<tr><td>&lt;c&gt;</td></tr>") == 100
    assert "… and 2 more rows" in html
    assert all(f"&lt;{letter}&gt;" in html and f"<{letter}>" not in html for letter in "thcln")


def test_a_report_is_shown_in_a_notebook() -> None:
    """A notebook shows the text of a conformance report, escaped."""
    html = Report(implementation="<own>", suite="quick", results=())._repr_html_()
    assert html.startswith("<pre>&lt;own&gt;: 0 cases of the suite quick")


def test_a_decoding_step_has_a_column_of_its_own() -> None:
    """Calls with as many keys, but with other numbers of queries, are different columns."""
    decoding = case_of(512).replace("L512", "L1")
    ratios = {REFERENCE: 1.0, "sdpa": 0.5}
    results = [
        time_calls(name, ratio, case=case) for name, ratio in ratios.items() for case in (case_of(512), decoding)
    ]
    times, memory = tabulate_times(results)
    assert times.head == memory.head == ("implementation", "1:512", "512")
    assert [len(row) for row in times.rows] == [3, 3]
