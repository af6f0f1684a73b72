"""The changes of a comparison as rows of tables: what became worse first; in each table, the largest change first."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.run_diff import Change, ComparedTimes, Counted, Verdict
from attnbench.analysis.stats import Interval
from attnbench.cases import CaseId
from attnbench.records.types import find_pass
from attnbench.report.case_forms import describe_form, describe_length, describe_pass
from attnbench.report.numbers import format_bytes, format_digits, format_thousands, shorten_text
from attnbench.words import comparison as words
from attnbench.words.changes import describe_change, list_kernel_changes
from attnbench.words.say import say, say_count
from attnbench.words.speed import explain_no_verdict

__all__ = ["SECTIONS", "Group", "Row", "Section", "describe_common", "make_sections"]

# Sections in their order: id, verdicts, and the kind of their sentences.
SECTIONS: tuple[tuple[str, tuple[Verdict, ...], Literal["bad", "gap", "good"]], ...] = (
    ("wrong", ("wrong",), "bad"),
    ("missing", ("gone",), "bad"),
    ("slower", ("slower",), "bad"),
    ("bigger", ("bigger",), "bad"),
    ("undecided", ("inconclusive", "unknown"), "gap"),
    ("other", ("other",), "gap"),
    ("better", ("mended", "faster", "smaller"), "good"),
)
# Longest reason in a row, in characters.
LONGEST = 300
# Change in per cent from which one decimal is enough; smaller changes get two significant digits.
WHOLE = 10
# Relative change of a number of bytes or calls from which per cent are shown beside the difference.
LEAST = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A change of one aspect on one case, or the equal changes on several cases that have no numbers."""

    implementation: str
    verdict: str
    # One of the aspects of ``run_diff``, or the name of a check.
    aspect: str
    # The aspect in words.
    what: str
    # The numbers of the two sides with their intervals; empty where nothing was measured. A time is a ratio, and
    # ``unit`` says to what.
    base: str
    new: str
    unit: str
    # The change as one number, such as "+28 %", and with its interval, such as "+28 % [+25 % to +31 %]"; both empty
    # without numbers.
    brief: str
    change: str
    # The reason, or the kernels whose number of calls changed; may be empty.
    detail: str
    # The new number over the base's, by which rows are sorted; NaN without numbers.
    factor: float
    # The case in words, or the number of cases.
    where: str
    # The id of the case, or of the first of the cases.
    case: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows of one implementation in a section."""

    implementation: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The changes with the same kind of verdict."""

    anchor: str
    title: str
    kind: Literal["bad", "gap", "good"]
    groups: tuple[Group, ...]

    @property
    def count(self) -> int:
        """Number of changes."""
        return sum(row.count for group in self.groups for row in group.rows)


def make_sections(found: Sequence[Change]) -> tuple[Section, ...]:
    """Return the sections that have changes, in the order of ``SECTIONS``."""
    common = _find_common(found)
    made = []
    for anchor, verdicts, kind in SECTIONS:
        groups = _make_groups([change for change in found if change.verdict in verdicts], common)
        if groups:
            made.append(Section(anchor=anchor, title=say(words.TITLES[anchor]), kind=kind, groups=groups))
    return tuple(made)


def describe_common(found: Iterable[Change]) -> str:
    """Return in words what all measured cases have in common, such as the sizes and the dtype; empty if nothing."""
    return ", ".join(text for text in _find_common(found) if text)


def _make_groups(found: Sequence[Change], common: Collection[str]) -> tuple[Group, ...]:
    merged: defaultdict[tuple[object, ...], list[Change]] = defaultdict(list)
    for change in found:
        # Changes without numbers that say the same of several cases are one row.
        own = (change.case,) if change.factor or change.base else ()
        merged[change.implementation, change.aspect, change.verdict, change.fact, *own].append(change)
    by_name: defaultdict[str, list[Row]] = defaultdict(list)
    for changes in merged.values():
        by_name[changes[0].implementation].append(_make_row(changes, common))
    places = {aspect: place for place, aspect in enumerate(words.ASPECTS)}
    groups = [
        Group(
            implementation=name,
            rows=tuple(sorted(rows, key=lambda row: (places.get(row.aspect, -1), -_size(row), -row.count))),
        )
        for name, rows in by_name.items()
    ]
    return tuple(sorted(groups, key=lambda group: -max(map(_size, group.rows))))


def _size(row: Row) -> float:
    """Return how large a change is, the same for a doubled and for a halved number; 0 without numbers."""
    if math.isnan(row.factor):
        return 0.0
    return abs(math.log(row.factor)) if row.factor > 0 else math.inf


def _make_row(changes: Sequence[Change], common: Collection[str]) -> Row:
    first, several = changes[0], len(changes) > 1
    brief, change, detail = _describe_change(first)
    # Two implementations that were timed interleaved have one ratio: the new implementation's time over the base's.
    interleaved = first.aspect == "time" and first.base is None and first.factor is not None
    return Row(
        implementation=first.implementation,
        verdict=first.verdict,
        aspect=first.aspect,
        what=words.name_aspect(first.aspect),
        base="1" if interleaved else _format_quantity(first.aspect, first.base),
        new=_format_quantity(first.aspect, first.factor if interleaved else first.new),
        unit="" if first.aspect != "time" or not first.factor else " × base" if interleaved else " × reference",
        brief=brief,
        change=change,
        detail=shorten_text(detail, LONGEST),
        factor=first.factor.value if first.factor else math.nan,
        where=say_count(words.CASES, len(changes)) if several else ", ".join(_describe_case(first.case, common)),
        case=first.case,
        count=len(changes),
    )


def _format_quantity(aspect: str, quantity: Interval | None) -> str:
    if quantity is None:
        return ""
    if aspect == "time":
        return _format_interval(quantity)
    return format_bytes(quantity.value) if aspect.endswith("_bytes") else format_thousands(int(quantity.value))


def _format_interval(quantity: Interval) -> str:
    shown = format_digits(quantity.value)
    if quantity.low == quantity.high:
        return f"{shown}, no interval"
    return f"{shown} [{format_digits(quantity.low)} to {format_digits(quantity.high)}]"


def _describe_change(change: Change) -> tuple[str, str, str]:
    """Return the change as one number and in all its numbers, and what is said beside it."""
    factor = change.factor
    if change.aspect == "time" and factor is not None:
        interval = f" [{_format_share(factor.low)} to {_format_share(factor.high)}]" if factor.low < factor.high else ""
        reason = change.fact.found.reason if isinstance(change.fact, ComparedTimes) else None
        share = _format_share(factor.value)
        return share, f"{share}{interval}", explain_no_verdict(reason)
    if change.base is None or change.new is None:
        return "", "", describe_change(change)
    difference = int(change.new.value) - int(change.base.value)
    unit = " B" if change.aspect.endswith("_bytes") else ""
    exact = f"{'+' if difference >= 0 else '−'}{format_thousands(abs(difference))}{unit}"
    kernels = list_kernel_changes(change.fact) if isinstance(change.fact, Counted) else ""
    share = _format_share(factor.value) if factor and abs(factor.value - 1) >= LEAST else ""
    return share or exact, f"{share}, {exact}" if share else exact, kernels


def _format_share(factor: float) -> str:
    """Format a factor as a change in per cent; from a doubling on, as a factor."""
    if factor >= 2:
        return f"{format_digits(factor)} ×"
    share = 100 * (factor - 1)
    sign = "+" if share >= 0 else "−"
    shown = f"{abs(share):.1f}" if abs(share) >= WHOLE or share == 0 else format_digits(abs(share), 2)
    return f"{sign}{shown.removesuffix('.0')} %"


def _describe_case(case: str, common: Collection[str]) -> Iterator[str]:
    """Yield the words of a case; those that all cases have in common are left out."""
    found = CaseId.parse(case)
    yield say(words.LENGTH, length=describe_length(*found.lengths))
    yield describe_pass(find_pass(case), found.mode)
    yield from (text for text in _list_words(case) if text and text not in common)


def _list_words(case: str) -> tuple[str, str, str]:
    found = CaseId.parse(case)
    return describe_form(found.form), found.dtype, found.device


def _find_common(found: Iterable[Change]) -> tuple[str, ...]:
    """Return form, dtype and device of the measured cases in words, each only if all of them have the same one."""
    columns = list(zip(*map(_list_words, {one.case for one in found if one.base or one.factor}), strict=True))
    return tuple(column[0] for column in columns if len(set(column)) == 1)
