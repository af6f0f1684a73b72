"""The price of invariance: the time of each implementation, divided by that of the fastest one."""

from collections.abc import Iterable
from dataclasses import dataclass

from attnbench.analysis.stats import Estimate, estimate_clean_time, ratio
from attnbench.records.facts import Reason
from attnbench.records.types import PERF, Result

__all__ = ["Price", "compare_prices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Time of one implementation on one case."""

    implementation: str
    case: str
    # Nanoseconds of a call, and its time divided by that of the fastest implementation; None if it was not timed, for
    # the reason ``untimed``.
    time_ns: Estimate | None
    ratio: Estimate | None
    fastest: str
    untimed: Reason | None


def compare_prices(results: Iterable[Result]) -> list[Price]:
    """Return the price of each implementation on each timed case, the fastest first; its calls were interleaved."""
    by_case: dict[str, list[Result]] = {}
    for result in results:
        if result.suite == PERF:
            by_case.setdefault(result.case, []).append(result)
    return [price for case, own in by_case.items() for price in _compare(case, own)]


def _compare(case: str, results: list[Result]) -> list[Price]:
    times = {one.implementation: estimate_clean_time(one.timing) for one in results if one.timing}
    known = {name: time for name, time in times.items() if time is not None}
    if not known:
        return []
    fastest = min(known, key=lambda name: known[name].value)
    timings = {one.implementation: one.timing for one in results if one.timing}
    base = timings[fastest]
    prices = [
        Price(
            implementation=one.implementation,
            case=case,
            time_ns=known.get(one.implementation),
            ratio=ratio(one.timing.samples_ns, base.samples_ns) if one.timing else None,
            fastest=fastest,
            untimed=one.untimed,
        )
        for one in results
    ]
    return sorted(prices, key=lambda price: price.time_ns.value if price.time_ns else float("inf"))
