"""The report as Markdown, for places that do not show HTML."""

import re
from collections.abc import Collection, Iterable, Sequence

from attnbench.report.content import Content
from attnbench.report.drawings import PLOTS
from attnbench.report.failures import FailureGroup
from attnbench.report.groups import Grouped, group_left_out
from attnbench.report.listings import Listing, make_listings
from attnbench.report.matrix import LEGEND, Matrix, Row
from attnbench.report.measures import make_grids
from attnbench.report.methods import describe_machine, explain_times
from attnbench.report.studies.section import BEGIN, END

__all__ = ["render"]


def render(content: Content, files: Collection[str]) -> str:
    """Return the text of report.md; it shows each plot whose file name is in ``files``."""
    parts = [
        "# Attention report",
        *(_escape(line) for line in content.headline),
        _render_list(content.fastest),
        *_render_failures(content),
        *_render_conformance(content),
        *_render_measurements(content, files),
        f"{BEGIN}\n{END}",
        *_render_runs(content),
        "## Methods",
        _render_list(content.methods),
        *(["## Unreadable lines", _render_list(content.unreadable)] if content.unreadable else []),
        *_render_left_out(content),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _render_runs(content: Content) -> list[str]:
    parts = ["## Runs"]
    for stored in content.runs:
        run = stored.run
        rows = [
            ("time", run.time),
            ("command", _format_code(run.command)),
            ("machine", _escape(describe_machine(run.machine))),
            ("threads", str(run.threads)),
            ("versions", _escape(", ".join(f"{name} {version}" for name, version in run.versions.items()))),
            ("commit", run.commit or "none"),
            ("suite", f"{run.suite} ({run.suite_digest})"),
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
    parts = ["## Failures", _escape(content.failures.sentence)]
    for heading, first, others in content.failures.blocks:
        parts += [f"### {_escape(heading)}", *map(_render_failure, (*first, *others))]
    if not content.failures.shown:
        parts.append("None." if content.is_checked else "Nothing was checked.")
    for table in content.folded:
        rows = [(_format_code(g.implementation), str(g.count), _escape(g.reason), _escape(g.of)) for g in table.rows]
        shown = _render_table(("implementation", "count", "reason", table.of), rows)
        parts += [f"### {table.title}", _escape(f"{table.summary}. {table.note}"), shown]
    return parts


def _render_failure(group: FailureGroup) -> str:
    worst = f"Worst error: {group.worst.excess} the allowed error: " if group.worst.excess else "One of the cases: "
    lines = [
        f"**{_format_code(group.implementation)} · {_escape(group.title)}** ({_escape(group.size)})",
        f"Required: {_escape(group.requirement)}" if group.requirement else "",
        _escape(group.shared),
        f"Failed: {_escape(group.by_check)}." if group.by_check else "",
        worst + _escape(group.worst.fault),
        *(f"Warning: {_escape(warning)}" for warning in group.warnings[:3]),
    ]
    # A fence that is longer than any other in the command, so that the command cannot end it.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", group.command)), default=0))
    return "  \n".join(line for line in lines if line) + f"\n\n{fence}console\n$ {group.command}\n{fence}"


def _render_conformance(content: Content) -> list[str]:
    parts = ["## Conformance"]
    if not content.is_checked:
        return [*parts, "Nothing was checked."]
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
            parts += [f"#### {chapter.row.name}", _render_matrix(matrix, "check", chapter.checks)]
    parts.append(" · ".join(f"{mark} {words}" for _, mark, words in LEGEND))
    return parts + ([_render_list(content.coverage)] if content.coverage else [])


def _render_matrix(matrix: Matrix, first: str, rows: Iterable[Row]) -> str:
    lines = ((_format_code(row.name), *(cell.text for cell in row.cells)) for row in rows)
    return _render_table((first, *map(_format_code, matrix.names)), lines)


def _render_measurements(content: Content, files: Collection[str]) -> list[str]:
    parts = ["## Speed and memory"]
    if all(series.timings.empty for series in content.series):
        parts.append("Nothing was timed.")
    parts += [_escape(content.undrawn)] if content.undrawn else []
    for series in content.series:
        parts.append(f"### {_escape(series.title)}")
        for name, title, reading in PLOTS:
            if f"{name}{series.suffix}.png" in files:
                parts += [f"![{title}]({name}{series.suffix}.png)", reading]
        if not series.timings.empty:
            parts.append(explain_times(series))
        for grid in make_grids(series):
            rows = [(_format_code(name), *("<br>".join(cell) for cell in cells)) for name, cells in grid.rows]
            head = (f"{grid.title}: {grid.pass_}", *(f"L = {n}" for n in grid.lengths))
            parts.append(_render_table(head, rows, right=True))
        for listing in make_listings(series):
            parts += _render_listing(listing)
    parts += [text for one in (content.max_lengths, content.ceilings) if one for text in _render_listing(one)]
    parts += _render_groups("Without a speed verdict", content.undecided, "calls")
    return parts + _render_groups("Not timed", content.untimed, "calls")


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


def _escape(text: str) -> str:
    """Escape Markdown markup."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _format_code(text: str) -> str:
    """Format text as inline code that is also valid inside a table."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"
