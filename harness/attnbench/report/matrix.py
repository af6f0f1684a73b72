"""The matrix: for each machine the numbers of findings by status, of each chapter, check and implementation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnbench.checks.catalogue import list_chapters, read_checks
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, Result
from attnbench.report.numbers import shorten_text
from attnbench.report.series import split_by_machine
from attnbench.report.slugs import make_slug
from attnbench.report.tables import chapter_of

__all__ = ["LEGEND", "Cell", "Chapter", "Matrix", "Row", "Unchecked", "make_matrix"]

# Each kind of finding status with its mark. A cell of the matrix lists its marks in this order.
MARKS = (("bad", "✗"), ("good", "✓"), ("known", "~"), ("refused", "–"), ("left", "·"))
LEGEND = (
    ("good", "✓", "passed"),
    ("bad", "✗", "failed, stopped with an error, or passed where it was expected to fail"),
    ("known", "~", "failed as expected"),
    ("refused", "–", "refused, with a reason"),
    ("left", "·", "not run"),
)
# Reasons that are named of an implementation on which nothing was checked, and their longest text, in characters.
NAMED_REASONS, LONGEST_REASON = 3, 200
# Implementations by check, with the number of findings of each status.
Counts = dict[str, dict[str, Counter[str]]]
# Anchor of the group of failures on the page, by machine, implementation and check.
Anchors = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Findings of one implementation in one check or chapter.

    ``marks`` contains the name, the mark and the number of findings of each kind of status in ``MARKS`` that occurs.
    ``link`` is the anchor of a group of failures of these findings, or empty.
    """

    marks: tuple[tuple[str, str, int], ...] = ()
    link: str = ""

    @property
    def text(self) -> str:
        """Marks and numbers as text; empty if there are no findings."""
        return " ".join(f"{mark} {count}" for _, mark, count in self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell for each implementation of the matrix."""

    name: str
    # What the check requires; empty for a chapter, and for a check that this version does not know.
    requirement: str = ""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The row of a chapter, the rows of its checks, and the id of the element that has these."""

    row: Row
    checks: tuple[Row, ...]
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Implementations on which nothing was checked, for the same reason."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The findings on one machine: a column for each implementation that was checked, a row for each chapter."""

    machine: str
    names: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    unchecked: tuple[Unchecked, ...]

    @property
    def requirements(self) -> dict[str, str]:
        """What each check of the matrix requires."""
        return {row.name: row.requirement for chapter in self.chapters for row in chapter.checks}


def make_matrix(runs: Iterable[StoredRun], results: Sequence[Result], anchors: Anchors) -> Iterator[Matrix]:
    """Yield the matrix of each machine; ``anchors`` says where the failures of a cell are on the page."""
    for machine, own in split_by_machine(runs, results).items():
        names = dict.fromkeys(result.implementation for result in own)
        counts, reasons = _count_findings(own)
        checked = tuple(name for name in names if name not in reasons)
        yield Matrix(
            machine=machine,
            names=checked,
            chapters=tuple(_make_chapters(machine, counts, checked, anchors)) if checked else (),
            unchecked=tuple(_fold_unchecked(reasons)),
        )


def _count_findings(results: Iterable[Result]) -> tuple[Counts, dict[str, Counter[str]]]:
    """Count findings by check, implementation and status, and the reasons of implementations that were not checked."""
    counts: defaultdict[str, dict[str, Counter[str]]] = defaultdict(dict)
    reasons: dict[str, Counter[str]] = {}
    checked = set()
    for result in results:
        name = result.implementation
        own = reasons.setdefault(name, Counter())
        for finding in result.findings:
            row = counts[finding.check]
            if name not in row:
                row[name] = Counter()
            row[name][finding.status] += 1
            if finding.status in ("unsupported", "not_run"):
                own[finding.reason] += 1
            else:
                checked.add(name)
    return dict(counts), {name: found for name, found in reasons.items() if name not in checked}


def _fold_unchecked(reasons: Mapping[str, Counter[str]]) -> Iterator[Unchecked]:
    """Yield the implementations on which nothing was checked, those with the same reasons together."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, own in reasons.items():
        first = [shorten_text(reason, LONGEST_REASON) for reason in sorted(own, key=lambda reason: -own[reason])]
        more = f"; and {len(first) - NAMED_REASONS} more reasons" if len(first) > NAMED_REASONS else ""
        alike["; ".join(first[:NAMED_REASONS]) + more or "no findings"].append(name)
    for reason, names in alike.items():
        yield Unchecked(names=tuple(names), reason=reason)


def _make_chapters(machine: str, counts: Counts, names: Sequence[str], anchors: Anchors) -> Iterator[Chapter]:
    known = read_checks()
    order = [*(name for name in known if name in counts), *sorted(counts.keys() - known.keys())]
    by_chapter: defaultdict[str, list[str]] = defaultdict(list)
    for check in order:
        if any(name in counts[check] for name in names):
            by_chapter[chapter_of(check)].append(check)
    for title in (*list_chapters(), "other"):
        if checks := by_chapter[title]:
            links = [[anchors.get((machine, name, check), "") for name in names] for check in checks]
            found = [[counts[check].get(name, Counter()) for name in names] for check in checks]
            rows = tuple(
                Row(
                    name=check,
                    requirement=known[check].requirement if check in known else "",
                    cells=tuple(map(_make_cell, own, to)),
                )
                for check, own, to in zip(checks, found, links, strict=True)
            )
            sums = [_add_up(column) for column in zip(*found, strict=True)]
            firsts = [_choose_link(column) for column in zip(*(row.cells for row in rows), strict=True)]
            yield Chapter(
                row=Row(name=title, cells=tuple(map(_make_cell, sums, firsts))),
                checks=rows,
                anchor=make_slug("checks", machine, title),
            )


def _add_up(parts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return total


def _choose_link(cells: Sequence[Cell]) -> str:
    """Return the link of the cell with the most failures, or an empty text."""
    linked = [cell for cell in cells if cell.link]
    return max(linked, key=lambda cell: cell.marks[0][2]).link if linked else ""


def _make_cell(counts: Counter[str], link: str) -> Cell:
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[_classify_status(status)] += count
    marks = tuple((kind, mark, kinds[kind]) for kind, mark in MARKS if kinds[kind])
    return Cell(marks=marks, link=link if kinds["bad"] else "")


def _classify_status(status: str) -> str:
    if status in FAILURES:
        return "bad"
    return {"passed": "good", "expected_failure": "known", "unsupported": "refused"}.get(status, "left")
