"""The report as Markdown, for places that do not show HTML."""

from collections.abc import Iterable, Mapping, Sequence

from attnbench.report.choices import Choice
from attnbench.report.content import Content
from attnbench.report.failures import REPRODUCING, FailureGroup
from attnbench.report.figures.drawing import SeriesFigures
from attnbench.report.groups import Grouped, group_left_out
from attnbench.report.listings import Listing, make_listings
from attnbench.report.maps import MapTable, ShownCell
from attnbench.report.markdown_text import escape as _escape
from attnbench.report.markdown_text import format_code as _format_code
from attnbench.report.markdown_text import format_console, hide_comments
from attnbench.report.matrix import Matrix, Row, list_legend
from attnbench.report.measures import Cell, MeasureTable
from attnbench.report.methods import describe_commit, describe_machine, describe_suite, explain_measures
from attnbench.report.missing import Missing
from attnbench.report.nodes import Nodes
from attnbench.report.slots import make_slot
from attnbench.report.verdict import format_lines

__all__ = ["render"]


def render(content: Content, figures: Sequence[SeriesFigures]) -> str:
    """Return the text of report.md; ``figures`` are those of each series."""
    before = [
        "# Attention report",
        *(_escape(line) for line in format_lines(content.verdict, commands=False)),
        *_render_decisions(content),
        *_render_nodes(content.nodes),
        *_render_failures(content),
        *_render_missing(content.missing),
        *_render_conformance(content),
        *_render_measurements(content, figures),
    ]
    after = [
        *_render_runs(content),
        "## Methods",
        _render_list(content.methods),
        *(["## Unreadable lines", _render_list(content.unreadable)] if content.unreadable else []),
        *_render_left_out(content),
    ]
    shown = ["\n\n".join(part for part in parts if part) for parts in (before, after)]
    return f"\n\n{make_slot('studies')}\n\n".join(map(hide_comments, shown)) + "\n"


def _render_runs(content: Content) -> list[str]:
    parts = ["## Runs"]
    for stored in content.runs:
        run = stored.run
        rows = [
            ("time", _escape(run.time)),
            ("command", _format_code(run.command)),
            ("machine", _escape(describe_machine(run.machine))),
            *([("node", _format_code(run.node))] if run.node else []),
            ("threads", str(run.threads)),
            ("versions", _escape(", ".join(f"{name} {version}" for name, version in run.versions.items()))),
            ("commit", _escape(describe_commit(run.commit))),
            ("suite", _escape(describe_suite(run))),
            ("file", _format_code(stored.path.name)),
        ]
        parts.append(_render_table(("run", _format_code(run.id)), rows))
    return parts


def _render_left_out(content: Content) -> list[str]:
    if not content.left_out:
        return []
    note = f"Left out of all numbers, because it cannot be right: {content.left_out_count}. left-out.csv lists all."
    title, table = _render_groups("Left out", group_left_out(content.left_out), "where")
    return [title, note, table]


def _render_failures(content: Content) -> list[str]:
    parts = ["## Failures", _escape(content.warn("failures")), _escape(content.failures.sentence)]
    parts += map(_escape, content.nodes.checks)
    parts += [_escape(REPRODUCING)] * bool(content.failures.shown)
    for _, heading, first, others in content.failures.blocks:
        parts += [f"### {_escape(heading)}", *map(_render_failure, (*first, *others))]
    if not content.failures.shown:
        parts.append(content.without_failures)
    for table in content.folded:
        rows = [(_format_code(g.implementation), str(g.count), _escape(g.reason), _escape(g.of)) for g in table.rows]
        shown = _render_table(("implementation", "count", "reason", table.of), rows)
        parts += [f"### {table.title}", _escape(f"{table.summary}. {table.note}"), shown]
    return parts


def _render_failure(group: FailureGroup) -> str:
    lines = [
        f"**{_escape(group.title)}** ({_escape(group.size)})",
        f"Required: {_escape(group.requirement)}" if group.requirement else "",
        _escape(group.shared),
        f"Failed: {_escape(group.by_check)}." if group.by_check else "",
        f"{group.found} {_escape(group.worst.fault)}",
        *(f"Warning: {_escape(warning)}" for warning in group.warnings[:3]),
    ]
    parts = ["  \n".join(line for line in lines if line), format_console(group.command)]
    if rest := group.following:
        parts += [f"{_escape(rest.words)}  \n{rest.found} {_escape(rest.worst.fault)}", format_console(rest.command)]
    return "\n\n".join(parts)


def _render_conformance(content: Content) -> list[str]:
    parts = ["## Conformance"]
    if not content.is_checked:
        return [*parts, "Nothing was checked."]
    parts.append(_escape(content.warn("conformance")))
    parts.append("; ".join(f"{mark} {words}".strip() for _, mark, words in list_legend(content.matrices)))
    for matrix in content.matrices:
        if len(content.matrices) > 1:
            parts.append(f"### On {_escape(matrix.machine)}")
        if matrix.chapters:
            parts.append(_render_matrix(matrix, "chapter", [chapter.row for chapter in matrix.chapters]))
        parts += [
            f"Not checked: {', '.join(map(_format_code, one.names))}: {_escape(one.reason)}."
            for one in matrix.unchecked
        ]
        for chapter in matrix.chapters:
            parts += [f"#### {_escape(chapter.row.name)}", _render_matrix(matrix, "check", chapter.checks)]
    return parts + ([_render_list(content.coverage)] if content.coverage else [])


def _render_matrix(matrix: Matrix, first: str, rows: Iterable[Row]) -> str:
    lines = ((_format_code(row.name), *(cell.text for cell in row.cells)) for row in rows)
    return _render_table((first, *map(_format_code, matrix.titles)), lines)


def _render_measurements(content: Content, figures: Sequence[SeriesFigures]) -> list[str]:
    parts = ["## Speed and memory"]
    if all(series.timings.empty for series in content.series):
        parts.append("Nothing was timed.")
    parts += [_escape(content.warn("measured")) if content.series else "", _escape(content.states)]
    parts.append(_escape(content.unmeasured))
    parts += [_escape(content.undrawn)] if content.undrawn else []
    for series, drawn in zip(content.series, figures, strict=True):
        parts.append(f"### {_escape(series.heading)}")
        parts += [] if series.drawn else ["Figures of this series are not drawn."]
        parts += _render_figures(drawn)
        for listing in make_listings(series) if series.drawn else ():
            parts += _render_listing(listing)
    if content.measures.tables:
        parts.append(_escape(explain_measures(content.series, content.measures)))
    parts += [text for table in content.measures.tables for text in _render_measures(table)]
    parts += [text for one in (content.max_lengths, content.ceilings) if one for text in _render_listing(one)]
    parts += _render_groups("Without a speed verdict", content.undecided, "calls")
    return parts + _render_groups("Not timed", content.untimed, "calls")


def _render_decisions(content: Content) -> list[str]:
    decisions, maps = content.decisions, content.maps
    parts = ["## What to use here", _escape(content.unmeasured)] if decisions.tables else []
    for table in decisions.tables:
        rows = [(_escape(row.form), row.length, *map(_format_choice, row.choices)) for row in table.rows]
        parts += [
            f"### {_escape(table.place.label)}",
            _escape(table.warning),
            *(part for one in maps.select(table.place) for part in _render_map(one)),
            _render_table(("shape", "length", *table.passes), rows),
            _escape(table.features),
        ]
    parts += [_escape(maps.left_out)] if maps.left_out else []
    if decisions.flips:
        head = ("shape", "length", "pass", *(_escape(place.label) for place in decisions.places))
        flips = [(_escape(row.form), row.length, row.pass_, *map(_escape, row.answers)) for row in decisions.flips]
        parts += ["### Where machines disagree", _render_table(head, flips)]
    return parts


def _render_missing(missing: Sequence[Missing]) -> list[str]:
    parts = ["## What is missing"]
    for one in missing:
        parts.append(f"**{one.what}.** {_escape(one.text)}")
        parts += [f"{_escape(step.words)}\n\n{format_console(step.command)}" for step in one.steps]
    return parts if missing else [*parts, "Nothing."]


def _render_nodes(nodes: Nodes) -> list[str]:
    parts = ["### Where nodes of the same kind disagree", _escape(nodes.times)] if nodes.times else []
    if nodes.rows:
        parts.append(_render_table(nodes.head, (tuple(map(_escape, row.cells)) for row in nodes.shown)))
    return parts


def _render_map(table: MapTable) -> list[str]:
    rows = [(_escape(label), *map(_format_map_cell, cells)) for label, cells in table.rows]
    shown = _render_table(("", *map(_escape, table.columns)), rows)
    return [f"#### {_escape(table.title)}", _escape(table.remark), shown]


def _format_map_cell(cell: ShownCell) -> str:
    return "<br>".join([_format_answer(cell.choice), *([_escape(cell.note)] if cell.note else [])])


def _format_choice(choice: Choice) -> str:
    return "<br>".join([_format_answer(choice), *map(_escape, choice.details)])


def _format_answer(choice: Choice) -> str:
    """Return what to use, with its time and its notes."""
    words = f"**{_escape(choice.words)}** {_escape(choice.time)}".rstrip()
    return "<br>".join([words, *map(_escape, choice.notes)])


def _render_measures(table: MeasureTable) -> list[str]:
    columns = (*table.main, *table.rest)
    rows = [
        (
            _format_code(row.implementation),
            row.length.text,
            *([_escape(row.form)] if table.forms else []),
            *(_format_cell(row.cells.get(key), table.marks) for key, *_ in columns),
        )
        for row in table.rows
    ]
    head = (
        "implementation",
        "L",
        *(["shape"] if table.forms else []),
        *(_escape(heading) for _, heading, _ in columns),
    )
    form = [] if table.forms else [_escape(table.form)]
    below = [*map(_escape, table.remarks), *(f"({mark}) {_escape(note)}" for note, mark in table.marks.items())]
    shown = _render_table(head, rows, right=True)
    return [f"### Measures: {_escape(table.label)}", *form, shown, *below]


def _format_cell(cell: Cell | None, marks: Mapping[str, str]) -> str:
    if cell is None:
        return "–"
    return _escape(f"{cell.text} ({marks[cell.note]})" if cell.note else cell.text)


def _render_figures(figures: SeriesFigures) -> list[str]:
    parts = []
    for one in figures.drawings:
        parts += [f"#### {_escape(one.title)}", _escape(" ".join([one.reading, *one.notes]).strip())]
        parts.append(f"![{_escape(one.shows)}]({one.stem}.png)")
    return [*parts, *map(_escape, figures.missing)]


def _render_listing(listing: Listing) -> list[str]:
    rows = [(_format_code(first), *map(_escape, rest)) for first, *rest in listing.rows]
    return [f"#### {listing.title}", listing.note, _render_table(listing.head, rows)]


def _render_groups(title: str, groups: Sequence[Grouped], of: str) -> list[str]:
    if not groups:
        return []
    rows = [(_format_code(g.implementation), str(g.count), _escape(g.reason), _escape(g.of)) for g in groups]
    return [f"## {title}", _render_table(("implementation", "count", "reason", of), rows)]


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> str:
    rule = ["---", *(["---:" if right else "---"] * (len(head) - 1))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _render_list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)
