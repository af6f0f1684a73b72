"""The report as Markdown, for places that show no HTML."""

from collections.abc import Collection, Iterable, Sequence

from attnbench.report.content import LEGEND, Content, Grouped
from attnbench.report.listings import Listing, listings
from attnbench.report.page import PLOTS, grids
from attnbench.report.sentences import machine_text, under_times
from attnbench.report.studies.section import BEGIN, END

__all__ = ["render"]


def render(content: Content, files: Collection[str]) -> str:
    """Text of report.md; plots that are among the files stand beside it."""
    parts = [
        "# Attention report",
        *(_text(line) for line in content.headline),
        _list(content.fastest),
        *_runs(content),
        *_conformance(content),
        *_measurements(content, files),
        f"{BEGIN}\n{END}",
        "## How every number was made",
        _list(content.methods),
        *(["## Lines that could not be read", _list(content.unreadable)] if content.unreadable else []),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _runs(content: Content) -> list[str]:
    parts = ["## What was run"]
    for stored in content.runs:
        run = stored.run
        rows = [
            ("time", run.time),
            ("command", _code(run.command)),
            ("machine", _text(machine_text(run.machine))),
            ("threads", str(run.threads)),
            ("versions", _text(", ".join(f"{name} {version}" for name, version in run.versions.items()))),
            ("commit", run.commit or "none"),
            ("suite", f"{run.suite} ({run.suite_digest})"),
            ("file", _code(stored.path.name)),
        ]
        parts.append(_table(("run", _code(run.id)), rows))
    return parts


def _conformance(content: Content) -> list[str]:
    parts = ["## Conformance"]
    if not content.chapters:
        return [*parts, "Nothing was checked."]
    names = list(content.cells)
    for chapter, checks in content.chapters:
        rows = [
            (
                _code(check),
                *(" ".join(f"{mark} {n}" for _, mark, n in content.cells[name][check].marks) for name in names),
            )
            for check in checks
        ]
        parts += [f"### {chapter}", _table(("check", *map(_code, names)), rows)]
    parts.append(" · ".join(f"{mark} {words}" for _, mark, words in LEGEND))
    parts.append("## What did not hold")
    parts += [
        f"**{_code(p.implementation)} · {_code(p.check)} · {p.status}**: {_text(p.reason)}\n\n"
        f"```console\n$ {p.command}\n```"
        for p in content.problems
    ] or ["Nothing."]
    parts += _groups("Failed as expected", content.expected, "checks")
    parts += _groups("Refused", content.refused, "cases")
    parts += _groups("Not run", content.not_run, "cases")
    return parts + _groups("Warnings", content.warned, "checks")


def _measurements(content: Content, files: Collection[str]) -> list[str]:
    parts = ["## Speed and memory"]
    if all(series.timings.empty for series in content.series):
        parts.append("Nothing was timed.")
    for series in content.series:
        parts.append(f"### {_text(series.title)}")
        for name, title, reading in PLOTS:
            if f"{name}{series.suffix}.png" in files:
                parts += [f"![{title}]({name}{series.suffix}.png)", reading]
        if not series.timings.empty:
            parts.append(under_times(series))
        for grid in grids(series):
            rows = [(_code(name), *("<br>".join(cell) for cell in cells)) for name, cells in grid.rows]
            head = (f"{grid.title}: {grid.pass_}", *(f"L = {n}" for n in grid.lengths))
            parts.append(_table(head, rows, right=True))
        for listing in listings(series):
            parts += _listing(listing)
    parts += [text for one in (content.frontiers, content.ceilings) if one for text in _listing(one)]
    parts += _groups("Without a verdict", content.undecided, "calls")
    return parts + _groups("Not timed", content.untimed, "calls")


def _listing(listing: Listing) -> list[str]:
    rows = [(_code(first), *map(_text, rest)) for first, *rest in listing.rows]
    return [f"#### {listing.title}", listing.note, _table(listing.head, rows)]


def _groups(title: str, groups: Sequence[Grouped], of: str) -> list[str]:
    if not groups:
        return []
    rows = [(_code(g.implementation), str(g.count), _text(g.reason), _text(g.of)) for g in groups]
    return [f"## {title}", _table(("implementation", "count", "reason", of), rows)]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False) -> str:
    rule = ["---", *(["---:" if right else "---"] * (len(head) - 1))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_text(line)}" for line in lines)


def _text(text: str) -> str:
    """Text in which nothing is markup."""
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _code(text: str) -> str:
    """Text as code, inside a table too."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"
