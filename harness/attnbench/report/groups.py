"""Findings and calls that are not failures, grouped by implementation and reason."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from attnbench.analysis.left_out import LeftOut
from attnbench.analysis.plain_names import clean_name, join_words
from attnbench.records.types import FAILURES
from attnbench.report.numbers import format_count, shorten_text

__all__ = [
    "Folded",
    "Grouped",
    "describe_unmeasured",
    "fold_groups",
    "group_left_out",
    "group_rows",
    "label_calls",
    "select_expected_failures",
    "select_warned",
]

# ``MOST_GROUPS``: most groups in one table of a page. ``LONGEST_REASON``: longest reason in it, in characters.
# findings.csv has everything.
MOST_GROUPS, LONGEST_REASON = 200, 800
# Most names in one sentence.
MOST_NAMED = 12

# The warning of a check that passed with little to spare.
_NEARLY = re.compile(r"uses \d+% of the error allowed")
# Pattern of the start of an expected failure's reason: the declared reason, a link in parentheses, and a colon. The
# reason that the check reported follows the colon.
_DECLARED = re.compile(r"(.*? \(\S*\)): ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Findings or calls of one implementation with the same reason; ``of`` lists their first checks, cases or calls."""

    implementation: str
    reason: str
    count: int
    of: str
    # Ids of the runs that have these findings or calls.
    runs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A table of groups that a page folds: a heading, an explanation, and the groups by implementation.

    ``of`` is the heading of the last column. ``summary`` says how many findings and groups the table has.
    """

    title: str
    note: str
    summary: str
    of: str
    rows: tuple[Grouped, ...]


def fold_groups(
    *,
    expected: Sequence[Grouped],
    refused: Sequence[Grouped],
    not_run: Sequence[Grouped],
    warned: Sequence[Grouped],
    machines: Mapping[str, str],
    silent: Collection[str],
) -> Iterator[Folded]:
    """Yield the folded tables: expected failures, refused cases, checks that were not run, and warnings.

    A table without rows is left out. The findings of all machines are counted together. ``machines`` has the machine of
    each run by its id. ``silent``: implementations of which no check ran.
    """
    tables = (
        (
            "Expected failures",
            "Known deviations. Each one is still checked, and the run fails if the check unexpectedly passes.",
            "checks",
            expected,
        ),
        (
            "Refused",
            "Cases that the implementation declares unsupported. A refusal never counts as passed. Where "
            "the implementation was called anyway, a wrong result is listed under Failures. findings.csv calls the "
            "status `unsupported`.",
            "cases",
            refused,
        ),
        ("Not run", "Checks that were left out, and the reason.", "cases", not_run),
        ("Warnings", "Findings of any status with a warning.", "checks", warned),
    )
    for title, note, of, groups in tables:
        if groups:
            summary = _summarise(title, groups, machines, silent)
            yield Folded(title=title, note=note, summary=summary, of=of, rows=_cap(groups))


def _summarise(title: str, groups: Sequence[Grouped], machines: Mapping[str, str], silent: Collection[str]) -> str:
    own = [group for group in groups if group.implementation not in silent]
    others = [group for group in groups if group.implementation in silent]
    told = f"{_count(own)}, and {_count(others)} of which no check ran" if own and others else _count(groups)
    found = f"{title}: {told}{_locate(groups, machines)}"
    if len(groups) <= MOST_GROUPS:
        return found
    return f"{found}; the {MOST_GROUPS} most frequent of {format_count(len(groups), 'reason')}, all in findings.csv"


def _count(groups: Sequence[Grouped]) -> str:
    """Return how many findings of how many implementations there are."""
    names = format_count(len({group.implementation for group in groups}), "implementation")
    return f"{format_count(sum(group.count for group in groups), 'finding')} of {names}"


def _locate(groups: Sequence[Grouped], machines: Mapping[str, str]) -> str:
    """Return on which machines the findings are; empty if the report has one machine."""
    own = {machines[run] for group in groups for run in group.runs}
    on = f", on {clean_name(min(own))}" if len(own) == 1 else f", on {len(own)} machines together"
    return on if len({*machines.values()}) > 1 else ""


def _cap(groups: Sequence[Grouped]) -> tuple[Grouped, ...]:
    """Return the most frequent groups in the given order, with reasons that are not too long for a page."""
    kept = {id(group) for group in sorted(groups, key=lambda group: -group.count)[:MOST_GROUPS]}
    return tuple(
        replace(group, reason=shorten_text(group.reason, LONGEST_REASON)) for group in groups if id(group) in kept
    )


def select_warned(found: pd.DataFrame) -> pd.DataFrame:
    """Return the findings with a warning, with the warning in the column ``reason``.

    A warning that a check nearly failed is left out if the same check of the implementation failed on another case.
    """
    warned = found[found["warnings"] != ""]
    wrong = found[found["status"].isin(FAILURES)]
    failed = set(zip(wrong["implementation"], wrong["check"], strict=True))
    kept = [
        not (_NEARLY.fullmatch(str(text)) and (name, check) in failed)
        for name, check, text in zip(warned["implementation"], warned["check"], warned["warnings"], strict=True)
    ]
    warned = warned[pd.Series(kept, index=warned.index, dtype=bool)]
    return warned.assign(reason=warned["warnings"])


def select_expected_failures(found: pd.DataFrame) -> pd.DataFrame:
    """Return the expected failures among these findings, with only the declared reason in the column ``reason``."""
    expected = found[found["status"] == "expected_failure"]
    declared = [match[1] if (match := _DECLARED.match(str(reason))) else str(reason) for reason in expected["reason"]]
    return expected.assign(reason=declared)


def label_calls(frame: pd.DataFrame) -> pd.DataFrame:
    """Add a column ``of`` that describes each call by its pass and its length."""
    return frame.assign(of=frame["pass"] + " L = " + frame["length"].astype(str))


def group_rows(frame: pd.DataFrame, column: str, *, named: int = 3) -> tuple[Grouped, ...]:
    """Group rows by implementation and reason; the most frequent reasons of an implementation come first.

    The field ``of`` of a group is a text that lists up to ``named`` different values of ``column``.
    """
    # Not by ``groupby``: each group of a data frame costs 0.1 ms, and 100,000 findings may all have different reasons.
    found: dict[tuple[str, str], tuple[int, dict[str, None], set[str]]] = {}
    columns = (frame[name] for name in ("implementation", "reason", column, "run"))
    for name, reason, value, run in zip(*columns, strict=True):
        count, values, runs = found.get((name, reason), (0, {}, set()))
        values[str(value)] = None
        runs.add(run)
        found[name, reason] = count + 1, values, runs
    made = []
    for (name, reason), (count, values, runs) in found.items():
        of = _list_first(list(values), named)
        own = frozenset(map(str, runs))
        made.append(Grouped(implementation=str(name), reason=str(reason), count=count, of=of, runs=own))
    order = {str(name): place for place, name in enumerate(frame["implementation"].unique())}
    return tuple(sorted(made, key=lambda one: (order[one.implementation], -one.count)))


def describe_unmeasured(untimed: pd.DataFrame) -> str:
    """Return which implementations were not measured because they failed, and on how many calls; may be empty."""
    failed = [str(reason).partition(":")[0] in FAILURES for reason in untimed["reason"]]
    counts = untimed[pd.Series(failed, index=untimed.index, dtype=bool)]["implementation"].value_counts(sort=False)
    if counts.empty:
        return ""
    names = [f"{name} ({format_count(int(count), 'call')})" for name, count in counts.items()]
    more = len(names) - MOST_NAMED
    shown = join_words([*names[:MOST_NAMED], *[f"{more} more"] * (more > 0)])
    return f"Not measured, because {'it' if len(names) == 1 else 'they'} failed: {shown}."


def group_left_out(left_out: Sequence[LeftOut]) -> tuple[Grouped, ...]:
    """Group what was left out by kind, implementation and reason; at most ``MOST_GROUPS`` groups, the largest first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for one in left_out:
        groups.setdefault((one.kind, one.implementation, one.reason), []).append(one.case or one.run)
    made = [
        Grouped(implementation=name, reason=f"{kind}: {reason}", count=len(of), of=_list_first(of))
        for (kind, name, reason), of in groups.items()
    ]
    return tuple(sorted(made, key=lambda one: -one.count)[:MOST_GROUPS])


def _list_first(texts: Sequence[str], named: int = 1) -> str:
    """List the first ``named`` different texts, and say how many more there are."""
    values = list(dict.fromkeys(texts))
    more = f" and {len(values) - named} more" if len(values) > named else ""
    return ", ".join(values[:named]) + more
