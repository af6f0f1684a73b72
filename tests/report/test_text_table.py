"""Tests of tables on a console."""

from io import StringIO

import pytest

from attnbench.report.console import Console, Part, count_cells
from attnbench.report.text_table import TextTable, print_tables

TABLE = TextTable(
    title="the title",
    head=("name", "ratio", "reason"),
    rows=(
        ("naive_loop", "12.5", "the kernel takes no argument need_weights, and no other kernel does"),
        (Part("sdpa", "green"), "1", (Part("✓ 3", "green"), Part(" ✗ 1", "red"))),
        ("表", "", "two\nlines"),
    ),
    legend="the legend",
    right=frozenset({"ratio"}),
)


def lay_out(width: int, *, styled: bool = False) -> list[str]:
    """Return the lines of ``TABLE`` on a console."""
    file = StringIO()
    print_tables([TABLE], Console(file=file, width=width, styled=styled))
    return file.getvalue().splitlines()


def test_columns_are_aligned() -> None:
    """Cells begin, or end, in one column; a line break begins a further line, and wide characters count twice."""
    assert lay_out(100) == [
        "the title",
        "name        ratio  reason",
        "naive_loop   12.5  the kernel takes no argument need_weights, and no other kernel does",
        "sdpa            1  ✓ 3 ✗ 1",
        "表                 two",
        "                   lines",
        "the legend",
    ]


@pytest.mark.parametrize("width", [36, 40, 60])
def test_a_narrow_table_loses_no_word(width: int) -> None:
    """Where a table does not fit, its longest texts continue on further lines, and no text is cut."""
    lines = lay_out(width)
    assert max(map(count_cells, lines)) <= width
    words = " ".join(lines).split()
    assert {"need_weights,", "naive_loop", "12.5"} <= set(words)


def test_styles_are_shown_on_a_terminal_only() -> None:
    """A part has its style around its text, and the text is the same without styles."""
    assert any("\x1b[32m✓ 3\x1b[0m\x1b[31m ✗ 1\x1b[0m" in line for line in lay_out(100, styled=True))
    assert not any("\x1b" in line for line in lay_out(100))


def test_stored_text_cannot_control_the_terminal() -> None:
    """An escape sequence in a cell is spelled out."""
    file = StringIO()
    print_tables([TextTable(head=("a",), rows=(("\x1b[2Jx",),))], Console(file=file, styled=True))
    assert "\\x1b[2Jx" in file.getvalue()
