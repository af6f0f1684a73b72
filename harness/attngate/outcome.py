"""The outcome of a gate as typed facts, and the rule by which it follows from what changed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import msgspec

from attnbench.analysis.run_diff import UNDECIDED, Change, ComparedRatios, ComparedTimes, Counted, StatusChange, Verdict
from attnbench.analysis.speed_verdict import find_slowdown
from attnbench.analysis.stats import Interval, rank_of
from attnbench.api.comparing import THRESHOLD
from attnbench.api.revisions import Version
from attnbench.records.exit_codes import FAILED, INCONCLUSIVE
from attnbench.records.types import SILENT, Result

__all__ = [
    "ALARMS", "BIGGER", "FAULTS", "SLOWDOWN", "SLOWER", "SLOWER_APART", "ChangeFact", "Fault", "Outcome", "Rule",
    "SideFact", "conclude", "find_lost", "refine",
]  # fmt: skip

Fault = Literal["wrong", "slower", "bigger"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
# The verdicts of each fault. A check that passed and now does not run is lost: silence is no success.
VERDICTS: Mapping[Fault, frozenset[Verdict]] = {
    "wrong": frozenset({"wrong", "gone"}),
    "slower": frozenset({"slower"}),
    "bigger": frozenset({"bigger"}),
}
# The verdict on a time that may be larger, by what is known of a slowdown.
SLOWDOWN: Mapping[bool | None, Verdict] = {True: "slower", False: "not_slower", None: "unknown"}
# Largest probability that a gate tells a slowdown where no case is slower by more than the threshold.
ALARMS = 0.005
# Smallest slowdown that counts. Two copies of the same code, at other addresses, can differ by about 1 %.
SLOWER = 0.02
# The same between two moments, as for stored runs: two measurements of identical code differed by up to 6 %.
SLOWER_APART = THRESHOLD
# Smallest growth in bytes that counts: a page of memory. A tensor of the size of the output has 16 KiB or more in each
# timed case with several queries, so that one more is found, and a flag or a scale is not.
BIGGER = 4096


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as worse, and how sure a verdict on time must be."""

    fail_on: tuple[Fault, ...] = FAULTS
    slower: float = SLOWER
    bigger_bytes: int = BIGGER
    # Whether a gate without a verdict on every time fails (exit code 3), or passes.
    undecided: Literal["pass", "fail"] = "fail"
    # Number of verdicts on time, the most often each is asked for, and the level of each: their product is at most
    # ``ALARMS``.
    comparisons: int = 0
    looks: int = 0
    level: float = 0.0


class SideFact(msgspec.Struct, frozen=True, kw_only=True):
    """The environment in which a side was measured at a moment of its own, and its run."""

    python: str
    torch: str
    run: str


class ChangeFact(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one aspect of an implementation on one case; aspects and verdicts are those of ``compare``."""

    implementation: str
    case: str
    aspect: str
    verdict: Verdict
    base: Interval | None
    new: Interval | None
    factor: Interval | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate found."""

    outcome: Literal["holds", "worse", "undecided"]
    exit_code: int
    base: Version
    new: Version
    implementations: tuple[str, ...]
    # Number of cases, of all implementations, that both sides were checked on or counted on.
    compared: int
    # Implementations whose base was not checked again, because its results were kept.
    kept: tuple[str, ...]
    rule: Rule
    # Numbers of changes by fault, of mended checks, of times without a verdict, of cases without a time on both sides.
    worse: dict[Fault, int]
    mended: int
    undecided: int
    untimed: int
    # Implementations none of whose checks passed.
    unchecked: tuple[str, ...]
    changes: tuple[ChangeFact, ...]
    # 1: calls of both sides were interleaved; 2: each side was measured in an environment of its own, beside the
    # reference there. ``environments`` are then those of the base and of the new side.
    moments: Literal[1, 2] = 1
    environments: tuple[SideFact, ...] = ()
    # Implementations that only the new side registers, and those that only the base registers. None of them
    # is compared.
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def find_lost(old: Result, now: Result) -> Iterator[Change]:
    """Yield a change for each check of a case that passed in the base and does not run on the new side."""
    was = {finding.check: finding.status for finding in old.findings}
    for finding in now.findings:
        if finding.status in SILENT and was.get(finding.check) == "passed":
            fact = StatusChange(before="passed", finding=finding)
            yield Change(
                implementation=now.implementation, case=now.case, aspect=finding.check, verdict="gone", fact=fact
            )


def refine(found: Iterable[Change], rule: Rule, unfit: frozenset[str]) -> Iterator[Change]:
    """Yield the changes of the timed cases with the verdicts of a gate.

    ``unfit`` are the cases without a time on both sides for a reason that is told elsewhere, or in the base.
    """
    for change in found:
        verdict = change.verdict
        if change.aspect == "time":
            if change.case in unfit or "slower" not in rule.fail_on:
                continue
            if verdict in ("slower", "unknown") and isinstance(change.fact, ComparedTimes):
                verdict = SLOWDOWN[find_slowdown(change.fact.found, rule.slower)]
            elif isinstance(change.fact, ComparedRatios):
                verdict = _judge_ratios(change, change.fact, rule)
        elif isinstance(change.fact, Counted) and change.aspect.endswith("_bytes"):
            grown = change.fact.is_now - change.fact.was
            verdict = "tolerated" if verdict == "bigger" and grown < rule.bigger_bytes else verdict
        elif isinstance(change.fact, Counted):
            # The number of calls says how, and not how well, an implementation computes.
            verdict = verdict if verdict == "same" else "other"
        yield replace(change, verdict=verdict)


def _judge_ratios(change: Change, fact: ComparedRatios, rule: Rule) -> Verdict:
    """Return the verdict on two ratios; there is none where an interval has too few processes for the level."""
    if not all(rank_of(one.processes, rule.level) for one in (fact.was, fact.is_now)):
        return "unknown"
    holds = change.verdict == "unknown" and change.factor is not None and change.factor.high < 1 + rule.slower
    return "not_slower" if holds else change.verdict


def conclude(
    changes: Sequence[Change],
    rule: Rule,
    *,
    versions: tuple[Version, Version],
    implementations: Sequence[str],
    compared: int,
    kept: Sequence[str] = (),
    unchecked: Sequence[str] = (),
    untimed: int = 0,
    environments: Sequence[SideFact] = (),
) -> Outcome:
    """Return the outcome that follows from the changes: worse, else undecided, else it holds."""
    worse = {fault: sum(one.verdict in VERDICTS[fault] for one in changes) for fault in FAULTS}
    undecided = sum(one.verdict in UNDECIDED for one in changes)
    outcome: Literal["holds", "worse", "undecided"] = "holds"
    code = 0
    if any(worse[fault] for fault in rule.fail_on):
        outcome, code = "worse", FAILED
    elif undecided or unchecked:
        outcome, code = "undecided", INCONCLUSIVE if rule.undecided == "fail" or unchecked else 0
    return Outcome(
        outcome=outcome,
        exit_code=code,
        base=versions[0],
        new=versions[1],
        implementations=tuple(implementations),
        compared=compared,
        kept=tuple(kept),
        rule=rule,
        worse=worse,
        mended=sum(one.verdict == "mended" for one in changes),
        undecided=undecided,
        untimed=untimed,
        unchecked=tuple(unchecked),
        changes=tuple(_make_fact(one) for one in changes if one.verdict != "same" or one.aspect == "time"),
        moments=2 if environments else 1,
        environments=tuple(environments),
    )


def _make_fact(change: Change) -> ChangeFact:
    names = ("implementation", "case", "aspect", "verdict", "base", "new", "factor")
    return ChangeFact(**{name: getattr(change, name) for name in names})
