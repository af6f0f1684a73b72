"""Data frames from results: one row per timing, memory measurement, finding or call that was not timed."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import pandas as pd

from attnbench.analysis.left_out import LeftOut
from attnbench.analysis.sighting import see_ratio
from attnbench.analysis.speed_verdict import EFFECT, Baseline, SpeedVerdict, State
from attnbench.analysis.stats import (
    CleanCalls,
    choose_measure,
    count_throttled_calls,
    estimate_time,
    median_of_processes,
    select_samples,
)
from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.plugins.registry import find_operator_baseline
from attnbench.records.compact_reading import load_samples
from attnbench.records.types import PERF, Ceiling, Result, Timing, find_pass
from attnbench.report.kernel_paths import find_way
from attnbench.report.spelled import spell_out_in
from attnbench.words.findings import describe_finding, describe_warning

__all__ = [
    "INCONCLUSIVE",
    "Tables",
    "chapter_of",
    "find_reference",
    "list_rows",
    "select_pending",
    "select_undecided",
    "tabulate",
    "tabulate_ceilings",
    "tabulate_findings",
    "tabulate_kernels",
    "tabulate_left_out",
    "tabulate_memory",
    "tabulate_timings",
    "tabulate_untimed",
]

INCONCLUSIVE: State = "inconclusive"
# The reason of a planned call that was not reached before its run ended.
ENDED = "the run ended before this call was timed"
TIMINGS = (
    "implementation", "case", "pass", "length", "dtype", "device", "median_ns", "low_ns", "high_ns", "level",
    "processes", "samples", "threads", "method", "measure", "end_to_end_ns", "graph_ns", "throttled", "clock",
    "state", "ratio", "ratio_low", "ratio_high", "ratio_level", "counted", "of", "reason", "null_state", "null_ratio",
    "build_ns", "first_call_ns", "flop", "bytes", "gflop_per_s", "gbyte_per_s", "share", "bound", "run", "reference_ns",
    "values", "judged", "calls", "seen_ratio",
)  # fmt: skip
MEMORY = (
    "implementation", "case", "pass", "length", "dtype", "device", "peak_bytes", "workspace_bytes", "saved_bytes",
    "physical_bytes", "outside_bytes", "reserved_bytes", "threads", "method", "run",
)  # fmt: skip
KERNELS = ("implementation", "case", "pass", "length", "dtype", "device", "way", "kernels", "run")
CEILINGS = ("run", "device", "dtype", "threads", "gflop_per_s", "gbyte_per_s")
# Fields of a ``Memory`` record that may be None.
OPTIONAL_BYTES = ("workspace_bytes", "saved_bytes", "physical_bytes", "outside_bytes", "reserved_bytes")
FINDINGS = (
    "implementation", "case", "check", "chapter", "status", "reason", "measured", "allowed", "warnings", "run",
)  # fmt: skip
# Columns of ``FINDINGS`` that are fields of a result, and of a finding.
OF_RESULT = ("implementation", "case", "run")
OF_FINDING = ("check", "status", "reason", "measured", "allowed", "warnings")
# If a ratio differs from the quotient of its two times by more than this share, the report says why, even if the
# quotient is within the interval of the ratio: a reader who divides
# the two times sees more than the rounding of their digits.
NOTICED = 0.02
# Number of rows that are put into a table at a time.
ROWS = 20_000
LEFT_OUT = ("kind", "run", "implementation", "case", "reason")
UNTIMED = ("implementation", "length", "pass", "reason", "case", "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of the same results, each made once; rows are in the order of the results."""

    findings: pd.DataFrame
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame


def tabulate(results: Sequence[Result], reached: Iterable[Ceiling] = (), *, compact: bool = False) -> Tables:
    """Make all tables of these results; ``reached`` are the ceilings of their runs.

    ``compact``: leave out the findings that passed without a warning, of which a large report has millions.
    """
    return Tables(
        findings=tabulate_findings(results, every=not compact),
        timings=tabulate_timings(results, reached),
        memory=tabulate_memory(results),
        untimed=tabulate_untimed(results),
        kernels=tabulate_kernels(results),
    )


# Whether a result has a row in each table of measurements.
HAS_ROW: dict[str, Callable[[Result], bool]] = {
    "timings": lambda result: result.timing is not None,
    "memory": lambda result: result.memory is not None,
    "untimed": lambda result: result.suite == PERF and result.timing is None,
    "kernels": lambda result: bool(result.kernels),
}


def tabulate_timings(results: Sequence[Result], reached: Iterable[Ceiling] = ()) -> pd.DataFrame:
    """Tabulate the times of calls, with the speed verdict if they were interleaved with the reference.

    ``reached`` are the ceilings of the runs: the highest rates measured. The column ``share`` compares a call with the
    ceiling of the same run, device, dtype and number of threads.
    """
    tops = {(c.run, c.device, c.dtype, c.threads): c for c in reached}
    # By run and case, the places of the timings in the table. The samples of one case are held at a time.
    groups: dict[tuple[str, str], list[tuple[int, Result]]] = {}
    for place, result in enumerate(result for result in results if result.timing):
        groups.setdefault((result.run, result.case), []).append((place, result))
    # Rows take ten times as much memory as a table of them, so they are put into tables part by part.
    rows: list[dict[str, Any]] = []
    parts: list[pd.DataFrame] = []
    places: list[int] = []
    for group in groups.values():
        rows += _make_timing_rows([result for _, result in group], tops)
        places += (place for place, _ in group)
        if len(rows) >= ROWS:
            parts.append(pd.DataFrame(rows, columns=list(TIMINGS)))
            rows = []
    parts += [pd.DataFrame(rows, columns=list(TIMINGS))] * bool(rows or not parts)
    order = sorted(range(len(places)), key=places.__getitem__)
    whole = pd.concat(parts) if len(parts) > 1 else parts[0]
    return whole.iloc[order].reset_index(drop=True)


def _make_timing_rows(
    results: Sequence[Result], tops: Mapping[tuple[str, str, str, int], Ceiling]
) -> list[dict[str, Any]]:
    """Return the rows of the timings of one run on one case."""
    timings = [_load(result.timing) for result in results if result.timing]
    reference = find_reference(results[0].case)
    own = [timing for result, timing in zip(results, timings, strict=True) if result.implementation == reference]
    baseline = Baseline(own[-1]) if own else None
    rows = [_make_timing_row(*pair, baseline, tops) for pair in zip(results, timings, strict=True)]
    _add_reference_times(rows, timings, baseline)
    return rows


def _load(timing: Timing) -> Timing:
    """Return a timing with its samples in memory; texts that were read from the file again are spelled out."""
    return spell_out_in(load_samples(timing))


def list_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table, each by the names of its columns, as ``to_dict`` does in five times the time."""
    names = [str(name) for name in frame.columns]
    columns = [frame[name].tolist() for name in names]
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def select_undecided(timings: pd.DataFrame) -> pd.DataFrame:
    """Return the timings whose speed verdict is ``unknown`` or ``inconclusive``, with the verdict before the reason.

    The reference, which is compared with its own copy only, is left out.
    """
    pairs = zip(timings["implementation"], timings["case"], strict=True)
    compared = pd.Series([name != find_reference(case) for name, case in pairs], index=timings.index, dtype=bool)
    frame = timings[(timings["reason"] != "") & compared]
    return frame.assign(reason=[f"{state}: {why}" for state, why in zip(frame["state"], frame["reason"], strict=True)])


def tabulate_memory(results: Sequence[Result]) -> pd.DataFrame:
    """Tabulate the memory, in bytes, of every call whose memory was measured."""
    rows = [
        _describe_case(r)
        | {
            "peak_bytes": r.memory.peak_bytes,
            "threads": r.memory.threads,
            "method": r.memory.method,
        }
        | {name: getattr(r.memory, name) for name in OPTIONAL_BYTES}
        for r in results
        if r.memory is not None
    ]
    frame = pd.DataFrame(rows, columns=list(MEMORY))
    return frame.astype(dict.fromkeys(OPTIONAL_BYTES, "Int64"))


def tabulate_kernels(results: Sequence[Result]) -> pd.DataFrame:
    """Tabulate the torch operators and device kernels of every profiled call, and the code path that they indicate."""
    rows = [
        _describe_case(r) | {"way": find_way(r.kernels), "kernels": "; ".join(r.kernels)} for r in results if r.kernels
    ]
    return pd.DataFrame(rows, columns=list(KERNELS))


def tabulate_ceilings(reached: Iterable[Ceiling]) -> pd.DataFrame:
    """Tabulate the rates that each run reached on one matrix product and on one copy."""
    rows = [
        {
            "run": c.run,
            "device": c.device,
            "dtype": c.dtype,
            "threads": c.threads,
            "gflop_per_s": c.flop_per_s / 1e9,
            "gbyte_per_s": c.bytes_per_s / 1e9,
        }
        for c in reached
    ]
    return pd.DataFrame(rows, columns=list(CEILINGS))


def tabulate_findings(results: Sequence[Result], *, every: bool = True) -> pd.DataFrame:
    """Tabulate the findings, one per row; without ``every``, those that passed without a warning are left out."""
    # The table is made from columns, not from a mapping for each row, because there may be a million findings.
    listed = [[f for f in r.findings if every or f.status != "passed" or f.warnings] for r in results]
    found = list(chain.from_iterable(listed))
    columns = {name: list(map(attrgetter(name), found)) for name in OF_FINDING}
    for name in OF_RESULT:
        values = map(attrgetter(name), results)
        columns[name] = list(chain.from_iterable(map(repeat, values, map(len, listed))))
    chapters = {check: chapter_of(check) for check in set(columns["check"])}
    columns["chapter"] = [chapters[check] for check in columns["check"]]
    columns["warnings"] = ["\n".join(map(describe_warning, warnings)) for warnings in columns["warnings"]]
    columns["reason"] = list(map(describe_finding, found))
    return pd.DataFrame(columns, columns=list(FINDINGS))


def tabulate_left_out(left_out: Iterable[LeftOut]) -> pd.DataFrame:
    """Tabulate what is left out of all other tables, and why."""
    return pd.DataFrame([asdict(one) for one in left_out], columns=list(LEFT_OUT))


def tabulate_untimed(results: Sequence[Result]) -> pd.DataFrame:
    """Tabulate the calls that were planned for timing but not timed, with the reason."""
    rows = [
        {
            "implementation": r.implementation,
            "length": CaseId.parse(r.case).length,
            "pass": find_pass(r.case),
            "reason": r.untimed or ENDED,
            "case": r.case,
            "run": r.run,
        }
        for r in results
        if r.suite == PERF and r.timing is None
    ]
    return pd.DataFrame(rows, columns=list(UNTIMED))


def select_pending(untimed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of planned calls that were not reached before their run ended."""
    return untimed[untimed["reason"] == ENDED]


def find_reference(case: str) -> str:
    """Return the name of the reference implementation of a case's operator."""
    return find_operator_baseline(CaseId.parse(case).operator)


def chapter_of(check: str) -> str:
    """Return the chapter of a check, or "other" for a check that this version does not know."""
    known = read_checks().get(check)
    return known.chapter if known else "other"


def _describe_case(result: Result) -> dict[str, Any]:
    return {
        "implementation": result.implementation,
        "case": result.case,
        **_describe_id(result.case),
        "run": result.run,
    }


@lru_cache(maxsize=1 << 16)
def _describe_id(text: str) -> Mapping[str, Any]:
    case = CaseId.parse(text)
    return {"pass": find_pass(text), "length": case.length, "dtype": case.dtype, "device": case.device}


def _make_timing_row(
    result: Result, timing: Timing, baseline: Baseline | None, tops: Mapping[tuple[str, str, str, int], Ceiling]
) -> dict[str, Any]:
    compared = baseline if baseline and _is_compared(result, timing, baseline) else None
    # A time and its ratio use the same measure. The measure is wall time if the reference has no device time.
    calls = compared.prepare(timing) if compared else CleanCalls(timing, choose_measure(timing))
    found = compared.decide(calls) if compared else None
    measure, time = calls.measure, estimate_time(calls)
    place = _describe_case(result)
    top = tops.get((result.run, place["device"], place["dtype"], timing.threads))
    return (
        place
        | {
            "median_ns": time.value,
            "low_ns": time.low,
            "high_ns": time.high,
            "level": time.level,
            "processes": time.processes,
            "samples": _count_samples(select_samples(timing, measure)),
            "threads": timing.threads,
            "method": timing.method,
            "measure": measure,
            "end_to_end_ns": estimate_time(CleanCalls(timing, "wall")).value if measure == "device" else math.nan,
            "graph_ns": median_of_processes(timing.graph_ns).value if any(timing.graph_ns) else math.nan,
            "throttled": count_throttled_calls(timing),
            "clock": timing.clock,
            "build_ns": _find_median(timing.build_ns),
            "first_call_ns": _find_median(timing.first_call_ns),
            "values": timing.values,
            "judged": timing.judged,
            "calls": calls.basis,
            "seen_ratio": _see(timing, compared, found),
        }
        | _make_verdict_columns(found, decides=result.implementation != find_reference(result.case))
        | _compute_rates(result, time.value, top)
    )


def _see(timing: Timing, baseline: Baseline | None, found: SpeedVerdict | None) -> float:
    """Return the ratio of the undisturbed cycles where too few are undisturbed for the column ``ratio``."""
    if baseline is None or found is None or found.ratio is not None:
        return math.nan
    seen = see_ratio(timing, baseline.timing)
    return seen.value if seen else math.nan


def _add_reference_times(rows: Sequence[dict[str, Any]], timings: Sequence[Timing], baseline: Baseline | None) -> None:
    """Fill the column ``reference_ns`` where a ratio is not the quotient of its two times.

    ``timings`` are those of the rows, and ``baseline`` is that of their run and case.

    A ratio is a median over cycles. Its two times are medians over all calls, also of cycles that called only one of
    the two implementations. ``reference_ns`` is the time of the reference in the calls of the ratio. It is NaN where
    the quotient of the times is near the ratio.
    """
    times = {(row["run"], row["implementation"], row["case"]): row for row in rows}
    for row, own in zip(rows, timings, strict=True):
        reference = (row["run"], find_reference(row["case"]), row["case"])
        row["reference_ns"] = math.nan
        if math.isnan(row["ratio"]) or reference not in times or row["measure"] != times[reference]["measure"]:
            continue
        quotient = row["median_ns"] / times[reference]["median_ns"]
        outside = not row["ratio_low"] <= quotient <= row["ratio_high"]
        if abs(quotient / row["ratio"] - 1) > (EFFECT if outside else NOTICED):
            calls = CleanCalls(own, row["measure"])
            row["reference_ns"] = (baseline and baseline.find_time(calls)) or math.nan


def _is_compared(result: Result, timing: Timing, baseline: Baseline) -> bool:
    """Whether a timing is compared with the reference: their calls were interleaved in the same processes."""
    if len(baseline.timing.samples_ns) != len(timing.samples_ns):
        return False
    return find_reference(result.case) in (result.implementation, *timing.interleaved_with)


def _make_verdict_columns(found: SpeedVerdict | None, *, decides: bool) -> dict[str, Any]:
    """Return the columns of a speed verdict: ratio, state, reason and A/A control (the reference against its copy).

    ``decides`` is False for the reference, which would be compared with itself. State and reason are then empty, unless
    the state is ``inconclusive``.
    """
    ratio = found.ratio if found else None
    control = found.control if found else None
    reported = found if found and (decides or found.state == "inconclusive") else None
    return {
        "state": reported.state if reported else "",
        "ratio": ratio.value if ratio else math.nan,
        "ratio_low": ratio.low if ratio else math.nan,
        "ratio_high": ratio.high if ratio else math.nan,
        "ratio_level": ratio.level if ratio else math.nan,
        "counted": found.counted if found else math.nan,
        "of": found.of if found else math.nan,
        "reason": reported.reason if reported else "",
        "null_state": control.state if control else "",
        "null_ratio": control.ratio.value if control and control.ratio else math.nan,
    }


def _compute_rates(result: Result, time_ns: float, top: Ceiling | None) -> dict[str, Any]:
    """Return the columns of rates, and the columns ``share`` and ``bound``.

    A rate is the number of operations or of bytes of a call, divided by the call's time.

    The ceilings of the machine give two shortest possible times: one for the operations, and one for the bytes.
    ``share`` is the longer of these two times, divided by the measured time. ``bound`` names the longer of the two:
    ``product`` (operations) or ``copy`` (bytes).
    """
    # ``flop`` is 0 for an operator that does not count its operations.
    flop, moved = result.flop or None, result.bytes
    least_ns = {}
    if top is not None and flop is not None:
        least_ns["product"] = flop / top.flop_per_s * 1e9
    if top is not None and moved is not None:
        least_ns["copy"] = moved / top.bytes_per_s * 1e9
    bound = max(least_ns, key=lambda name: least_ns[name], default="")
    return {
        "flop": flop,
        "bytes": moved,
        "gflop_per_s": math.nan if flop is None else flop / time_ns,
        "gbyte_per_s": math.nan if moved is None else moved / time_ns,
        "share": least_ns[bound] / time_ns if bound else math.nan,
        "bound": bound,
    }


def _find_median(values_ns: Sequence[int]) -> float:
    return float(statistics.median(values_ns)) if values_ns else math.nan


def _count_samples(samples_ns: Iterable[Sequence[int]]) -> int:
    return sum(len(process) for process in samples_ns)
