"""Data frames from results: one row per timing, memory measurement, finding or call that was not timed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import Any

import pandas as pd

from attnbench.analysis.left_out import LeftOut
from attnbench.analysis.timing_rows import TimingRow
from attnbench.cases import CaseId
from attnbench.checks.catalogue import read_checks
from attnbench.records.types import PERF, Ceiling, Result, find_pass
from attnbench.report.columns import CEILINGS, FINDINGS, KERNELS, LEFT_OUT, MEMORY, TIMINGS, UNTIMED
from attnbench.report.kernel_paths import find_way
from attnbench.words.findings import describe_finding, describe_reason
from attnbench.words.left_out import describe_fault
from attnbench.words.speed import explain_no_verdict

__all__ = [
    "Tables",
    "chapter_of",
    "tabulate",
    "tabulate_ceilings",
    "tabulate_findings",
    "tabulate_kernels",
    "tabulate_left_out",
    "tabulate_memory",
    "tabulate_timings",
    "tabulate_untimed",
]

# The reason of a planned call that was not reached before its run ended.
ENDED = "the run ended before this call was timed"
# Fields of a ``Memory`` record that may be None.
OPTIONAL_BYTES = ("workspace_bytes", "saved_bytes", "physical_bytes", "outside_bytes", "reserved_bytes")
# Columns of ``FINDINGS`` that are fields of a result, and of a finding.
OF_RESULT = ("implementation", "case", "run")
OF_FINDING = ("check", "status", "reason", "measured", "allowed", "warnings")
# Number of rows that are put into a table at a time.
ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of the same results, each made once; rows are in the order of the results."""

    findings: pd.DataFrame
    timings: pd.DataFrame
    memory: pd.DataFrame
    untimed: pd.DataFrame
    kernels: pd.DataFrame


def tabulate(results: Sequence[Result], timings: Sequence[TimingRow], *, compact: bool = False) -> Tables:
    """Make all tables of these results and of their timed calls.

    ``compact``: leave out the findings that passed without a warning, of which a large report has millions.
    """
    return Tables(
        findings=tabulate_findings(results, every=not compact),
        timings=tabulate_timings(timings),
        memory=tabulate_memory(results),
        untimed=tabulate_untimed(results),
        kernels=tabulate_kernels(results),
    )


def tabulate_timings(rows: Sequence[TimingRow]) -> pd.DataFrame:
    """Tabulate the times of calls, with the speed verdict if they were interleaved with the reference."""
    columns = (_list_timing_columns(row) for row in rows)
    # Dicts take ten times as much memory as a table of them, so they are put into tables part by part.
    parts = [pd.DataFrame(part, columns=list(TIMINGS)) for part in _split(columns, ROWS)]
    return pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]


def _split(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in lists of this size; at least one list, which may be empty."""
    part = list(islice(rows, size))
    yield part
    while part := list(islice(rows, size)):
        yield part


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
    columns["warnings"] = ["\n".join(map(describe_reason, warnings)) for warnings in columns["warnings"]]
    columns["reason"] = list(map(describe_finding, found))
    return pd.DataFrame(columns, columns=list(FINDINGS))


def tabulate_left_out(left_out: Iterable[LeftOut]) -> pd.DataFrame:
    """Tabulate what is left out of all other tables, and why."""
    return pd.DataFrame(
        [asdict(one) | {"reason": describe_fault(one.reason)} for one in left_out], columns=list(LEFT_OUT)
    )


def tabulate_untimed(results: Sequence[Result]) -> pd.DataFrame:
    """Tabulate the calls that were planned for timing but not timed, with the reason."""
    rows = [
        {
            "implementation": r.implementation,
            "length": CaseId.parse(r.case).length,
            "pass": find_pass(r.case),
            "reason": describe_reason(r.untimed) if r.untimed else ENDED,
            "case": r.case,
            "run": r.run,
        }
        for r in results
        if r.suite == PERF and r.timing is None
    ]
    return pd.DataFrame(rows, columns=list(UNTIMED))


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


def _list_timing_columns(row: TimingRow) -> dict[str, Any]:
    """Return the columns of timings.csv; what is not known is NaN or empty."""
    verdict, ratio, rates = row.verdict, row.ratio, row.rates
    control = verdict.control if verdict else None
    return {
        "implementation": row.implementation,
        "case": row.case,
        **_describe_id(row.case),
        "run": row.run,
        "median_ns": row.time.value,
        "low_ns": row.time.low,
        "high_ns": row.time.high,
        "level": row.time.level,
        "processes": row.time.processes,
        "samples": row.samples,
        "threads": row.threads,
        "method": row.method,
        "measure": row.measure,
        "end_to_end_ns": _or_nan(row.end_to_end_ns),
        "graph_ns": _or_nan(row.graph_ns),
        "throttled": row.throttled,
        "clock": row.clock,
        "build_ns": _or_nan(row.build_ns),
        "first_call_ns": _or_nan(row.first_call_ns),
        "values": row.values,
        "judged": row.judged,
        "calls": row.basis,
        "seen_ratio": _or_nan(row.seen_ratio),
        "reference_ns": _or_nan(row.reference_ns),
        "state": row.state or "",
        "ratio": ratio.value if ratio else math.nan,
        "ratio_low": ratio.low if ratio else math.nan,
        "ratio_high": ratio.high if ratio else math.nan,
        "ratio_level": ratio.level if ratio else math.nan,
        "counted": verdict.counted if verdict else math.nan,
        "of": verdict.of if verdict else math.nan,
        "reason": explain_no_verdict(row.reason),
        "null_state": control.state if control else "",
        "null_ratio": control.ratio.value if control and control.ratio else math.nan,
        "flop": rates.flop,
        "bytes": rates.bytes,
        "gflop_per_s": _or_nan(rates.gflop_per_s),
        "gbyte_per_s": _or_nan(rates.gbyte_per_s),
        "share": _or_nan(rates.share),
        "bound": rates.bound,
    }


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
