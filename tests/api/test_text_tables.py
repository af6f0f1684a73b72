"""Tests of the texts and tables that the terminal and the results of Python calls share."""

from attnbench.analysis.root_causes import find_root_causes
from attnbench.api.outcome import Report
from attnbench.api.text_tables import format_html
from attnbench.checks.catalogue import read_checks
from attnbench.records.types import Finding, Result
from attnbench.report.text_table import TextTable
from attnbench.words.causes import describe_cause

CASE = "multihead/B2.L5.S7.E8.H2/-/mask=none/regime=plain/seed=0/float32/cpu/eval"


def describe(*findings: Finding) -> list[str]:
    """Return the lines about the only cause of some findings of one case."""
    (cause,) = find_root_causes([Result(run="r", implementation="mine", case=CASE, findings=findings)])
    return describe_cause(cause)


def test_an_exception_in_one_check_has_the_requirement() -> None:
    """An exception in one check follows the requirement; a reason that begins with the requirement has it once."""
    needed = read_checks()["forward_parity"].requirement
    first, command = describe(Finding(check="forward_parity", status="error", reason="RuntimeError: no"))
    assert first == f"Required: {needed} Found: RuntimeError: no"
    assert command == f"attnbench reproduce '{CASE}' --check forward_parity mine"
    for status in ("failed", "error"):
        first, _ = describe(Finding(check="forward_parity", status=status, reason=f"{needed} But off."))
        assert first.count(needed) == 1


def test_html_has_at_most_a_hundred_rows_and_escapes_every_text() -> None:
    """Text of a table is escaped, and rows beyond the first hundred are counted."""
    table = TextTable(title="<t>", head=("<h>",), rows=(("<c>",),) * 102, legend="<l>")
    html = format_html([table], ["<n>"])
    assert html.count("<tr><td>&lt;c&gt;</td></tr>") == 100
    assert "… and 2 more rows" in html
    assert all(f"&lt;{letter}&gt;" in html and f"<{letter}>" not in html for letter in "thcln")


def test_a_report_is_shown_in_a_notebook() -> None:
    """A notebook shows the text of a conformance report, escaped."""
    passed = Result(
        run="r", implementation="x", case=CASE, findings=(Finding(check="forward_parity", status="passed"),)
    )
    html = Report(
        implementation="<own>",
        suite="quick",
        results=(passed,),
    )._repr_html_()
    assert html.startswith("<pre>cpu")
    assert "&lt;own&gt;  only 1" in html
