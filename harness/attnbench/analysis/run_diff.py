"""What changed between two stored runs, or between two implementations that took turns in one.

Two runs were made at two moments, so their times are never compared with one another: each run has its own ratio to the
reference, taken in turns with it, and those ratios are compared. Where both sides took turns with one another, their
contest is the judge. Bytes, flop and kernel calls are exact and compared as they are: one more is one more.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attnbench.analysis.speed_verdict import SpeedVerdict, judge_speed
from attnbench.analysis.stats import Estimate, ratio
from attnbench.plugins.registry import baseline
from attnbench.records.run_file import StoredRun, merged
from attnbench.records.types import FAILURES, Result

__all__ = ["UNDECIDED", "WORSE", "Change", "Verdict", "changes", "kernel_calls", "turns_taken"]

Verdict = Literal[
    "wrong", "mended", "bigger", "smaller", "other", "slower", "faster", "same", "unknown", "inconclusive", "gone"
]
# Verdicts that make a comparison fail.
WORSE: frozenset[Verdict] = frozenset({"wrong", "bigger", "slower", "gone"})
# Verdicts that say that nothing can be said.
UNDECIDED: frozenset[Verdict] = frozenset({"unknown", "inconclusive"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one aspect of one implementation on one case came to."""

    implementation: str
    case: str
    # A check, "peak_bytes", "saved_bytes", "workspace_bytes", "flop", "kernel_calls", "time" or "result".
    aspect: str
    verdict: Verdict
    told: str


def changes(base: StoredRun, new: StoredRun, *, threshold: float) -> Iterator[Change]:
    """Changes of every implementation and case of the base run; what stayed the same too, where it was measured.

    ``threshold`` is the relative change of time that counts.
    """
    before, after = _by_key(base), _by_key(new)
    same_machine = base.run.machine.name == new.run.machine.name
    for (name, case), old in before.items():
        now = after.get((name, case))
        if now is None:
            if name in new.run.implementations and base.run.suite_digest == new.run.suite_digest:
                yield _change(old, "result", "gone", "the new run has no result")
            continue
        yield from _findings(old, now)
        if same_machine:
            yield from _counters(old, now)
            yield from _ratios(old, now, before, after, threshold)


def turns_taken(results: Sequence[Result], *, base: str, new: str) -> Iterator[Change]:
    """Changes from one implementation to another on every case of one run, in which they took turns.

    ``base`` and ``new`` are names as results carry them. Each case has its verdict on time, if only that there is none.
    """
    before = {result.case: result for result in results if result.implementation == base}
    for now in results:
        if now.implementation == new and now.case in before:
            old = before[now.case]
            yield from _findings(old, now)
            yield from _counters(old, now)
            yield _time(old, now)


def kernel_calls(kernels: Sequence[str]) -> Counter[str]:
    """Number of calls by the name of the kernel; a stored name ends in `` ×3`` where there were three."""
    calls: Counter[str] = Counter()
    for stored in kernels:
        name, times, number = stored.rpartition(" ×")
        several = bool(times) and number.isdecimal()
        calls[name if several else stored] += int(number) if several else 1
    return calls


def _by_key(stored: StoredRun) -> dict[tuple[str, str], Result]:
    return {(result.implementation, result.case): result for result in merged([stored])}


def _change(now: Result, aspect: str, verdict: Verdict, told: str) -> Change:
    return Change(implementation=now.implementation, case=now.case, aspect=aspect, verdict=verdict, told=told)


def _findings(old: Result, now: Result) -> Iterator[Change]:
    was = {finding.check: finding for finding in old.findings}
    for finding in now.findings:
        if finding.check not in was:
            continue
        failed_before, fails = was[finding.check].status in FAILURES, finding.status in FAILURES
        if failed_before != fails:
            told = f"{was[finding.check].status} → {finding.status}" + (f": {finding.reason}" if fails else "")
            yield _change(now, finding.check, "wrong" if fails else "mended", told)


def _counters(old: Result, now: Result) -> Iterator[Change]:
    """Exact numbers that both sides have, in the same circumstances."""
    if old.memory is not None and now.memory is not None and old.memory.threads == now.memory.threads:
        for aspect in ("peak_bytes", "saved_bytes", "workspace_bytes"):
            yield from _counter(now, aspect, getattr(old.memory, aspect), getattr(now.memory, aspect), "bytes")
        if old.kernels and now.kernels:
            yield _kernels(old, now)
    yield from _counter(now, "flop", old.flop, now.flop, "flop")


def _counter(now: Result, aspect: str, was: int | None, is_now: int | None, unit: str) -> Iterator[Change]:
    if was is not None and is_now is not None:
        yield _change(now, aspect, _size(was, is_now), f"{was} → {is_now} {unit}")


def _size(was: int, is_now: int) -> Verdict:
    return "same" if was == is_now else "bigger" if is_now > was else "smaller"


def _kernels(old: Result, now: Result) -> Change:
    """Calls in all, and those kernels of which there are more or fewer; as many of others are ``other``."""
    was, are = kernel_calls(old.kernels), kernel_calls(now.kernels)
    told = f"{was.total()} → {are.total()} calls"
    if was == are:
        return _change(now, "kernel_calls", "same", told)
    different = [f"{name} {was[name]} → {are[name]}" for name in sorted(was | are) if was[name] != are[name]]
    verdict = _size(was.total(), are.total())
    return _change(now, "kernel_calls", "other" if verdict == "same" else verdict, f"{told}: {', '.join(different)}")


def _time(old: Result, now: Result) -> Change:
    """Contest of two that took turns."""
    if old.timing is None or now.timing is None:
        return _untimed(old, now)
    found = judge_speed(now.timing, old.timing)
    return _change(now, "time", found.state, _told(found))


def _untimed(old: Result, now: Result) -> Change:
    """Why there is no contest: the new side is gone where the base took its turns."""
    missing = [result for result in (old, now) if result.timing is None]
    told = "; ".join(f"{one.implementation} was not timed: {one.untimed or 'no reason was stored'}" for one in missing)
    return _change(now, "time", "inconclusive" if old.timing is None else "gone", told)


def _told(found: SpeedVerdict) -> str:
    measured = f"{_interval(found.ratio)} × the base's time, " if found.ratio else ""
    reason = f": {found.reason}" if found.reason else ""
    return f"{measured}{found.counted} of {found.of} processes count{reason}"


def _interval(found: Estimate) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _ratios(
    old: Result,
    now: Result,
    before: Mapping[tuple[str, str], Result],
    after: Mapping[tuple[str, str], Result],
    threshold: float,
) -> Iterator[Change]:
    """The ratio to the reference, then and now."""
    was, is_now = _to_reference(old, before), _to_reference(now, after)
    if was is None or is_now is None:
        return
    disturbed = [f"the {run} run: {one}" for run, one in (("base", was), ("new", is_now)) if isinstance(one, str)]
    if isinstance(was, str) or isinstance(is_now, str):
        yield _change(now, "time", "inconclusive", "; ".join(disturbed))
        return
    told = f"{_interval(was)} → {_interval(is_now)} × the reference's time"
    yield _change(now, "time", _moved(was, is_now, threshold), told)


def _moved(was: Estimate, is_now: Estimate, threshold: float) -> Verdict:
    """Slower or faster where the intervals lie apart by more than the threshold, same where they cannot."""
    least, most = is_now.low / was.high, is_now.high / was.low
    if least > 1 + threshold:
        return "slower"
    if most < 1 - threshold:
        return "faster"
    return "same" if least > 1 - threshold and most < 1 + threshold else "unknown"


def _to_reference(result: Result, run: Mapping[tuple[str, str], Result]) -> Estimate | str | None:
    """Ratio to the reference, taken in turns with it in the same run; or, in words, what makes it inconclusive.

    A run whose reference has no twin does not say whether it was disturbed: all its calls are taken as they are.
    """
    name = baseline(result.case)
    reference = run.get((name, result.case))
    if name == result.implementation or result.timing is None or reference is None or reference.timing is None:
        return None
    if reference.timing.twin is None:
        return ratio(result.timing.samples_ns, reference.timing.samples_ns)
    found = judge_speed(result.timing, reference.timing)
    return found.reason if found.state == "inconclusive" or found.ratio is None else found.ratio
