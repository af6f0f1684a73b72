"""A conformance run as Markdown, for a pull request or for a repository's documentation."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from attnbench.analysis.root_causes import find_root_causes
from attnbench.cli.matrix import LEGEND, Cell, build_matrix
from attnbench.records.types import Result, Run
from attnbench.words.causes import describe_cause, title_cause

__all__ = ["write_markdown"]


def write_markdown(run: Run, results: Iterable[Result], file: IO[str], coverage: Sequence[str] = ()) -> None:
    """Write a summary of the run, a table of findings, and the failures, as Markdown.

    The table has a row for each chapter (group of checks) and a column for each implementation. ``coverage`` are the
    lines about what was checked.
    """
    file.write("\n\n".join(_render_parts(run, list(results), coverage)) + "\n")


def _render_parts(run: Run, results: Sequence[Result], coverage: Sequence[str]) -> Iterator[str]:
    yield "# Conformance"
    libraries = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    gpu = f" with {run.machine.gpu}" if run.machine.gpu else ""
    cases = len({result.case for result in results})
    yield (
        f"Suite {run.suite} ({cases} cases, list {run.suite_digest}) on {_escape(run.machine.cpu)}"
        f"{_escape(gpu)}, {run.threads} threads; {_escape(libraries)}."
    )
    cells = build_matrix(results)
    names = list(dict.fromkeys(result.implementation for result in results))
    head = ["chapter", *(f"`{name}`" for name in names)]
    rows = [[chapter, *(_format_cell(cells[chapter].get(name)) for name in names)] for chapter in cells]
    yield "\n".join(_format_row(row) for row in (head, ["---"] * len(head), *rows))
    yield "; ".join(LEGEND.split("   ")) + "."
    for name in names:
        counts = Counter(f.status for result in results if result.implementation == name for f in result.findings)
        yield f"`{name}`: " + ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items()) + "."
    yield from map(_escape, coverage)
    causes = find_root_causes(results)
    if causes:
        yield "## Failures"
    for cause in causes:
        title = f"{cause.implementation}  {title_cause(cause)}"
        *lines, command = describe_cause(cause)
        yield "  \n".join((f"**{_escape(title)}**", *map(_escape, lines), f"`{command}`"))


def _format_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return " ".join((*(f"{sign} {count}" for sign, count in cell.list_marks()), cell.ratio)).strip()


def _format_row(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', '&#124;') for part in parts)} |"


def _escape(text: str) -> str:
    """Escape the characters that Markdown would read as markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_<>[]|#" else letter for letter in text)
