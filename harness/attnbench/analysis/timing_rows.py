"""Typed rows of timings: for each timed call its time, its speed verdict and its rates."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnbench.analysis.pairs import PairBounds, bound_pairs
from attnbench.analysis.rough_ratio import estimate_rough_ratio
from attnbench.analysis.speed_verdict import EFFECT, Baseline, Mark, NoVerdict, SpeedVerdict, State
from attnbench.analysis.stats import (
    Basis,
    CleanCalls,
    Estimate,
    Measure,
    choose_measure,
    count_throttled_calls,
    estimate_time,
    median_of_processes,
    select_samples,
)
from attnbench.cases import CaseId
from attnbench.plugins.registry import find_operator_baseline
from attnbench.records.compact_reading import load_samples
from attnbench.records.types import Ceiling, Pass, Result, Timing, find_pass

__all__ = ["Bound", "Calls", "Rates", "TimingRow", "find_reference", "measure_calls"]

# Which of two shortest possible times is longer: that of the operations at the rate of a matrix product, or that of the
# bytes at the rate of a copy; empty without a ceiling.
Bound = Literal["product", "copy", ""]
# If a ratio differs from the quotient of its two times by more than this share, the row has the baseline's time in the
# calls of the ratio, even if the quotient is within the interval of the ratio: a reader who divides the two times sees
# more than the rounding of their digits.
NOTICED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a call, and how near they are to what the machine reached on a matrix product and on a copy."""

    # Numbers of operations and bytes of the call; None where the operator does not count them.
    flop: int | None
    bytes: int | None
    gflop_per_s: float | None
    gbyte_per_s: float | None
    # The shortest possible time of the operations or of the bytes, whichever is longer, divided by the measured time;
    # None without a ceiling. ``bound``: "product" or "copy", whichever is longer; empty without a ceiling.
    share: float | None
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingRow:
    """The time of one implementation on one case of one run. Unit of times: nanoseconds."""

    implementation: str
    case: str
    run: str
    # Which time it is, and from which calls.
    measure: Measure
    basis: Basis
    time: Estimate
    samples: int
    threads: int
    method: str
    # End-to-end time, where ``time`` is device time; else None.
    end_to_end_ns: float | None
    graph_ns: float | None
    # Number of samples that are left out because the device's clock changed or was throttled.
    throttled: int
    clock: str
    # The comparison with the reference; None if their calls were not interleaved. Of the reference itself it only says
    # whether its calls were disturbed.
    verdict: SpeedVerdict | None
    is_reference: bool
    # The ratio of the undisturbed cycles where these are too few for ``verdict.ratio``; it decides nothing.
    rough_ratio: float | None
    # Time of the reference in the calls of the ratio, where the ratio is not the quotient of the two times.
    reference_ns: float | None
    rates: Rates
    # Medians over processes of the times to build and of the first call; None where not measured.
    build_ns: float | None
    first_call_ns: float | None
    # "fresh" or "fixed" input values; empty in older runs. ``judged``: number of sampled calls that were judged.
    values: str
    judged: int

    @property
    def pass_(self) -> Pass:
        """The pass that was timed."""
        return find_pass(self.case)

    @property
    def ratio(self) -> Estimate | None:
        """Time divided by the reference's time."""
        return self.verdict.ratio if self.verdict else None

    @property
    def state(self) -> State | None:
        """The speed verdict; None for the reference unless its calls were disturbed, and if nothing was compared."""
        return self.verdict.state if self.verdict and self._has_verdict else None

    @property
    def reason(self) -> NoVerdict | None:
        """Why the state is no verdict."""
        return self.verdict.reason if self.verdict and self._has_verdict else None

    @property
    def mark(self) -> Mark | None:
        """What a table shows of the comparison; None for the reference, and if nothing was compared."""
        return self.verdict.mark if self.verdict and not self.is_reference else None

    @property
    def _has_verdict(self) -> bool:
        return self.verdict is not None and (not self.is_reference or self.verdict.state == "inconclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """All timed calls of some results."""

    # In the order of the results.
    rows: tuple[TimingRow, ...]
    # By run and case: the bounds of the implementations that may be what to use, over one another.
    bounds: Mapping[tuple[str, str], PairBounds]


def measure_calls(
    results: Sequence[Result], reached: Iterable[Ceiling] = (), *, may_choose: Callable[[Result], bool]
) -> Calls:
    """Return the rows and the bounds of the timings in these results; the samples of one case are held at a time.

    ``reached`` are the ceilings of the runs: a call is compared with the ceiling of the same run, device, dtype and
    number of threads. ``may_choose`` says whether a result's implementation may be what to use.
    """
    tops = {(one.run, one.device, one.dtype, one.threads): one for one in reached}
    groups: dict[tuple[str, str], list[tuple[int, Result]]] = {}
    for place, result in enumerate(result for result in results if result.timing):
        groups.setdefault((result.run, result.case), []).append((place, result))
    rows: dict[int, TimingRow] = {}
    bounds = {}
    for key, group in groups.items():
        own = [result for _, result in group]
        timings = [load_samples(result.timing) for result in own if result.timing]
        rows |= zip((place for place, _ in group), _make_case_rows(own, timings, tops), strict=True)
        by_name = {result.implementation: timing for result, timing in zip(own, timings, strict=True)}
        names = [result.implementation for result in own if may_choose(result)]
        bounds[key] = bound_pairs(by_name, find_reference(key[1]), names)
    return Calls(rows=tuple(rows[place] for place in sorted(rows)), bounds=bounds)


def find_reference(case: str) -> str:
    """Return the name of the reference implementation of a case's operator."""
    return find_operator_baseline(CaseId.parse(case).operator)


_Tops = Mapping[tuple[str, str, str, int], Ceiling]


def _make_case_rows(results: Sequence[Result], timings: Sequence[Timing], tops: _Tops) -> list[TimingRow]:
    """Return the rows of the timings of one run on one case."""
    reference = find_reference(results[0].case)
    own = [timing for result, timing in zip(results, timings, strict=True) if result.implementation == reference]
    baseline = Baseline(own[-1]) if own else None
    rows = [_make_row(*pair, baseline, tops) for pair in zip(results, timings, strict=True)]
    base = next((row for row in reversed(rows) if row.is_reference), None)
    if base is None or baseline is None:
        return rows
    return [_add_reference_time(row, timing, base, baseline) for row, timing in zip(rows, timings, strict=True)]


def _make_row(result: Result, timing: Timing, baseline: Baseline | None, tops: _Tops) -> TimingRow:
    compared = baseline if baseline and _is_compared(result, timing, baseline) else None
    # A time and its ratio use the same measure. The measure is wall time if the reference has no device time.
    calls = compared.prepare(timing) if compared else CleanCalls(timing, choose_measure(timing))
    verdict = compared.decide(calls) if compared else None
    measure, time = calls.measure, estimate_time(calls)
    case = CaseId.parse(result.case)
    return TimingRow(
        implementation=result.implementation,
        case=result.case,
        run=result.run,
        measure=measure,
        basis=calls.basis,
        time=time,
        samples=sum(map(len, select_samples(timing, measure))),
        threads=timing.threads,
        method=timing.method,
        end_to_end_ns=estimate_time(CleanCalls(timing, "wall")).value if measure == "device" else None,
        graph_ns=median_of_processes(timing.graph_ns).value if any(timing.graph_ns) else None,
        throttled=count_throttled_calls(timing),
        clock=timing.clock,
        verdict=verdict,
        is_reference=result.implementation == find_reference(result.case),
        rough_ratio=_find_rough_ratio(timing, compared, verdict),
        reference_ns=None,
        rates=_compute_rates(result, time.value, tops.get((result.run, case.device, case.dtype, timing.threads))),
        build_ns=_find_median(timing.build_ns),
        first_call_ns=_find_median(timing.first_call_ns),
        values=timing.values,
        judged=timing.judged,
    )


def _find_rough_ratio(timing: Timing, baseline: Baseline | None, verdict: SpeedVerdict | None) -> float | None:
    """Return the ratio of the undisturbed cycles where too few are undisturbed for the verdict's ratio."""
    if baseline is None or verdict is None or verdict.ratio is not None:
        return None
    found = estimate_rough_ratio(timing, baseline.timing)
    return found.value if found else None


def _add_reference_time(row: TimingRow, own: Timing, base: TimingRow, baseline: Baseline) -> TimingRow:
    """Add the reference's time in the calls of the ratio, where the ratio is not the quotient of its two times.

    A ratio is a median over cycles. Its two times are medians over all calls, also of cycles that called only one of
    the two implementations.
    """
    if row.ratio is None or row.measure != base.measure:
        return row
    quotient = row.time.value / base.time.value
    outside = not row.ratio.low <= quotient <= row.ratio.high
    if abs(quotient / row.ratio.value - 1) <= (EFFECT if outside else NOTICED):
        return row
    return replace(row, reference_ns=baseline.find_time(CleanCalls(own, row.measure)) or None)


def _is_compared(result: Result, timing: Timing, baseline: Baseline) -> bool:
    """Whether a timing is compared with the reference: their calls were interleaved in the same processes."""
    if len(baseline.timing.samples_ns) != len(timing.samples_ns):
        return False
    return find_reference(result.case) in (result.implementation, *timing.interleaved_with)


def _compute_rates(result: Result, time_ns: float, top: Ceiling | None) -> Rates:
    # ``flop`` is 0 for an operator that does not count its operations.
    flop, moved = result.flop or None, result.bytes
    least_ns: dict[Bound, float] = {}
    if top is not None and flop is not None:
        least_ns["product"] = flop / top.flop_per_s * 1e9
    if top is not None and moved is not None:
        least_ns["copy"] = moved / top.bytes_per_s * 1e9
    bound: Bound = max(least_ns, key=lambda name: least_ns[name], default="")
    return Rates(
        flop=flop,
        bytes=moved,
        gflop_per_s=None if flop is None else flop / time_ns,
        gbyte_per_s=None if moved is None else moved / time_ns,
        share=least_ns[bound] / time_ns if bound else None,
        bound=bound,
    )


def _find_median(values_ns: Sequence[int]) -> float | None:
    return float(statistics.median(values_ns)) if values_ns else None
