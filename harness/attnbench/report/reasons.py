"""Findings and calls that are no failures, counted by implementation and reason: refusals, checks that did not run."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnbench.analysis.exclusions import Exclusion
from attnbench.records.types import PERF, Result
from attnbench.report.numbers import shorten_text
from attnbench.words.exclusions import describe_fault
from attnbench.words.findings import describe_finding, describe_reason
from attnbench.words.reasons import KINDS, Kind

__all__ = ["ReasonRow", "ReasonTable", "collect_exclusions", "collect_reasons", "collect_untimed"]

# ``MOST_ROWS``: most rows of one table. ``LONGEST``: longest reason, in characters. findings.csv has everything.
MOST_ROWS, LONGEST = 200, 400
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """A reason of one implementation, how often it occurs, and the first case."""

    implementation: str
    reason: str
    count: int
    case: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonTable:
    """The reasons of one kind, the most frequent first; ``left_out`` is the number of rows that are not shown."""

    title: str
    note: str
    rows: tuple[ReasonRow, ...]
    left_out: int = 0


def collect_reasons(results: Iterable[Result]) -> tuple[ReasonTable, ...]:
    """Return the tables of expected failures, refusals, checks that did not run, and warnings, as far as they exist."""
    counts: dict[Kind, Counter[_Key]] = {kind: Counter() for kind in KINDS}
    cases: dict[tuple[Kind, _Key], str] = {}
    for result in results:
        for finding in result.findings:
            told: list[tuple[Kind, str]] = [("warning", describe_reason(warning)) for warning in finding.warnings]
            if finding.status in ("unsupported", "not_run", "expected_failure"):
                told.append((finding.status, describe_finding(finding)))
            for kind, reason in told:
                key = result.implementation, reason
                counts[kind][key] += 1
                cases.setdefault((kind, key), result.case)
    return tuple(
        _make_table(kind, found, {key: cases[kind, key] for key in found}) for kind, found in counts.items() if found
    )


def collect_untimed(results: Iterable[Result]) -> ReasonTable | None:
    """Return the reasons of planned calls that were not timed; None without any."""
    found: Counter[_Key] = Counter()
    cases: dict[_Key, str] = {}
    for result in results:
        if result.suite == PERF and result.timing is None and result.untimed is not None:
            key = result.implementation, describe_reason(result.untimed)
            found[key] += 1
            cases.setdefault(key, result.case)
    return _make_table("untimed", found, cases) if found else None


def collect_exclusions(exclusions: Sequence[Exclusion]) -> ReasonTable | None:
    """Return what cannot be right, by its reason; None without any."""
    keys = [(one.implementation, f"{one.kind}: {describe_fault(one.reason)}") for one in exclusions]
    found = Counter(keys)
    cases = {key: one.case or one.run for key, one in zip(reversed(keys), reversed(exclusions), strict=True)}
    return _make_table("exclusion", found, cases) if found else None


def _make_table(kind: Kind, found: Counter[_Key], cases: dict[_Key, str]) -> ReasonTable:
    title, note = KINDS[kind]
    rows = [
        ReasonRow(implementation=key[0], reason=shorten_text(key[1], LONGEST), count=count, case=cases[key])
        for key, count in found.most_common(MOST_ROWS)
    ]
    return ReasonTable(title=title, note=note, rows=tuple(rows), left_out=len(found) - len(rows))
