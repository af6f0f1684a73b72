"""A conformance run as Markdown: for a pull request, or a repository's own documentation."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from attnbench.checks.catalogue import checks
from attnbench.cli.matrix import LEGEND, Cell, failures, matrix
from attnbench.records.types import Result, Run

__all__ = ["write_markdown"]


def write_markdown(run: Run, results: Iterable[Result], file: IO[str]) -> None:
    """Write what was run, the matrix of chapters and implementations, and what did not hold."""
    file.write("\n\n".join(_parts(run, list(results))) + "\n")


def _parts(run: Run, results: Sequence[Result]) -> Iterator[str]:
    yield "# Conformance"
    libraries = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    cases = len({result.case for result in results})
    yield (
        f"Suite {run.suite} ({cases} cases, list {run.suite_digest}) on {_text(run.machine.cpu)}"
        f"{_text(f' with {run.machine.gpu}' if run.machine.gpu else '')}, {run.threads} threads; {_text(libraries)}."
    )
    cells = matrix(results)
    names = list(dict.fromkeys(result.implementation for result in results))
    head = ["chapter", *(f"`{name}`" for name in names)]
    rows = [[chapter, *(_cell(cells[chapter].get(name)) for name in names)] for chapter in cells]
    yield "\n".join(_row(row) for row in (head, ["---"] * len(head), *rows))
    yield "; ".join(LEGEND.split("   ")) + "."
    for name in names:
        counts = Counter(f.status for result in results if result.implementation == name for f in result.findings)
        yield f"`{name}`: " + ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items()) + "."
    broken = failures(results)
    if broken:
        yield "## What did not hold"
    for failure in broken:
        known = checks().get(failure.finding.check)
        requirement = known.requirement if known else ""
        fault = failure.finding.reason.removeprefix(requirement).strip()
        said = [f"**{_text(failure.title)}**", f"*{_text(requirement)}*", _text(fault), f"`{failure.reproduce}`"]
        yield "  \n".join(part for part in said if part != "**")


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return " ".join((*(f"{sign} {count}" for sign, count in cell.marks()), cell.ratio)).strip()


def _row(parts: Sequence[str]) -> str:
    return f"| {' | '.join(part.replace('|', '&#124;') for part in parts)} |"


def _text(text: str) -> str:
    """Text in which nothing is markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_<>[]|#" else letter for letter in text)
