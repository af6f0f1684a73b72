"""Sentences of a report, made from its data."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pandas as pd

from attnbench.analysis.speed_verdict import EFFECT, State
from attnbench.records.types import FAILURES, Machine, Result, Status
from attnbench.report import tables
from attnbench.report.numbers import format_bytes, format_count, format_digits, format_thousands
from attnbench.report.series import Series

__all__ = ["INCONCLUSIVE", "describe_fastest", "describe_machine", "describe_methods", "explain_times", "make_headline"]

RATIO = ("ratio", "ratio_low", "ratio_high")
INCONCLUSIVE: State = "inconclusive"
# Statuses of findings whose check did not run.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})
# Words of the headline for statuses that are neither passed nor a failure.
WORDS = {
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}


def make_headline(
    results: Sequence[Result], found: pd.DataFrame, series: Sequence[Series], undecided: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the sentences that say what was checked, and how many findings passed or failed.

    ``undecided`` are the implementations on which there is no verdict.
    """
    names, cases = len({r.implementation for r in results}), len({r.case for r in results})
    counts = Counter(found["status"])
    checked = sum(count for status, count in counts.items() if status not in SILENT)
    bad = sum(counts[status] for status in FAILURES)
    if found.empty:
        yield "These runs contain no findings: nothing was checked."
        return
    counted = ((names, "implementation"), (cases, "case"), (found["check"].nunique(), "check"))
    start = f"{', '.join(format_count(*one) for one in counted)}:"
    if not checked:
        yield f"{start} nothing was checked."
    elif bad:
        yield f"{start} {format_thousands(bad)} of {format_count(checked, 'finding')} failed."
    elif undecided:
        yield f"{start} no finding of {format_count(checked, 'finding')} failed; no verdict on {', '.join(undecided)}."
    elif counts["expected_failure"]:
        passed = format_thousands(counts["passed"])
        yield f"{start} of {format_count(checked, 'finding')}, {passed} passed and the others failed as expected."
    else:
        yield f"{start} all {format_count(checked, 'finding')} passed."
    others = [f"{format_thousands(counts[status])} {words}" for status, words in WORDS.items() if counts[status]]
    if others:
        yield f"{', '.join(others)}."
    timed = sum(len(one.timings) for one in series)
    if timed:
        yield f"{format_count(timed, 'call')} timed."
    elif tables.tabulate_untimed(results).empty:
        yield "These runs contain no timings: speed was not measured."
    else:
        yield "These runs contain no timings; the reason is listed for each call below."


def describe_fastest(series: Series) -> Iterator[str]:
    """Yield sentences that name the fastest implementation at each length.

    One sentence covers all adjacent lengths that have the same fastest implementation.
    """
    for name, part in series.timings.groupby("pass"):
        winners = [
            (int(str(length)), *_find_fastest(rows, series.reference)) for length, rows in part.groupby("length")
        ]
        for words, group in groupby(winners, key=lambda winner: winner[1]):
            stretch = list(group)
            lengths = [length for length, _, _ in stretch]
            gains = [gain for *_, gain in stretch if gain == gain]
            at = f"L = {lengths[0]}" if len(lengths) == 1 else f"L = {lengths[0]} to {lengths[-1]}"
            low, high = (_format_gain(min(gains)), _format_gain(max(gains))) if gains else ("", "")
            gain = (
                f", {low if low == high else f'{low} to {high}'} times as fast as {series.reference}" if gains else ""
            )
            fastest_one, *rest = words.split(", but ")
            but = f", but {rest[0]}" if rest else ""
            yield f"{str(name).capitalize()}, {at}: {fastest_one}{gain}{but}."


def _format_gain(value: float) -> str:
    # A gain below 1.1 gets three digits. With two digits, 1.02 would be written as 1.0, as if there were no gain.
    return format_digits(value, 3 if value < 1.1 else 2)


def _find_fastest(rows: pd.DataFrame, reference: str) -> tuple[str, float]:
    """Return a phrase about the fastest implementation, and its speed-up over the reference.

    The phrase names the fastest implementation, and the implementations that cannot be distinguished from it. If every
    implementation has a ratio to the reference, the ratios are compared, else the times. Ratios are more exact, since
    times also contain the disturbances of each process. The speed-up is NaN if the reference may be as fast.
    """
    disturbed = rows["state"] == INCONCLUSIVE
    if disturbed.iloc[int(rows["median_ns"].argmin())]:
        return "inconclusive", math.nan
    rows = rows[~disturbed]
    all_ratios = not rows["ratio"].isna().any()
    value, low, high = RATIO if all_ratios else ("median_ns", "low_ns", "high_ns")
    ordered = rows.sort_values(value)
    best = ordered.iloc[0]
    state = str(best["state"])
    level = set(ordered[ordered[low] <= best[high]]["implementation"])
    if all_ratios and state != "faster" and best["implementation"] != reference:
        level.add(reference)
    # No speed-up is stated if the reference may be as fast as the best implementation.
    gain = math.nan if reference in level or state != "faster" else 1 / best["ratio"]
    if len(level) == 1:
        return f"{best['implementation']} is fastest", gain
    others = _join_words([name for name in ordered["implementation"] if name in level - {best["implementation"]}])
    return f"{best['implementation']} is fastest, but cannot be distinguished from {others}", gain


def explain_times(series: Series) -> str:
    """Return the sentence that explains the lines below each time in a table."""
    compared = series.timings[series.timings["implementation"] != series.reference]
    states = Counter(state for state in compared["state"] if state)
    counts = f" Here: {', '.join(f'{count} {state}' for state, count in states.most_common())}." if states else ""
    return (
        f"Below each time: the confidence interval of its median, which covers the true median with a probability of "
        f"{_format_levels(series.timings)}; its ratio to the reference with its confidence interval, where below 1 is "
        f"faster; and the speed verdict: faster, slower, same, unknown (too few processes to decide) or inconclusive "
        f"(other work disturbed the measurement, or the A/A control failed: the reference differed from itself)."
        f"{counts}"
    )


def describe_methods(series: Sequence[Series]) -> Iterator[str]:
    """Yield sentences that say how the numbers of a report were measured and computed."""
    timings = pd.concat([one.timings for one in series]) if series else pd.DataFrame()
    memories = pd.concat([one.memory for one in series]) if series else pd.DataFrame()
    if len(timings):
        processes, samples = _format_range(timings["processes"]), _format_range(timings["samples"])
        yield (
            f"Time: {', '.join(timings['method'].unique())} time of a call; a conformance check of the same case "
            f"passed first. Each number comes from {samples} samples in {processes} fresh processes, with interleaved "
            f"calls: one call of each implementation per cycle, in random order. A call is clean if it had its cores "
            f"all the time. A number is the median over processes of each process's median over clean calls, or over "
            f"all calls where too few were clean. Its confidence interval lies between two order statistics of the "
            f"processes, and covers the true median with a probability of {_format_levels(timings)}. Threads: "
            f"{_format_range(timings['threads'])}. All samples are stored."
        )
        if (timings["device"] != "cpu").any():
            yield _describe_device_times(timings[timings["device"] != "cpu"])
        reference = " or ".join(sorted({one.reference for one in series}))
        yield (
            f"Ratio: time divided by the time of {reference} on the same case; in each process the median over "
            f"cycles in which both calls were clean, then the median over processes. The speed verdict is faster or "
            f"slower where order statistics of the processes differ from 1 by more than {EFFECT * 100:g} %, and same "
            f"where they differ by less. It is inconclusive where too few processes were undisturbed, or where the A/A "
            f"control, {reference} against a second copy of itself, differed as much. Speed in the plot is the inverse "
            f"of the ratio."
        )
        yield (
            "Gflop/s: operations that the case needs by a closed formula, without hidden (masked) query-key pairs, "
            "divided by the time. Operations that were executed are not counted. The share of the ceiling is the "
            "shortest possible time divided by the measured time. The shortest possible time is the longer of two "
            "times: of the operations at the measured rate of a matrix product, and of the bytes at the measured rate "
            "of a copy."
        )
    if len(memories):
        yield (
            f"Memory: bytes above the inputs at the peak of one call, by {_join_words(memories['method'].unique())}. "
            f"Workspace is the part of the peak that is neither output nor gradient. Saved bytes are those that the "
            f"forward pass keeps for the backward pass. The physical peak is the largest resident memory of the "
            f"process above its level before the call, to about 0.3 MB. It includes memory that libraries take outside "
            f"torch's allocator, but not memory that was allocated and never written."
        )
    yield (
        "Findings: each check compares with a float64 oracle of the written contract, within an error budget that "
        "is derived for each case. findings.csv has the measured error and the budget."
    )


def _describe_device_times(timings: pd.DataFrame) -> str:
    """Return sentences that say which time of a CUDA call is reported, and which cycles were left out."""
    clocks = _join_words(sorted(set(timings["clock"]) - {""}) or ["none"])
    throttled, samples = int(timings["throttled"].sum()), int(timings["samples"].sum())
    return (
        f"On CUDA, times, ratios and verdicts use device time, from a cold second-level cache, unless a number is "
        f"marked end to end: wall time until the device was done. Cycles in which the device's clock moved by more "
        f"than 1 %, or was throttled, are left out for all implementations, here {throttled} of {samples} samples. "
        f"Readings of the clock: {clocks}."
    )


def _format_levels(timings: pd.DataFrame) -> str:
    return f"{_format_range((timings['level'] * 100).round(1))} %"


def _format_range(values: Iterable[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _join_words(parts: Iterable[str]) -> str:
    *first, last = [str(part) for part in parts]
    return f"{', '.join(first)} and {last}" if first else last


def describe_machine(machine: Machine) -> str:
    """Describe a machine in one line."""
    parts = [
        machine.name,
        machine.cpu,
        format_count(machine.cores, "core"),
        f"{format_bytes(machine.memory_bytes)} of memory",
    ]
    parts += [machine.isa] if machine.isa else []
    parts.append(f"{machine.gpu}, driver {machine.driver or 'unknown'}" if machine.gpu else "no GPU")
    return " · ".join([*parts, machine.system] if machine.system else parts)
