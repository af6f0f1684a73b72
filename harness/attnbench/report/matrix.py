"""The matrix: of each machine and device the numbers of findings by status, chapter, check and implementation."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attnbench.analysis.completeness import find_unfinished, judge_completeness
from attnbench.checks.catalogue import find_chapter, list_chapters, read_checks
from attnbench.records.run_file import StoredRun
from attnbench.records.types import FAILURES, SILENT, Result, Status
from attnbench.report.failures import MachineDevice, split_by_device
from attnbench.report.numbers import shorten_text
from attnbench.report.slugs import make_slug
from attnbench.words.findings import describe_finding
from attnbench.words.matrix import EMPTY, NO_FINDINGS, UNFINISHED
from attnbench.words.say import say
from attnbench.words.statuses import MARKS, describe_mark, find_mark

__all__ = ["Chapter", "FindingCounts", "Matrix", "Row", "Unchecked", "list_legend", "make_matrices"]

# Longest reason of an implementation on which nothing was checked, in characters.
LONGEST_REASON = 200
# Number of findings by check, implementation and status.
Counts = dict[str, dict[str, Counter[Status]]]
# Anchor of the group of failures on the page, by machine, implementation and check.
Anchors = Mapping[tuple[str, str, str], str]
# Most implementations whose numbers of refusals fit into a window of 1440 CSS pixels.
FITTING = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCounts:
    """Findings of one implementation in one check or chapter.

    ``marks`` contains the name, the mark and the number of findings of each kind of status in ``MARKS`` that occurs.
    The number is 0 where a run ended before the first of these findings. ``link`` is the anchor of a group of failures
    of these findings, or empty.
    """

    marks: tuple[tuple[str, str, int], ...] = ()
    link: str = ""

    @property
    def text(self) -> str:
        """Marks and numbers as text; empty if there are no findings."""
        return ", ".join(f"{mark} {count}" if count else mark for _, mark, count in self.marks)

    @property
    def by_kind(self) -> dict[str, tuple[str, int]]:
        """Mark and number of findings of each kind of status that occurs."""
        return {kind: (mark, count) for kind, mark, count in self.marks}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell for each implementation of the matrix."""

    name: str
    # What the check requires; empty for a chapter, and for a check that this version does not know.
    requirement: str = ""
    cells: tuple[FindingCounts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The row of a chapter, the rows of its checks, and the id of the page's element with the rows of checks."""

    row: Row
    checks: tuple[Row, ...]
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Implementations on which nothing was checked, for the same reason."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The findings on one machine and device: a column for each checked implementation, a row for each chapter."""

    # The machine, and the device if the report has results of several devices of this machine.
    machine: str
    names: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    unchecked: tuple[Unchecked, ...]
    # Names of which a run left out planned checks, although it began to check them.
    unfinished: frozenset[str] = frozenset()

    @property
    def titles(self) -> tuple[str, ...]:
        """The names, each with what its column lacks."""
        return tuple(say(UNFINISHED, name=name) if name in self.unfinished else name for name in self.names)

    @cached_property
    def columns(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each title with the kinds of status of its implementation; each kind stands in a column of its own."""
        rows = [row for chapter in self.chapters for row in (chapter.row, *chapter.checks)]
        cells = zip(*(row.cells for row in rows), strict=True)
        return tuple((name, _list_kinds(own)) for name, own in zip(self.titles, cells, strict=True))

    @property
    def is_wide(self) -> bool:
        """Whether the page shows refusals without their number, so that the columns fit into 1440 pixels."""
        return len(self.names) > FITTING

    @property
    def requirements(self) -> dict[str, str]:
        """What each check of the matrix requires."""
        return {row.name: row.requirement for chapter in self.chapters for row in chapter.checks}


def list_legend(matrices: Iterable[Matrix]) -> tuple[tuple[str, str, str], ...]:
    """Return kind, mark and words of what occurs in the matrices; an empty cell has neither kind nor mark."""
    cells = [
        cell
        for matrix in matrices
        for chapter in matrix.chapters
        for row in (chapter.row, *chapter.checks)
        for cell in row.cells
    ]
    kinds = _list_kinds(cells)
    found = tuple((mark.name, mark.sign, describe_mark(mark)) for mark in MARKS if mark.name in kinds)
    return (*found, ("", "", say(EMPTY))) if any(not cell.marks for cell in cells) else found


def make_matrices(runs: Sequence[StoredRun], results: Sequence[Result], anchors: Anchors) -> tuple[Matrix, ...]:
    """Return the matrix of each machine and device; ``anchors`` says where the failures of a cell are on the page.

    Implementations with failures come first. An implementation that a run did not finish has "not run" where it has no
    findings, and one that was not started has it everywhere.
    """
    unfinished = find_unfinished(map(judge_completeness, runs))
    return tuple(
        _make_matrix(place, own, anchors, unfinished.get(place.machine, ()))
        for place, own in split_by_device(runs, results).items()
    )


def _make_matrix(place: MachineDevice, own: Sequence[Result], anchors: Anchors, late: Collection[str]) -> Matrix:
    started = dict.fromkeys(result.implementation for result in own)
    names = [*started, *(name for name in late if name not in started)]
    counts, reasons = _count_findings(own)
    checked = [name for name in names if name not in reasons]
    failing = _find_failing(counts)
    checked.sort(key=lambda name: name not in failing)
    rows = _make_chapters(place.label, counts, checked, anchors, frozenset(late)) if counts and checked else ()
    chapters = tuple(rows)
    return Matrix(
        machine=place.label,
        names=tuple(checked) if chapters else (),
        chapters=chapters,
        unchecked=tuple(_fold_unchecked(reasons)),
        unfinished=frozenset(late) & started.keys(),
    )


def _find_failing(counts: Counts) -> frozenset[str]:
    """Return the implementations with a failure."""
    return frozenset(
        name for row in counts.values() for name, statuses in row.items() if not FAILURES.isdisjoint(statuses)
    )


def _list_kinds(cells: Iterable[FindingCounts]) -> tuple[str, ...]:
    """Return the kinds of status in these cells, in the order of ``MARKS``."""
    found = {kind for cell in cells for kind, _, _ in cell.marks}
    return tuple(mark.name for mark in MARKS if mark.name in found)


def _count_findings(results: Iterable[Result]) -> tuple[Counts, dict[str, Counter[tuple[str, str]]]]:
    """Count findings by check, implementation and status.

    Also return the statuses and reasons of implementations on which nothing was checked.
    """
    counts: defaultdict[str, dict[str, Counter[Status]]] = defaultdict(dict)
    reasons: dict[str, Counter[tuple[str, str]]] = {}
    checked = set()
    for result in results:
        name = result.implementation
        own = reasons.setdefault(name, Counter())
        for finding in result.findings:
            row = counts[finding.check]
            if name not in row:
                row[name] = Counter()
            row[name][finding.status] += 1
            if finding.status in SILENT:
                own[finding.status, describe_finding(finding)] += 1
            else:
                checked.add(name)
    return dict(counts), {name: found for name, found in reasons.items() if name not in checked}


def _fold_unchecked(reasons: Mapping[str, Counter[tuple[str, str]]]) -> Iterator[Unchecked]:
    """Yield the implementations on which nothing was checked, those with the same reason together."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, own in reasons.items():
        alike[_choose_reason(own)].append(name)
    for reason, names in alike.items():
        yield Unchecked(names=tuple(names), reason=reason)


def _choose_reason(counts: Mapping[tuple[str, str], int]) -> str:
    """Return the most frequent reason, that of a refusal first."""
    if not counts:
        return say(NO_FINDINGS)
    _, reason = max(counts, key=lambda key: (key[0] == "unsupported", counts[key]))
    return shorten_text(reason, LONGEST_REASON)


def _make_chapters(
    machine: str, counts: Counts, names: Sequence[str], anchors: Anchors, unfinished: frozenset[str]
) -> Iterator[Chapter]:
    known = read_checks()
    order = [*(name for name in known if name in counts), *sorted(counts.keys() - known.keys())]
    by_chapter: defaultdict[str, list[str]] = defaultdict(list)
    for check in order:
        if any(name in counts[check] for name in names):
            by_chapter[find_chapter(check)].append(check)
    for title in (*list_chapters(), "other"):
        if checks := by_chapter[title]:
            late = [name in unfinished for name in names]
            links = [[anchors.get((machine, name, check), "") for name in names] for check in checks]
            found = [[counts[check].get(name, Counter()) for name in names] for check in checks]
            rows = tuple(
                Row(
                    name=check,
                    requirement=known[check].requirement if check in known else "",
                    cells=tuple(map(_make_cell, own, to, late)),
                )
                for check, own, to in zip(checks, found, links, strict=True)
            )
            sums = [_add_up(column) for column in zip(*found, strict=True)]
            firsts = [_choose_link(column) for column in zip(*(row.cells for row in rows), strict=True)]
            yield Chapter(
                row=Row(name=title, cells=tuple(map(_make_cell, sums, firsts, late))),
                checks=rows,
                anchor=make_slug("checks", machine, title),
            )


def _add_up(parts: Iterable[Counter[Status]]) -> Counter[Status]:
    total: Counter[Status] = Counter()
    for part in parts:
        total.update(part)
    return total


def _choose_link(cells: Sequence[FindingCounts]) -> str:
    """Return the link of the cell with the most failures, or an empty text."""
    linked = [cell for cell in cells if cell.link]
    return max(linked, key=lambda cell: cell.marks[0][2]).link if linked else ""


def _make_cell(counts: Counter[Status], link: str, unfinished: bool) -> FindingCounts:  # noqa: FBT001  # one of three columns that ``map`` joins
    kinds: Counter[str] = Counter()
    for status, count in counts.items():
        kinds[find_mark(status).name] += count
    marks = tuple((mark.name, mark.sign, kinds[mark.name]) for mark in MARKS if kinds[mark.name])
    if not marks and unfinished:
        left = find_mark("not_run")
        marks = ((left.name, left.sign, 0),)
    return FindingCounts(marks=marks, link=link if kinds["bad"] else "")
