"""Frames from results: one row per timing, memory, finding or thing not timed."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from attnbench.checks.catalogue import checks
from attnbench.records import Pass, Result, Timing
from attnbench.stats import Estimate, median_of_processes, ratio

__all__ = ["REFERENCE", "findings", "length_of", "matrix", "memory", "pass_of", "series_of", "timings", "untimed"]

# Implementation that is the reference of the operator that is there: other times are told as ratios to its time.
REFERENCE = "torch_mha"
PERF = "perf"

TIMINGS = (
    "implementation", "case", "pass", "length", "dtype", "device", "median_ns", "low_ns", "high_ns", "level",
    "processes", "samples", "threads", "method", "ratio", "ratio_low", "ratio_high", "ratio_level", "flop",
    "gflop_per_s", "run",
)  # fmt: skip
MEMORY = (
    "implementation", "case", "pass", "length", "dtype", "device", "peak_bytes", "saved_bytes", "threads", "method",
    "run",
)  # fmt: skip
FINDINGS = (
    "implementation", "case", "check", "chapter", "status", "reason", "measured", "allowed", "warnings", "run",
)  # fmt: skip
UNTIMED = ("implementation", "length", "pass", "reason", "case", "run")


def timings(results: Sequence[Result]) -> pd.DataFrame:
    """Median time of every call that was timed, with its ratio to the reference where they took turns."""
    baselines = {(r.run, r.case): r.timing for r in results if r.implementation == REFERENCE and r.timing}
    rows = [_timing(r, r.timing, baselines.get((r.run, r.case))) for r in results if r.timing]
    return pd.DataFrame(rows, columns=list(TIMINGS))


def memory(results: Sequence[Result]) -> pd.DataFrame:
    """Bytes of every call whose memory was counted."""
    rows = [
        _place(r)
        | {
            "peak_bytes": r.memory.peak_bytes,
            "saved_bytes": r.memory.saved_bytes,
            "threads": r.memory.threads,
            "method": r.memory.method,
        }
        for r in results
        if r.memory
    ]
    frame = pd.DataFrame(rows, columns=list(MEMORY))
    return frame.astype({"saved_bytes": "Int64"})


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


def length_of(case: str) -> int:
    """Length of a case: the size labelled L in the sizes of its id, or 0 where its operator has none.

    A case id reads ``operator/sizes/…``, and sizes read ``B2.L128.S128``.
    """
    sizes = case.split("/")[1].split(".")
    return next((int(size[1:]) for size in sizes if re.fullmatch(r"L\d+", size)), 0)


def pass_of(case: str) -> Pass:
    """What is timed in a case: its id ends with the mode, and inference has no backward."""
    return "forward" if case.rpartition("/")[2] == "inference" else "forward+backward"


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


def _timing(result: Result, timing: Timing, baseline: Timing | None) -> Mapping[str, Any]:
    time = median_of_processes(timing.samples_ns)
    against = _against(result, timing, baseline)
    return _place(result) | {
        "median_ns": time.value,
        "low_ns": time.low,
        "high_ns": time.high,
        "level": time.level,
        "processes": time.processes,
        "samples": _count(timing.samples_ns),
        "threads": timing.threads,
        "method": timing.method,
        "ratio": against.value if against else math.nan,
        "ratio_low": against.low if against else math.nan,
        "ratio_high": against.high if against else math.nan,
        "ratio_level": against.level if against else math.nan,
        "flop": result.flop,
        "gflop_per_s": result.flop / time.value if result.flop is not None else math.nan,
    }


def _against(result: Result, timing: Timing, baseline: Timing | None) -> Estimate | None:
    """Ratio to the reference, where both took turns in the same processes."""
    if baseline is None or len(baseline.samples_ns) != len(timing.samples_ns):
        return None
    if result.implementation != REFERENCE and REFERENCE not in timing.interleaved_with:
        return None
    return ratio(timing.samples_ns, baseline.samples_ns)


def _count(samples_ns: Iterable[Sequence[int]]) -> int:
    return sum(len(process) for process in samples_ns)
