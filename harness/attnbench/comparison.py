"""What changed between two stored runs.

Two runs were made at two moments, so their times are never compared with one another: each run has its own ratio to the
reference, taken in turns with it, and those ratios are compared. Bytes are exact and compared as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from attnbench.records import FAILURES, Result
from attnbench.registry import baseline
from attnbench.results import StoredRun, merged
from attnbench.stats import Estimate, ratio

__all__ = ["WORSE", "Change", "Verdict", "changes"]

Verdict = Literal["wrong", "mended", "bigger", "smaller", "slower", "faster", "same", "unknown", "gone"]
# Verdicts that make a comparison fail.
WORSE: frozenset[Verdict] = frozenset({"wrong", "bigger", "slower", "gone"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one aspect of one implementation on one case came to."""

    implementation: str
    case: str
    # A check, "peak_bytes", "saved_bytes" or "time".
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
                told = "the new run has no result"
                yield Change(implementation=name, case=case, aspect="result", verdict="gone", told=told)
            continue
        yield from _findings(old, now)
        if same_machine:
            yield from _memory(old, now)
            yield from _time(old, now, before, after, threshold)


def _by_key(stored: StoredRun) -> dict[tuple[str, str], Result]:
    return {(result.implementation, result.case): result for result in merged([stored])}


def _findings(old: Result, now: Result) -> Iterator[Change]:
    was = {finding.check: finding for finding in old.findings}
    for finding in now.findings:
        if finding.check not in was:
            continue
        failed_before, fails = was[finding.check].status in FAILURES, finding.status in FAILURES
        if failed_before != fails:
            yield Change(
                implementation=now.implementation,
                case=now.case,
                aspect=finding.check,
                verdict="wrong" if fails else "mended",
                told=f"{was[finding.check].status} → {finding.status}" + (f": {finding.reason}" if fails else ""),
            )


def _memory(old: Result, now: Result) -> Iterator[Change]:
    if old.memory is None or now.memory is None or old.memory.threads != now.memory.threads:
        return
    for aspect in ("peak_bytes", "saved_bytes"):
        was, is_now = getattr(old.memory, aspect), getattr(now.memory, aspect)
        if was is None or is_now is None:
            continue
        verdict: Verdict = "same" if was == is_now else "bigger" if is_now > was else "smaller"
        told = f"{was} → {is_now} bytes"
        yield Change(implementation=now.implementation, case=now.case, aspect=aspect, verdict=verdict, told=told)


def _time(
    old: Result,
    now: Result,
    before: dict[tuple[str, str], Result],
    after: dict[tuple[str, str], Result],
    threshold: float,
) -> Iterator[Change]:
    was, is_now = _to_reference(old, before), _to_reference(now, after)
    if was is None or is_now is None:
        return
    told = (
        f"{was.value:.3f} [{was.low:.3f}, {was.high:.3f}] → {is_now.value:.3f} [{is_now.low:.3f}, {is_now.high:.3f}] "
        "× the reference's time"
    )
    verdict = _verdict(was, is_now, threshold)
    yield Change(implementation=now.implementation, case=now.case, aspect="time", verdict=verdict, told=told)


def _verdict(was: Estimate, is_now: Estimate, threshold: float) -> Verdict:
    """Slower or faster where the intervals lie apart by more than the threshold, same where they cannot."""
    least, most = is_now.low / was.high, is_now.high / was.low
    if least > 1 + threshold:
        return "slower"
    if most < 1 - threshold:
        return "faster"
    return "same" if least > 1 - threshold and most < 1 + threshold else "unknown"


def _to_reference(result: Result, run: dict[tuple[str, str], Result]) -> Estimate | None:
    """Ratio to the reference, taken in turns with it in the same run."""
    name = baseline(result.case)
    reference = run.get((name, result.case))
    if name == result.implementation or result.timing is None or reference is None or reference.timing is None:
        return None
    return ratio(result.timing.samples_ns, reference.timing.samples_ns)
