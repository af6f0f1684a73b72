"""What a report says in plain words, made from its data."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import pandas as pd

from attnbench.analysis.speed_verdict import EFFECT, State
from attnbench.records.types import FAILURES, Machine, Result, Status
from attnbench.report import tables
from attnbench.report.numbers import bytes_text, digits, many, thousands
from attnbench.report.series import Series

__all__ = ["INCONCLUSIVE", "fastest", "headline", "machine_text", "methods", "under_times"]

RATIO = ("ratio", "ratio_low", "ratio_high")
INCONCLUSIVE: State = "inconclusive"
# Statuses that say nothing of right or wrong.
SILENT: frozenset[Status] = frozenset({"unsupported", "not_run"})
# How the headline tells of findings that neither held nor failed it.
TOLD = {
    "expected_failure": "failed as expected",
    "unsupported": "refused with a reason",
    "not_run": "not run",
}


def headline(results: Sequence[Result], found: pd.DataFrame, series: Sequence[Series]) -> Iterator[str]:
    """What was checked, and how much of it held."""
    names, cases = len({r.implementation for r in results}), len({r.case for r in results})
    counts = Counter(found["status"])
    spoken = sum(count for status, count in counts.items() if status not in SILENT)
    bad = sum(counts[status] for status in FAILURES)
    if found.empty:
        yield "These runs hold no findings: nothing was checked."
        return
    start = f"{many(names, 'implementation')}, {many(cases, 'case')}, {many(found['check'].nunique(), 'check')}:"
    if not spoken:
        yield f"{start} nothing was checked."
    elif bad:
        yield f"{start} {thousands(bad)} of {many(spoken, 'finding')} did not hold."
    elif counts["expected_failure"]:
        held = thousands(counts["passed"])
        yield f"{start} of {many(spoken, 'finding')}, {held} held and the others failed as expected."
    else:
        yield f"{start} all {many(spoken, 'finding')} held."
    told = [f"{thousands(counts[status])} {words}" for status, words in TOLD.items() if counts[status]]
    if told:
        yield f"{', '.join(told)}."
    timed = sum(len(one.timings) for one in series)
    if timed:
        yield f"{many(timed, 'call')} timed."
    elif tables.untimed(results).empty:
        yield "These runs hold no timings: speed was not asked for."
    else:
        yield "These runs hold no timings; why not stands with each call below."


def fastest(series: Series) -> Iterator[str]:
    """What is fastest at which lengths; neighbours with the same answer share a sentence."""
    for name, part in series.timings.groupby("pass"):
        winners = [(int(str(length)), *_winner(rows, series.reference)) for length, rows in part.groupby("length")]
        for told, group in groupby(winners, key=lambda winner: winner[1]):
            stretch = list(group)
            lengths = [length for length, _, _ in stretch]
            gains = [gain for *_, gain in stretch if gain == gain]
            at = f"L = {lengths[0]}" if len(lengths) == 1 else f"L = {lengths[0]} to {lengths[-1]}"
            low, high = (_gain(min(gains)), _gain(max(gains))) if gains else ("", "")
            gain = (
                f", {low if low == high else f'{low} to {high}'} times as fast as {series.reference}" if gains else ""
            )
            fastest_one, *rest = told.split(", but ")
            but = f", but {rest[0]}" if rest else ""
            yield f"{str(name).capitalize()}, {at}: {fastest_one}{gain}{but}."


def _gain(value: float) -> str:
    # 1.02 in two digits would read as no gain at all.
    return digits(value, 3 if value < 1.1 else 2)


def _winner(rows: pd.DataFrame, reference: str) -> tuple[str, float]:
    """Who is fastest in words, those included whom it cannot be told from, and its gain on the reference.

    Contests decide where all took turns with the reference: times carry whatever the machine did to each process.
    """
    disturbed = rows["state"] == INCONCLUSIVE
    if disturbed.iloc[int(rows["median_ns"].argmin())]:
        return "inconclusive", math.nan
    rows = rows[~disturbed]
    judged = not rows["ratio"].isna().any()
    value, low, high = RATIO if judged else ("median_ns", "low_ns", "high_ns")
    ordered = rows.sort_values(value)
    best = ordered.iloc[0]
    state = str(best["state"])
    level = set(ordered[ordered[low] <= best[high]]["implementation"])
    if judged and state != "faster" and best["implementation"] != reference:
        level.add(reference)
    # A gain on a reference that may be as fast would say more than was measured.
    gain = math.nan if reference in level or state != "faster" else 1 / best["ratio"]
    if len(level) == 1:
        return f"{best['implementation']} is fastest", gain
    others = _sentence([name for name in ordered["implementation"] if name in level - {best["implementation"]}])
    return f"{best['implementation']} is fastest, but is not told apart from {others}", gain


def under_times(series: Series) -> str:
    """What stands under the times of a table."""
    contests = series.timings[series.timings["implementation"] != series.reference]
    states = Counter(state for state in contests["state"] if state)
    told = f" Here: {', '.join(f'{count} {state}' for state, count in states.most_common())}." if states else ""
    return (
        f"Under each time stand the interval of its median, which covers the true median with a probability of "
        f"{_levels(series.timings)}, and in the next lines its ratio to the reference with its interval, below 1 being "
        f"faster, and what that ratio is worth: faster, slower, same, unknown (too few processes to tell) or "
        f"inconclusive (other work disturbed it, or the reference differed from itself).{told}"
    )


def methods(series: Sequence[Series]) -> Iterator[str]:
    """How the numbers of a report were made."""
    timings = pd.concat([one.timings for one in series]) if series else pd.DataFrame()
    memories = pd.concat([one.memory for one in series]) if series else pd.DataFrame()
    if len(timings):
        processes, samples = _range(timings["processes"]), _range(timings["samples"])
        yield (
            f"Time: {', '.join(timings['method'].unique())} time of a call that a conformance check of the same case "
            f"preceded; {processes} fresh processes, {samples} samples for each number, implementations called in turn "
            f"in random order. A call is clean that had its cores all the time; a number is the median over processes "
            f"of each process's median over clean calls, or over all calls where too few were clean. Its interval runs "
            f"between two order statistics of the processes, and covers the true median with a probability of "
            f"{_levels(timings)}. Threads: {_range(timings['threads'])}. All samples are stored."
        )
        if (timings["device"] != "cpu").any():
            yield _on_device(timings[timings["device"] != "cpu"])
        reference = " or ".join(sorted({one.reference for one in series}))
        yield (
            f"Ratio: time divided by that of {reference} on the same case, in each process the median over "
            f"cycles in which both calls were clean, then the median over processes. It is faster or slower where "
            f"order statistics of the processes lie beyond {EFFECT * 100:g} %, same where they lie within; it is "
            f"inconclusive where too few processes were undisturbed, or where {reference} differed as much "
            f"from itself. Speed in the plot is its inverse."
        )
        yield (
            "Gflop/s: what the case needs by closed form, hidden query-key pairs left out, divided by the time. It is "
            "no count of what was executed. The share of the ceiling is the time that the case would take at the rates "
            "of this machine's own matrix product and copy, whichever is longer, divided by the time that it took."
        )
    if len(memories):
        yield (
            f"Memory: bytes above the inputs at the peak of one call, by {_sentence(memories['method'].unique())}. "
            f"Workspace is what of it is neither output nor gradient; saved bytes are what a forward keeps alive for "
            f"its backward. The physical peak is what the process had resident at most, above the level before the "
            f"call, to about 0.3 MB; it shows what libraries take outside torch's allocator, and nothing that was "
            f"allocated and never written."
        )
    yield (
        "Findings: each check compares with a float64 oracle of the written contract, within an error budget that "
        "is derived for each case; measured error and budget stand in findings.csv."
    )


def _on_device(timings: pd.DataFrame) -> str:
    """Which of two times is told of calls on a device, and what was left out."""
    clocks = _sentence(sorted(set(timings["clock"]) - {""}) or ["none"])
    throttled, samples = int(timings["throttled"].sum()), int(timings["samples"].sum())
    return (
        f"On a device, times, ratios and states are those of its own clock, from a cold second-level cache, unless a "
        f"number says that it is from end to end: wall time until the device was done. Cycles in which the device's "
        f"clock moved by more than 1 %, or was held down, are left out for all alike, here {throttled} of {samples} "
        f"samples. Readings of the clock: {clocks}."
    )


def _levels(timings: pd.DataFrame) -> str:
    return f"{_range((timings['level'] * 100).round(1))} %"


def _range(values: Iterable[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _sentence(parts: Iterable[str]) -> str:
    *first, last = [str(part) for part in parts]
    return f"{', '.join(first)} and {last}" if first else last


def machine_text(machine: Machine) -> str:
    """Machine in one line."""
    parts = [machine.name, machine.cpu, many(machine.cores, "core"), f"{bytes_text(machine.memory_bytes)} of memory"]
    parts += [machine.isa] if machine.isa else []
    parts.append(f"{machine.gpu}, driver {machine.driver or 'unknown'}" if machine.gpu else "no GPU")
    return " · ".join([*parts, machine.system] if machine.system else parts)
