"""Frames from results: one row per timing, memory, finding or thing not timed."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from attnbench.analysis.speed_verdict import SpeedVerdict, judge_speed
from attnbench.analysis.stats import measure_of, median_of_processes, samples_of, throttled_calls, time_told
from attnbench.checks.catalogue import checks
from attnbench.plugins.registry import reference_of
from attnbench.records.types import PERF, Ceiling, Result, Timing, pass_of
from attnbench.report.ways import way

__all__ = [
    "ceilings",
    "findings",
    "kernels",
    "length_of",
    "matrix",
    "memory",
    "reference",
    "series_of",
    "timings",
    "undecided",
    "untimed",
]

TIMINGS = (
    "implementation", "case", "pass", "length", "dtype", "device", "median_ns", "low_ns", "high_ns", "level",
    "processes", "samples", "threads", "method", "measure", "end_to_end_ns", "graph_ns", "throttled", "clock",
    "state", "ratio", "ratio_low", "ratio_high", "ratio_level", "counted", "of", "reason", "null_state", "null_ratio",
    "build_ns", "first_call_ns", "flop", "bytes", "gflop_per_s", "gbyte_per_s", "share", "bound", "run",
)  # fmt: skip
MEMORY = (
    "implementation", "case", "pass", "length", "dtype", "device", "peak_bytes", "workspace_bytes", "saved_bytes",
    "physical_bytes", "outside_bytes", "reserved_bytes", "threads", "method", "run",
)  # fmt: skip
KERNELS = ("implementation", "case", "pass", "length", "dtype", "device", "way", "kernels", "run")
CEILINGS = ("run", "device", "dtype", "threads", "gflop_per_s", "gbyte_per_s")
# Bytes that a record may lack.
OPTIONAL_BYTES = ("workspace_bytes", "saved_bytes", "physical_bytes", "outside_bytes", "reserved_bytes")
FINDINGS = (
    "implementation", "case", "check", "chapter", "status", "reason", "measured", "allowed", "warnings", "run",
)  # fmt: skip
UNTIMED = ("implementation", "length", "pass", "reason", "case", "run")


def timings(results: Sequence[Result], reached: Iterable[Ceiling] = ()) -> pd.DataFrame:
    """Time of every call that was timed, with its contest against the reference where they took turns.

    ``reached`` are the ceilings of the runs; with that of its own run, dtype and threads a call has its share.
    """
    baselines = {(r.run, r.case): r.timing for r in results if r.implementation == reference(r.case) and r.timing}
    tops = {(c.run, c.device, c.dtype, c.threads): c for c in reached}
    rows = [_timing(r, r.timing, baselines.get((r.run, r.case)), tops) for r in results if r.timing]
    return pd.DataFrame(rows, columns=list(TIMINGS))


def undecided(results: Sequence[Result]) -> pd.DataFrame:
    """Calls whose contest against the reference came to no verdict, with its state and the reason."""
    frame = timings(results)
    frame = frame[frame["reason"] != ""]
    return frame.assign(reason=[f"{state}: {why}" for state, why in zip(frame["state"], frame["reason"], strict=True)])


def memory(results: Sequence[Result]) -> pd.DataFrame:
    """Bytes of every call whose memory was counted."""
    rows = [
        _place(r)
        | {
            "peak_bytes": r.memory.peak_bytes,
            "threads": r.memory.threads,
            "method": r.memory.method,
        }
        | {name: getattr(r.memory, name) for name in OPTIONAL_BYTES}
        for r in results
        if r.memory
    ]
    frame = pd.DataFrame(rows, columns=list(MEMORY))
    return frame.astype(dict.fromkeys(OPTIONAL_BYTES, "Int64"))


def kernels(results: Sequence[Result]) -> pd.DataFrame:
    """What ran in every call of which that is known, and the way that it tells."""
    rows = [_place(r) | {"way": way(r.kernels), "kernels": "; ".join(r.kernels)} for r in results if r.kernels]
    return pd.DataFrame(rows, columns=list(KERNELS))


def ceilings(reached: Iterable[Ceiling]) -> pd.DataFrame:
    """What each run reached on one matrix product and on one copy."""
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


def findings(results: Sequence[Result]) -> pd.DataFrame:
    """Every finding on a row of its own."""
    rows = [
        {
            "implementation": r.implementation,
            "case": r.case,
            "check": f.check,
            "chapter": chapter_of(f.check),
            "status": f.status,
            "reason": f.reason,
            "measured": f.measured,
            "allowed": f.allowed,
            "warnings": "\n".join(f.warnings),
            "run": r.run,
        }
        for r in results
        for f in r.findings
    ]
    return pd.DataFrame(rows, columns=list(FINDINGS))


def matrix(results: Sequence[Result]) -> dict[str, dict[str, Counter[str]]]:
    """Number of findings of each status, by implementation and check; checks in the order of the catalogue."""
    seen = {f.check for r in results for f in r.findings}
    order = [*(name for name in checks() if name in seen), *sorted(seen - checks().keys())]
    names = dict.fromkeys(r.implementation for r in results)
    cells: dict[str, dict[str, Counter[str]]] = {name: {check: Counter() for check in order} for name in names}
    for result in results:
        for finding in result.findings:
            cells[result.implementation][finding.check][finding.status] += 1
    return cells


def untimed(results: Sequence[Result]) -> pd.DataFrame:
    """What was to be timed and was not, with the reason."""
    rows = [
        {
            "implementation": r.implementation,
            "length": length_of(r.case),
            "pass": pass_of(r.case),
            "reason": r.untimed or "the run ended before it was timed",
            "case": r.case,
            "run": r.run,
        }
        for r in results
        if r.suite == PERF and r.timing is None
    ]
    return pd.DataFrame(rows, columns=list(UNTIMED))


def reference(case: str) -> str:
    """Implementation that is the reference of a case's operator: other times are told as ratios to its time."""
    return reference_of(case.partition("/")[0])


def length_of(case: str) -> int:
    """Length of a case: the larger of the sizes labelled L and S, so that of a decoding step it is that of its keys.

    0 where its operator has neither. A case id reads ``operator/sizes/…``, and sizes read ``B2.L128.S128``.
    """
    sizes = case.split("/")[1].split(".")
    return max((int(size[1:]) for size in sizes if re.fullmatch(r"[LS]\d+", size)), default=0)


def series_of(case: str) -> str:
    """What cases share that differ in nothing but length and pass: the id without the sizes L and S and the mode."""
    operator, sizes, *middle = case.rpartition("/")[0].split("/")
    kept = [size for size in sizes.split(".") if not re.fullmatch(r"[LS]\d+", size)]
    return "/".join((operator, ".".join(kept), *middle))


def chapter_of(check: str) -> str:
    """Chapter of a check, or "other" for one that this version does not know."""
    known = checks().get(check)
    return known.chapter if known else "other"


def _place(result: Result) -> dict[str, Any]:
    dtype, device = result.case.split("/")[-3:-1]
    return {
        "implementation": result.implementation,
        "case": result.case,
        "pass": pass_of(result.case),
        "length": length_of(result.case),
        "dtype": dtype,
        "device": device,
        "run": result.run,
    }


def _timing(
    result: Result, timing: Timing, baseline: Timing | None, tops: Mapping[tuple[str, str, str, int], Ceiling]
) -> Mapping[str, Any]:
    found = _against(result, timing, baseline)
    # A time and its ratio are of one kind: not that of the device where the reference has only the other.
    measure = found.measure if found else measure_of(timing)
    time = time_told(timing, measure)
    place = _place(result)
    top = tops.get((result.run, place["device"], place["dtype"], timing.threads))
    return (
        place
        | {
            "median_ns": time.value,
            "low_ns": time.low,
            "high_ns": time.high,
            "level": time.level,
            "processes": time.processes,
            "samples": _count(samples_of(timing, measure)),
            "threads": timing.threads,
            "method": timing.method,
            "measure": measure,
            "end_to_end_ns": time_told(timing, "wall").value if measure == "device" else math.nan,
            "graph_ns": median_of_processes(timing.graph_ns).value if any(timing.graph_ns) else math.nan,
            "throttled": throttled_calls(timing),
            "clock": timing.clock,
            "build_ns": _middle(timing.build_ns),
            "first_call_ns": _middle(timing.first_call_ns),
        }
        | _told(found, decides=result.implementation != reference(result.case))
        | _rates(result, time.value, top)
    )


def _against(result: Result, timing: Timing, baseline: Timing | None) -> SpeedVerdict | None:
    """Contest with the reference, where both took turns in the same processes."""
    if baseline is None or len(baseline.samples_ns) != len(timing.samples_ns):
        return None
    if reference(result.case) not in (result.implementation, *timing.interleaved_with):
        return None
    return judge_speed(timing, baseline)


def _told(found: SpeedVerdict | None, *, decides: bool) -> dict[str, Any]:
    """A contest as columns: the ratio never without its state.

    One of the reference with itself decides nothing, and is told only where it is inconclusive.
    """
    ratio = found.ratio if found else None
    null = found.null if found else None
    told = found if found and (decides or found.state == "inconclusive") else None
    return {
        "state": told.state if told else "",
        "ratio": ratio.value if ratio else math.nan,
        "ratio_low": ratio.low if ratio else math.nan,
        "ratio_high": ratio.high if ratio else math.nan,
        "ratio_level": ratio.level if ratio else math.nan,
        "counted": found.counted if found else math.nan,
        "of": found.of if found else math.nan,
        "reason": told.reason if told else "",
        "null_state": null.state if null else "",
        "null_ratio": null.ratio.value if null and null.ratio else math.nan,
    }


def _rates(result: Result, time_ns: float, top: Ceiling | None) -> dict[str, Any]:
    """What the case needs, over its time; and of that time the share in which the ceilings would have done it.

    ``bound`` says which ceiling binds: the one that alone takes longer.
    """
    # An operator that counts no operations says 0.
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


def _middle(values_ns: Sequence[int]) -> float:
    return float(statistics.median(values_ns)) if values_ns else math.nan


def _count(samples_ns: Iterable[Sequence[int]]) -> int:
    return sum(len(process) for process in samples_ns)
