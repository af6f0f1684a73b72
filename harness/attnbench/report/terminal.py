"""The summary on a terminal: the table of each place, what to use, and what is missing.

A table that is wider than the terminal is divided by pass. If the lengths of one pass do not fit, the smallest and the
largest are shown, and a line names the others.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import StringIO

from attnbench.analysis.next_command import NextCommand
from attnbench.analysis.summary import Mark, Summary, SummaryTable, Verdict
from attnbench.report.console import PLAIN_WIDTH, Console, Part, Text, count_cells
from attnbench.report.summary_grid import Cell, Grid, Group, Line, list_answers, list_gaps, list_unmeasured, make_grid
from attnbench.words.causes import describe_cause
from attnbench.words.say import say, say_count
from attnbench.words.summary import (
    CONFORMS,
    MORE_CAUSES,
    MORE_TABLES,
    NOT_TIMED,
    UNBROKEN,
    describe_hidden_lengths,
    describe_next,
    title_failure,
)

__all__ = ["format_summary", "print_failures", "print_next_command", "print_summary"]

# Least width for which tables are laid out; a narrower terminal breaks their lines.
NARROWEST = 40
# Columns between two cells, and between the last cell of a pass and the next pass.
GAP, PASS_GAP = 2, 3
# Most tables; the page has all.
MOST_TABLES = 6
# Most causes of failures; the run file has all failures.
MOST_CAUSES = 12
# Most lines of one row without times.
MOST_LINES = 2
CUT = "…"
_STYLES: dict[Mark | Verdict, str] = {
    "faster": "green", "not_slower": "green", "slower": "red", "not_faster": "red", "undecided": "yellow",
    "yes": "green", "only": "yellow", "no": "bold red", "refused": "dim", "unknown": "dim",
}  # fmt: skip


def print_summary(summary: Summary, out: Console) -> None:
    """Print the tables, each followed by its legend, by what to use and by what was not timed; then what runs lack."""
    for number, table in enumerate(summary.tables[:MOST_TABLES]):
        if number:
            out.print()
        for line in _lay_out(table, max(out.width, NARROWEST)):
            out.print(line)
    if left := len(summary.tables) - MOST_TABLES:
        _print_wrapped([say_count(MORE_TABLES, left)] if left > 0 else [], out)
    _print_wrapped(list_gaps(summary), out)


def print_failures(summary: Summary, out: Console) -> None:
    """Print the causes of failures: what failed, by how much, and the command that reproduces it."""
    width = max(out.width, NARROWEST)
    for line in _list_failures(summary, width):
        out.print(line)


def print_next_command(found: NextCommand, change: Callable[[str], str], out: Console) -> None:
    """Print the one command that would decide most, changed by ``change``; its line is not divided, to be copied."""
    out.print(describe_next(replace(found, command=change(found.command))))


def _list_failures(summary: Summary, width: int) -> Iterator[str]:
    """Yield the lines about the gravest causes; a command is never divided, so that it can be copied."""
    causes = summary.causes
    several = len(summary.machines) > 1
    for place, cause in causes[:MOST_CAUSES]:
        yield ""
        yield from _wrap(title_failure(cause, place.machine if several else ""), width)
        for line in describe_cause(cause):
            yield from [f"  {line}"] if line == cause.reproduce else _wrap(f"  {line}", width)
    if (left := len(causes) - MOST_CAUSES) > 0:
        yield ""
        yield say_count(MORE_CAUSES, left)


def format_summary(summary: Summary, width: int = PLAIN_WIDTH) -> str:
    """Return the summary and the failures as the terminal shows them, without colours."""
    file = StringIO()
    out = Console(file=file, width=width)
    print_summary(summary, out)
    print_failures(summary, out)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _print_wrapped(lines: "Sequence[str] | Iterator[str]", out: Console) -> None:
    for line in lines:
        for text in _wrap(line, max(out.width, NARROWEST)):
            out.print(text)


def _lay_out(table: SummaryTable, width: int) -> Iterator[Text]:
    """Yield the lines of a table."""
    grid = make_grid(table)
    yield from (Part(text, "bold") for text in _wrap(grid.title, width))
    notes: list[str] = []
    if grid.groups:
        for number, block in enumerate(_divide(grid, width, notes)):
            yield from ([""] if number else [])
            yield from _format_block(block, width, first=not number)
    else:
        yield from _format_block(grid, width, first=True)
    yield from (Part(text, "dim") for line in [*notes, grid.legend] if line for text in _wrap(line, width))
    if grid.groups:
        yield from (text for line in list_answers(table) for text in _wrap(line, width))
    yield from (text for line in list_unmeasured(table) for text in _wrap(line, width))


def _divide(grid: Grid, width: int, notes: list[str]) -> Iterator[Grid]:
    """Yield the parts of a grid that fit into the width, each with one pass or several; add what is hidden to notes."""
    places = list(range(len(grid.groups)))
    taken: list[int] = []
    first = True
    for place in places:
        if taken and _measure(grid, [*taken, place], first=first) > width:
            yield _select(grid, taken, width, notes, first=first)
            taken, first = [], False
        taken.append(place)
    yield _select(grid, taken, width, notes, first=first)


def _select(grid: Grid, places: Sequence[int], width: int, notes: list[str], *, first: bool) -> Grid:
    """Return these groups of a grid; of a single group that is too wide, only as many lengths as fit."""
    chosen = replace(
        grid,
        groups=tuple(grid.groups[place] for place in places),
        lines=tuple(
            replace(line, cells=tuple(line.cells[place] for place in places)) if line.cells else line
            for line in grid.lines
        ),
    )
    every = range(len(chosen.groups))
    if len(chosen.groups) != 1 or _measure(chosen, every, first=first) <= width:
        return chosen
    (group,) = chosen.groups
    count = len(group.headings)
    for kept in range(count - 1, 0, -1):
        columns = sorted(
            {round(number * (count - 1) / max(kept - 1, 1)) for number in range(kept)} if kept > 1 else {count - 1}
        )
        fewer = _keep_columns(chosen, columns)
        if kept == 1 or _measure(fewer, every, first=first) <= width:
            hidden = [name for number, name in enumerate(group.headings) if number not in columns]
            notes.append(describe_hidden_lengths(group.label, hidden))
            return fewer
    return chosen


def _keep_columns(grid: Grid, columns: Sequence[int]) -> Grid:
    """Return a grid of one group with only these columns."""
    (group,) = grid.groups
    return replace(
        grid,
        groups=(Group(label=group.label, headings=tuple(group.headings[column] for column in columns)),),
        lines=tuple(
            replace(line, cells=(tuple(line.cells[0][column] for column in columns),)) if line.cells else line
            for line in grid.lines
        ),
    )


def _measure(grid: Grid, places: Sequence[int], *, first: bool) -> int:
    """Return the width of a table of these groups; the first part also has the verdicts on conformance."""
    width = _measure_names(grid, PLAIN_WIDTH) + (GAP + _measure_verdicts(grid) if first else 0)
    return width + sum(PASS_GAP + sum(_measure_columns(grid, place)) for place in places)


def _measure_names(grid: Grid, width: int) -> int:
    longest = max((count_cells(line.subject) for line in grid.lines), default=0)
    return min(longest, max(12, width // (3 if grid.groups else 2)))


def _measure_verdicts(grid: Grid) -> int:
    """Return the width of the column of verdicts: rows without times may be wider, because they have no other cells."""
    timed = [line.conforms_briefly for line in grid.lines if line.is_timed]
    return max(map(count_cells, (say(CONFORMS), *timed)))


def _measure_columns(grid: Grid, place: int) -> list[int]:
    """Return the width of each column of a group, with the gap before it; the last is as wide as the label needs."""
    group = grid.groups[place]
    rows = [line.cells[place] for line in grid.lines if line.is_timed]
    widths = [
        max(count_cells(text) for text in (heading, *(row[number].text for row in rows))) + (GAP if number else 0)
        for number, heading in enumerate(group.headings)
    ]
    widths[-1] += max(0, count_cells(group.label) - sum(widths))
    return widths


def _format_block(grid: Grid, width: int, *, first: bool) -> Iterator[Text]:
    """Yield the lines of a table that fits; ``first``: with the verdicts on conformance."""
    names = _measure_names(grid, width)
    verdicts = _measure_verdicts(grid) if first else 0
    start = names + (GAP + verdicts if first else 0)
    columns = [_measure_columns(grid, place) for place in range(len(grid.groups))]
    labels = [_pad(group.label, sum(own), right=len(own) == 1) for group, own in zip(grid.groups, columns, strict=True)]
    headings = [
        "".join(_pad(name, size, right=True) for name, size in zip(group.headings, own, strict=True))
        for group, own in zip(grid.groups, columns, strict=True)
    ]
    between = " " * PASS_GAP
    top = _pad(" " * (names + GAP) + say(CONFORMS), start) if first else " " * start
    if labels:
        yield Part(between.join((top, *labels)).rstrip(), "dim")
        yield Part(between.join((" " * start, *headings)).rstrip(), "dim")
    else:
        yield Part(top.rstrip(), "dim")
    for line in grid.lines:
        if line.is_timed:
            yield _format_timed(line, names, verdicts, columns)
        elif first:
            yield from _format_untimed(line, names, width, has_times=bool(grid.groups))


def _format_timed(line: Line, names: int, verdicts: int, columns: Sequence[Sequence[int]]) -> Text:
    parts = [Part(_pad(line.subject, names))]
    if verdicts:
        parts += [Part(" " * GAP), Part(_pad(line.conforms_briefly, verdicts), _STYLES[line.verdict])]
    for cells, own in zip(line.cells, columns, strict=True):
        parts.append(Part(" " * PASS_GAP))
        parts += (
            Part(_pad(cell.text, size, right=True), _find_style(cell)) for cell, size in zip(cells, own, strict=True)
        )
    return parts


def _format_untimed(line: Line, names: int, width: int, *, has_times: bool) -> Iterator[Text]:
    """Yield the lines of a row without numbers: its verdict takes the place of the cells."""
    told = line.conforms if not has_times or line.verdict == "refused" else say(NOT_TIMED, verdict=line.conforms)
    wrapped = textwrap.wrap(told, max(width - names - GAP, 8), break_on_hyphens=False, break_long_words=False)
    shown = [_cut(text, width - names - GAP) for text in wrapped[:MOST_LINES]]
    if len(wrapped) > MOST_LINES:
        shown[-1] = _cut(f"{shown[-1]} {CUT}", width - names - GAP)
    for number, part in enumerate(shown or [""]):
        yield [Part(_pad(line.subject if not number else "", names) + " " * GAP), Part(part, _STYLES[line.verdict])]


def _find_style(cell: Cell) -> str:
    return _STYLES.get(cell.mark, "") if cell.mark and cell.mark not in ("baseline", "same") else ""


def _pad(text: str, size: int, *, right: bool = False) -> str:
    """Fill a text with spaces; a longer one ends in a sign that it was cut."""
    shown = _cut(text, size)
    space = " " * (size - count_cells(shown))
    return space + shown if right else shown + space


def _cut(text: str, size: int) -> str:
    if count_cells(text) <= size:
        return text
    kept = text
    while kept and count_cells(kept) > size - 1:
        kept = kept[:-1]
    return kept.rstrip() + CUT


def _wrap(line: str, width: int) -> list[str]:
    """Break a line between words, with its own indent; a word that is longer than a line stays whole."""
    indent = " " * (len(line) - len(line.lstrip()) or 2)
    lines = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return [part.replace(UNBROKEN, " ") for part in lines]
