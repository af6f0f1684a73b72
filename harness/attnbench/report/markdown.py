"""The summary as Markdown: the tables and the failures, short enough for a pull request."""

from collections.abc import Iterable, Iterator, Sequence

from attnbench.analysis.summary import Summary, SummaryTable
from attnbench.report.markdown_text import escape, format_code, format_table, hide_comments
from attnbench.report.summary_grid import Line, list_answers, list_gaps, list_unmeasured, make_grid, name_wrong
from attnbench.words.causes import describe_cause
from attnbench.words.say import say, say_count
from attnbench.words.summary import CONFORMS, FAILURES, HEADING, MORE_CAUSES, MORE_TABLES, SEE_ALSO, title_failure

__all__ = ["render"]

# Most tables, and most causes of failures; the page has all.
MOST_TABLES, MOST_CAUSES = 6, 12
# Longest text about one cause, in characters.
LONGEST = 600


def render(summary: Summary, links: Sequence[tuple[str, str]] = ()) -> str:
    """Return the summary and the failures as Markdown, with links to the addresses of other pages at the end."""
    parts = [f"# {say(HEADING)}", escape(name_wrong(summary))]
    for table in summary.tables[:MOST_TABLES]:
        parts += _render_table(table)
    if (left := len(summary.tables) - MOST_TABLES) > 0:
        parts.append(say_count(MORE_TABLES, left))
    parts.append(_list_lines(list_gaps(summary)))
    parts += _render_failures(summary)
    if links:
        parts.append(say(SEE_ALSO, links=", ".join(f"[{escape(text)}](<{address}>)" for text, address in links)))
    return hide_comments("\n\n".join(part for part in parts if part)) + "\n"


def _render_table(table: SummaryTable) -> Iterator[str]:
    grid = make_grid(table)
    yield f"**{escape(grid.title)}**"
    columns = [(group.label, name) for group in grid.groups for name in group.headings]
    head = ["", say(CONFORMS), *(f"{label}<br>{name}" for label, name in columns)]
    rows = (_list_cells(line, len(columns)) for line in grid.lines)
    yield format_table(head, rows, numbers=len(columns))
    yield _list_lines([*filter(None, [grid.legend]), *list_answers(table), *list_unmeasured(table)])


def _list_cells(line: Line, count: int) -> Sequence[str]:
    cells = [cell.text for own in line.cells for cell in own] or [""] * count
    return [format_code(line.subject), escape(line.conforms), *cells]


def _list_lines(lines: Iterable[str]) -> str:
    return "  \n".join(escape(line) for line in lines)


def _render_failures(summary: Summary) -> Iterator[str]:
    causes = summary.causes
    if causes:
        yield f"## {say(FAILURES)}"
    several = len(summary.machines) > 1
    for place, cause in causes[:MOST_CAUSES]:
        title = title_failure(cause, place.machine if several else "")
        told = [line for line in describe_cause(cause) if line != cause.reproduce]
        lines = [f"**{escape(title)}**", *map(_shorten, told), format_code(cause.reproduce)]
        yield "  \n".join(lines)
    if (left := len(causes) - MOST_CAUSES) > 0:
        yield escape(say_count(MORE_CAUSES, left))


def _shorten(text: str) -> str:
    return escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
