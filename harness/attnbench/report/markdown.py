"""A report as Markdown, short enough for a pull request: what was found, the tables, and the failures."""

from collections.abc import Iterable, Iterator, Sequence

from attnbench.report.content import Content
from attnbench.report.failures import FailureGroup
from attnbench.report.figures.drawings import Drawing
from attnbench.report.markdown_text import escape, format_code, hide_comments
from attnbench.report.numbers import shorten_text
from attnbench.report.overview import OverviewTable, Shown, make_overview
from attnbench.report.placeholders import make_placeholder

__all__ = ["render"]

# Most failures, and the longest text of one, in characters.
MOST_FAILURES, LONGEST = 20, 200


def render(content: Content, drawings: Sequence[Drawing] = ()) -> str:
    """Return the text of report.md."""
    overview = make_overview(content.summary, content.failures)
    parts = [f"# Attention report: {', '.join(escape(one.run.id) for one in content.runs)}"]
    parts += [escape(text) for text, _ in overview.wrong]
    parts += [escape(text) for text in overview.missing]
    parts += [part for table in overview.tables for part in _render_table(table)]
    parts += [f"![{escape(one.title)}]({one.stem}.png)" for one in drawings[:1]]
    parts += _render_failures(content.failures.groups)
    return hide_comments("\n\n".join(parts)) + f"\n\n{make_placeholder('studies')}\n"


def _render_table(table: OverviewTable) -> Iterator[str]:
    yield f"## {escape(table.place)}{': ' if table.form else ''}{escape(table.form)}"
    heads = [f"{name} {length}" for name, lengths in table.passes for length in lengths]
    head = ["", "conforms", *map(escape, heads), *[f"peak at {table.peak_at}"] * bool(table.peak_at)]
    rows = [
        [format_code(row.name), escape(row.conformance.text), *_list_cells(row.cells),
         *([escape(row.peak.text)] if row.peak else [])]
        for row in table.rows
    ]  # fmt: skip
    yield _join_table(head, rows)
    yield from (f"To use, {escape(name)}: {escape(told)}." for name, told in table.told)


def _list_cells(cells: Iterable[Shown]) -> Iterator[str]:
    for cell in cells:
        text = escape(f"{cell.text} {cell.sign}".strip())
        yield f"**{text}**" if cell.chosen else text
        yield from [""] * (cell.span - 1)


def _render_failures(groups: Sequence[FailureGroup]) -> Iterator[str]:
    if not groups:
        return
    yield "## Failures"
    for group in groups[:MOST_FAILURES]:
        fault = escape(shorten_text(group.worst.fault, LONGEST))
        yield f"- {format_code(group.implementation)}: {escape(group.title)} ({escape(group.size)}). {fault}"
    left = len(groups) - MOST_FAILURES
    if left > 0:
        yield f"failures.csv has {left} more."


def _join_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
