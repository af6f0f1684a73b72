"""Changes between two stored runs, or between two implementations that were timed interleaved in one run.

Times of two runs are never compared directly, since the machine may have changed between the runs.
Each run timed an implementation interleaved with the reference. The ratio of the implementation's
time to the reference's time in one run is compared with this ratio in the other run. Two
implementations of one run are compared by their speed verdict. The numbers of bytes, flop and
kernel calls are exact: any difference is a change.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.speed_verdict import EFFECT, LEVEL, NoVerdict, SpeedVerdict, decide_speed
from attnbench.analysis.stats import Estimate, Interval, ratio
from attnbench.plugins.registry import find_baseline
from attnbench.records.facts import Reason
from attnbench.records.run_file import StoredRun, merge_runs
from attnbench.records.types import FAILURES, Finding, Result, Status, find_pass

__all__ = [
    "UNDECIDED",
    "WORSE",
    "Change",
    "ChangeFact",
    "ComparedRatios",
    "ComparedTimes",
    "Counted",
    "Gone",
    "NotTimed",
    "OtherCalls",
    "OtherProcesses",
    "RatioFault",
    "StatusChange",
    "UnusableRatios",
    "Verdict",
    "classify_factor",
    "compare_findings",
    "compare_implementations",
    "compare_moments",
    "compare_runs",
    "count_kernel_calls",
    "estimate_ratio_to_reference",
    "explain_untimed",
    "index_results",
]

Verdict = Literal[
    "wrong", "mended", "bigger", "smaller", "tolerated", "other", "slower", "faster", "same", "not_slower", "unknown",
    "inconclusive", "gone",
]  # fmt: skip
# Verdicts with which ``attnbench compare`` exits with status 1.
WORSE: frozenset[Verdict] = frozenset({"wrong", "bigger", "slower", "gone"})
# Verdicts that leave open whether anything changed.
UNDECIDED: frozenset[Verdict] = frozenset({"unknown", "inconclusive"})

# What follows the mark in the name of a kernel is no number of calls if it has this many digits or more.
LONGEST_COUNT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """A check fails on one side only; ``finding`` is that of the new side."""

    before: Status
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The new run has no result of the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Two exact numbers, of bytes, flop or kernel calls."""

    was: int
    is_now: int
    # Kernels whose number of calls changed: name, number before, number now.
    kernels: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTimes:
    """Two implementations that were timed interleaved, by their speed verdict."""

    found: SpeedVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTimed:
    """The implementations without a timing, each with the reason; None if no reason was stored."""

    missing: tuple[tuple[str, Reason | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCalls:
    """The calls of the two runs differ, so their times are not compared.

    ``parameters``: frozen in one run only. ``values``: all the same in one run only.
    """

    kind: Literal["parameters", "values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcesses:
    """An implementation was timed in other processes than the baseline, so it has no ratio."""

    baseline: str


RatioFault = NoVerdict | OtherProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusableRatios:
    """Why the ratio to the reference cannot be used, in each run in which it cannot."""

    base: RatioFault | None
    new: RatioFault | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRatios:
    """The ratios to the reference's time of two runs."""

    was: Estimate
    is_now: Estimate


ChangeFact = StatusChange | Gone | Counted | ComparedTimes | NotTimed | OtherCalls | UnusableRatios | ComparedRatios


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of one aspect of one implementation on one case."""

    implementation: str
    case: str
    # What changed: the name of a check, or "peak_bytes", "saved_bytes", "workspace_bytes", "flop",
    # "kernel_calls", "time" or "result".
    aspect: str
    verdict: Verdict
    # What is known of the change; ``words.changes`` says it in words.
    fact: ChangeFact
    # The two numbers that were compared: bytes, flop, calls, or the ratio to the reference's time. None where nothing
    # was measured, and for two implementations that were timed interleaved, which have only a ``factor``.
    base: Interval | None = None
    new: Interval | None = None
    # The new number divided by the base's; None where one of them is missing, or the base's is 0.
    factor: Interval | None = None


def compare_runs(base: StoredRun, new: StoredRun, *, threshold: float) -> Iterator[Change]:
    """Compare the results of the base run with those of the new run, by implementation and case.

    Counters (bytes, flop, kernel calls) and times are compared only if both runs used the same
    machine. If they did not change, they are included with the verdict ``same``. ``threshold`` is
    the relative change of time above which the verdict is slower or faster.
    """
    before, after = index_results(base), index_results(new)
    same_machine = base.run.machine.name == new.run.machine.name
    for (name, case), old in before.items():
        now = after.get((name, case))
        if now is None:
            # The supplementary cases follow from what an implementation declares, and may be others now.
            if not old.completes and name in new.run.implementations and base.run.suite_digest == new.run.suite_digest:
                yield _make_change(old, "result", "gone", Gone())
            continue
        yield from compare_findings(old, now)
        if same_machine:
            yield from compare_moments(old, now, before, after, threshold=threshold)


def compare_moments(
    old: Result,
    now: Result,
    before: Mapping[tuple[str, str], Result],
    after: Mapping[tuple[str, str], Result],
    *,
    threshold: float,
    level: float = LEVEL,
) -> Iterator[Change]:
    """Compare the counters and the time of two results of one machine, which were measured at two moments.

    ``before`` contains all results of the base run, ``after`` all results of the new run. ``level`` is that of
    ``decide_speed`` for the ratio of each run to the reference's time.
    """
    yield from _compare_counters(old, now)
    yield from _compare_ratios(old, now, before, after, threshold, level)


def compare_implementations(
    results: Sequence[Result], *, base: str, new: str, effect: float = EFFECT, level: float = LEVEL
) -> Iterator[Change]:
    """Compare two implementations that were timed interleaved, on every case of one run.

    ``base`` and ``new`` are names as stored in results. Every case with results of both implementations has a verdict
    on time, even if it was not timed. ``effect`` and ``level`` are those of ``decide_speed``.
    """
    before = {result.case: result for result in results if result.implementation == base}
    for now in results:
        if now.implementation == new and now.case in before:
            old = before[now.case]
            yield from compare_findings(old, now)
            yield from _compare_counters(old, now)
            yield _compare_times(old, now, effect, level)


def count_kernel_calls(kernels: Sequence[str]) -> Counter[str]:
    """Return the number of calls of each kernel.

    A name in ``kernels`` ends in `` ×3`` if the kernel was called three times.
    """
    calls: Counter[str] = Counter()
    for stored in kernels:
        name, times, number = stored.rpartition(" ×")
        # The name is from a run file, so what follows the mark may be any text.
        several = bool(times) and number.isdecimal() and len(number) < LONGEST_COUNT
        calls[name if several else stored] += int(number) if several else 1
    return calls


def index_results(stored: StoredRun) -> dict[tuple[str, str], Result]:
    """Return the joined results of a run by implementation and case."""
    return {(result.implementation, result.case): result for result in merge_runs([stored])}


def _make_change(
    now: Result,
    aspect: str,
    verdict: Verdict,
    fact: ChangeFact,
    *,
    base: Interval | None = None,
    new: Interval | None = None,
    factor: Interval | None = None,
) -> Change:
    return Change(
        implementation=now.implementation, case=now.case, aspect=aspect, verdict=verdict, fact=fact, base=base, new=new,
        factor=factor,
    )  # fmt: skip


def _make_exact_change(now: Result, aspect: str, verdict: Verdict, counted: Counted) -> Change:
    base, new, factor = (
        Interval(value=number, low=number, high=number) if number is not None else None
        for number in (counted.was, counted.is_now, counted.is_now / counted.was if counted.was else None)
    )
    return _make_change(now, aspect, verdict, counted, base=base, new=new, factor=factor)


def compare_findings(old: Result, now: Result) -> Iterator[Change]:
    """Yield a change for each check that fails on one side only, of two results on one case."""
    was = {finding.check: finding for finding in old.findings}
    for finding in now.findings:
        if finding.check not in was:
            continue
        failed_before, fails = was[finding.check].status in FAILURES, finding.status in FAILURES
        if failed_before != fails:
            change = StatusChange(before=was[finding.check].status, finding=finding)
            yield _make_change(now, finding.check, "wrong" if fails else "mended", change)


def _compare_counters(old: Result, now: Result) -> Iterator[Change]:
    """Compare the numbers of bytes, kernel calls and flop, if both results contain these numbers.

    Bytes and kernel calls are compared only if both results were measured with the same number of
    threads.
    """
    if old.memory is not None and now.memory is not None and old.memory.threads == now.memory.threads:
        for aspect in ("peak_bytes", "saved_bytes", "workspace_bytes"):
            yield from _compare_counter(now, aspect, getattr(old.memory, aspect), getattr(now.memory, aspect))
        if old.kernels and now.kernels:
            yield _compare_kernels(old, now)
    yield from _compare_counter(now, "flop", old.flop, now.flop)


def _compare_counter(now: Result, aspect: str, was: int | None, is_now: int | None) -> Iterator[Change]:
    if was is not None and is_now is not None:
        yield _make_exact_change(now, aspect, _classify_size(was, is_now), Counted(was=was, is_now=is_now))


def _classify_size(was: int, is_now: int) -> Verdict:
    return "same" if was == is_now else "bigger" if is_now > was else "smaller"


def _compare_kernels(old: Result, now: Result) -> Change:
    """Compare the total number of kernel calls, and name the kernels whose number of calls changed.

    The verdict is ``other`` if the total is unchanged, but the numbers of calls of single kernels changed.
    """
    was, are = count_kernel_calls(old.kernels), count_kernel_calls(now.kernels)
    different = tuple((name, was[name], are[name]) for name in sorted(was | are) if was[name] != are[name])
    verdict = _classify_size(was.total(), are.total())
    verdict = "other" if different and verdict == "same" else verdict
    counted = Counted(was=was.total(), is_now=are.total(), kernels=different)
    return _make_exact_change(now, "kernel_calls", verdict, counted)


def _compare_times(old: Result, now: Result, effect: float, level: float) -> Change:
    """Return the speed verdict on two implementations that were timed interleaved."""
    if old.timing is None or now.timing is None:
        return explain_untimed(old, now)
    found = decide_speed(now.timing, old.timing, effect=effect, level=level)
    return _make_change(now, "time", found.state, ComparedTimes(found=found), factor=found.ratio)


def explain_untimed(old: Result, now: Result) -> Change:
    """Explain why times were not compared: verdict ``gone`` if only the base was timed, else ``inconclusive``.

    If both were timed, it is the reference that was not.
    """
    missing = tuple((one.implementation, one.untimed) for one in (old, now) if one.timing is None)
    verdict: Verdict = "gone" if old.timing and not now.timing else "inconclusive"
    return _make_change(now, "time", verdict, NotTimed(missing=missing or ((find_baseline(now.case), None),)))


def _compare_ratios(
    old: Result,
    now: Result,
    before: Mapping[tuple[str, str], Result],
    after: Mapping[tuple[str, str], Result],
    threshold: float,
    level: float,
) -> Iterator[Change]:
    """Compare the ratio of an implementation's time to the reference's time between the two runs.

    ``before`` contains all results of the base run, ``after`` all results of the new run.
    """
    was, is_now = (estimate_ratio_to_reference(*own, level) for own in ((old, before), (now, after)))
    if was is None or is_now is None or old.timing is None or now.timing is None:
        return
    if old.timing.values != now.timing.values:
        yield _make_change(now, "time", "inconclusive", OtherCalls(kind="values"))
        return
    if old.timing.trainable != now.timing.trainable and find_pass(now.case) == "forward":
        yield _make_change(now, "time", "inconclusive", OtherCalls(kind="parameters"))
        return
    if not (isinstance(was, Estimate) and isinstance(is_now, Estimate)):
        base, new = (None if isinstance(one, Estimate) else one for one in (was, is_now))
        yield _make_change(now, "time", "inconclusive", UnusableRatios(base=base, new=new))
        return
    # The least and the largest change that the two intervals allow.
    factor = Interval(value=is_now.value / was.value, low=is_now.low / was.high, high=is_now.high / was.low)
    yield _make_change(
        now,
        "time",
        classify_factor(factor, threshold),
        ComparedRatios(was=was, is_now=is_now),
        base=was,
        new=is_now,
        factor=factor,
    )


def classify_factor(factor: Interval, threshold: float) -> Verdict:
    """Return the verdict on a ratio that is ``factor`` times the base's, with the interval of the factor.

    The verdict is slower or faster if the whole interval exceeds the threshold. It is same if no part of the interval
    exceeds the threshold. Otherwise it is unknown.
    """
    if factor.low > 1 + threshold:
        return "slower"
    if factor.high < 1 - threshold:
        return "faster"
    return "same" if factor.low > 1 - threshold and factor.high < 1 + threshold else "unknown"


def estimate_ratio_to_reference(
    result: Result, run: Mapping[tuple[str, str], Result], level: float = LEVEL
) -> Estimate | RatioFault | None:
    """Return the ratio of an implementation's time to the reference's, or the reason why the ratio is inconclusive.

    Return None for the reference itself, or if the implementation or the reference was not timed.
    Older runs have no A/A control. Their ratios use all calls, since no measurement shows whether
    other work disturbed these runs.
    """
    name = find_baseline(result.case)
    reference = run.get((name, result.case))
    if name == result.implementation or result.timing is None or reference is None or reference.timing is None:
        return None
    if len(reference.timing.samples_ns) != len(result.timing.samples_ns):
        return OtherProcesses(baseline=name)
    if reference.timing.twin is None:
        return ratio(result.timing.samples_ns, reference.timing.samples_ns)
    found = decide_speed(result.timing, reference.timing, level=level)
    return found.reason if found.state == "inconclusive" or found.ratio is None else found.ratio
