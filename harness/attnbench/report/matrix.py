"""The table of findings: the number of findings of each status, for each check and implementation."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnbench.checks.catalogue import list_chapters, read_checks
from attnbench.records.types import FAILURES, Result
from attnbench.report import tables

__all__ = ["LEGEND", "Cell", "Matrix", "make_matrix"]

# Each kind of finding status with its mark. A cell of the table of findings lists its marks in this order.
MARKS = (("bad", "✗"), ("good", "✓"), ("known", "~"), ("refused", "–"), ("left", "·"))
LEGEND = (
    ("good", "✓", "passed"),
    ("bad", "✗", "failed, stopped with an error, or passed where it was expected to fail"),
    ("known", "~", "failed as expected"),
    ("refused", "–", "refused, with a reason"),
    ("left", "·", "not run"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Cell of the table of findings: the numbers of findings of one check on one implementation.

    ``marks`` contains the name, the mark and the number of findings of each kind of status in ``MARKS`` that occurs.
    ``words`` is a text: the requirement of the check, and the number of findings of each status.
    """

    marks: tuple[tuple[str, str, int], ...]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The table of findings."""

    # Each chapter of the catalogue of checks, with the names of its checks; checks without findings are left out.
    chapters: tuple[tuple[str, tuple[str, ...]], ...]
    # What each check requires; empty for a check that this version does not know.
    requirements: dict[str, str]
    # Cells by implementation and check.
    cells: dict[str, dict[str, Cell]]


def make_matrix(results: Sequence[Result]) -> Matrix:
    """Count the findings of these results."""
    counted = tables.count_findings(results)
    known = read_checks()
    names = dict.fromkeys(name for row in counted.values() for name in row)
    requirements = {name: known[name].requirement if name in known else "" for name in names}
    return Matrix(
        chapters=tuple(_group_checks(counted)),
        requirements=requirements,
        cells={
            name: {check: _make_cell(counts, requirements[check]) for check, counts in row.items()}
            for name, row in counted.items()
        },
    )


def _group_checks(counted: dict[str, dict[str, Counter[str]]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = next(iter(counted.values()), {})
    for chapter in (*list_chapters(), "other"):
        own = tuple(name for name in names if tables.chapter_of(name) == chapter)
        if own:
            yield chapter, own


def _classify_status(status: str) -> str:
    if status in FAILURES:
        return "bad"
    return {"passed": "good", "expected_failure": "known", "unsupported": "refused"}.get(status, "left")


def _make_cell(counts: Counter[str], requirement: str) -> Cell:
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[_classify_status(status)] += count
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    return Cell(
        marks=tuple((kind, mark, kinds[kind]) for kind, mark in MARKS if kinds[kind]),
        words=f"{requirement} {words}".strip() if words else "no findings",
    )
