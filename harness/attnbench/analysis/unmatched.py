"""What only one of two sides of a comparison has: implementations, cases, checks that ran, and timings.

No verdict of ``run_diff`` speaks of these, because there is nothing to compare them with.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from attnbench.records.facts import Reason
from attnbench.records.run_file import has_failure
from attnbench.records.types import FAILURES, SILENT, Finding, Result

__all__ = ["Lack", "Side", "Unmatched", "list_unmatched"]

Side = Literal["base", "new"]
# Results of one side by implementation and case.
Results = Mapping[tuple[str, str], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Why a side lacks something.

    ``reason`` is None where none was stored. ``status``: of the finding of a check that did not run. ``check``: the
    check of which there is no finding.
    """

    reason: Reason | None = None
    status: str = ""
    check: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """What one side has of an implementation and the other side lacks."""

    side: Side
    implementation: str
    # ``implementation``, ``case``: whole results. ``check``: findings of checks that ran, on cases of both sides.
    # ``timing``: timings, on cases of both sides.
    kind: Literal["implementation", "case", "check", "timing"]
    count: int
    # How many of them are failures, or are cases with a failure.
    failed: int = 0
    # Why the other side lacks them, the most frequent first, with its count.
    lacks: tuple[tuple[Lack, int], ...] = ()


def list_unmatched(base: Results, new: Results) -> Iterator[Unmatched]:
    """Yield what only the base has, then what only the new side has."""
    yield from _list_of_side("base", base, new)
    yield from _list_of_side("new", new, base)


def _list_of_side(side: Side, own: Results, other: Results) -> Iterator[Unmatched]:
    known = {name for name, _ in other}
    by_name: defaultdict[str, list[Result]] = defaultdict(list)
    for (name, _), result in own.items():
        by_name[name].append(result)
    for name, results in by_name.items():
        alone = [result for result in results if (name, result.case) not in other]
        if alone:
            yield Unmatched(
                side=side,
                implementation=name,
                kind="case" if name in known else "implementation",
                count=len(alone),
                failed=sum(map(has_failure, alone)),
            )
        pairs = [(result, other[name, result.case]) for result in results if (name, result.case) in other]
        yield from _list_checks(side, name, pairs)
        untimed = [theirs for result, theirs in pairs if result.timing is not None and theirs.timing is None]
        if untimed:
            lacks = Counter(Lack(reason=result.untimed) for result in untimed)
            yield Unmatched(
                side=side, implementation=name, kind="timing", count=len(untimed), lacks=tuple(lacks.most_common())
            )


def _list_checks(side: Side, name: str, pairs: Iterable[tuple[Result, Result]]) -> Iterator[Unmatched]:
    """Yield how many checks ran on one side only; a change between a failure and another status is no such check."""
    failed, lacks = 0, Counter[Lack]()
    for result, theirs in pairs:
        found = {finding.check: finding for finding in theirs.findings}
        for finding in result.findings:
            counterpart = found.get(finding.check)
            if finding.status in SILENT or (counterpart is not None and not _lacks(finding, counterpart)):
                continue
            lacks[_explain(counterpart) if counterpart else Lack(check=finding.check)] += 1
            failed += finding.status in FAILURES
    if lacks:
        yield Unmatched(
            side=side, implementation=name, kind="check", count=lacks.total(), failed=failed,
            lacks=tuple(lacks.most_common()),
        )  # fmt: skip


def _explain(finding: Finding) -> Lack:
    return Lack(status=finding.status, reason=finding.facts[0] if finding.facts else finding.reason)


def _lacks(finding: Finding, counterpart: Finding) -> bool:
    """Whether the check did not run on the other side; for a failure, ``run_diff`` has the change of status."""
    return counterpart.status in SILENT and finding.status not in FAILURES
