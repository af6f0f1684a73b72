"""Sentences that say how the numbers of a report were measured and computed, and on which machine."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from attnbench.analysis.speed_verdict import EFFECT
from attnbench.records.types import Machine
from attnbench.report.measures import Measures
from attnbench.report.numbers import format_bytes, format_count, format_thousands, join_words
from attnbench.report.series import Series

__all__ = ["describe_machine", "describe_methods", "explain_measures"]


def explain_measures(series: Sequence[Series], measures: Measures) -> str:
    """Return the paragraph that explains the tables of measures."""
    timings = pd.concat([one.timings for one in series])
    references = {one.reference for one in series}
    states = Counter(state for state in timings[~timings["implementation"].isin(references)]["state"] if state)
    counts = f" Here: {', '.join(f'{count} {state}' for state, count in states.most_common())}." if states else ""
    level = f", which covers the true median with a probability of {_format_levels(timings)}" if len(timings) else ""
    on_device = " The time is that on the device, except where it is marked end to end." * any(
        timings["measure"] == "device"
    )
    left_out = (
        f" {format_thousands(measures.shown)} of {format_thousands(measures.rows)} rows are shown: first those without "
        "a verdict and those of implementations that failed a check. timings.csv and memory.csv have all."
        if measures.shown < measures.rows
        else ""
    )
    return (
        f"Brackets are the confidence interval{level}.{on_device} A ratio is the median over the cycles that called "
        f"both, below 1 is faster; where it is not the quotient of the two times, a note says why. Verdicts are "
        f"faster, slower, same, unknown (too few processes to decide) or inconclusive (too few calls were "
        f"undisturbed, or the A/A control failed: the reference differed from itself).{counts}{left_out}"
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
            f"Memory: bytes above the inputs at the peak of one call, by {join_words(memories['method'].unique())}. "
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
    clocks = join_words(sorted(set(timings["clock"]) - {""}) or ["none"])
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


def describe_machine(machine: Machine) -> str:
    """Describe a machine in one line."""
    parts = [
        machine.name,
        machine.cpu,
        format_count(machine.cores, "core"),
        f"{format_bytes(machine.memory_bytes)} of memory",
    ]
    parts += [machine.isa] if machine.isa else []
    parts.append(f"{machine.gpu}, driver {machine.driver or 'not known'}" if machine.gpu else "no GPU")
    return " · ".join([*parts, machine.system] if machine.system else parts)
