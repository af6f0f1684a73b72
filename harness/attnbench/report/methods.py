"""Sentences that say how the numbers of a report were measured and computed, and on which machine."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from attnbench.analysis.plain_names import join_words
from attnbench.analysis.speed_verdict import EFFECT
from attnbench.records.types import Machine, Run
from attnbench.report.measures import Measures
from attnbench.report.numbers import format_bytes, format_count, format_thousands
from attnbench.report.series import Series

__all__ = [
    "describe_commit",
    "describe_machine",
    "describe_methods",
    "describe_suite",
    "explain_measures",
    "explain_states",
]

# Causes of the states that are no verdicts: a part of the reason in a run's comparison, the page's words for it, and
# what may decide the comparison.
QUIET = "while nothing else runs on the machine"
CAUSES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "unknown": (
        ("too few for a verdict", "too few processes for a verdict", "in more processes (--processes 30)"),
        (
            "crosses the threshold",
            f"the confidence interval crosses the threshold of {EFFECT * 100:g} %",
            "in more processes (--processes 30)",
        ),
    ),
    "inconclusive": (
        ("other work", "other work disturbed too many processes", QUIET),
        (
            "too slow",
            "the calls are too slow, so a process made too few of them",
            "with more calls in each process (--suite full, without --case-budget)",
        ),
        ("clock", "the device's clock changed or was throttled", "with a fixed clock of the device"),
        ("A/A control", "the A/A control failed: the reference differs from its copy", QUIET),
    ),
}


def explain_measures(series: Sequence[Series], measures: Measures) -> str:
    """Return the paragraph that explains the tables of measures."""
    timings = pd.concat([one.timings for one in series])
    left_out = (
        f"{format_thousands(measures.shown)} of {format_thousands(measures.rows)} rows are shown: first those without "
        "a verdict and those of implementations that failed a check. timings.csv and memory.csv have all."
        if measures.shown < measures.rows
        else ""
    )
    references = {one.reference for one in series}
    compared = timings[~timings["implementation"].isin(references)]
    return " ".join([*_explain_times(timings), *_explain_ratios(compared), *[left_out] * bool(left_out)])


def _explain_times(timings: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about the times of the tables; none without a time."""
    if timings.empty:
        return
    yield _explain_intervals(timings)
    if any(timings["measure"] == "device"):
        yield "The time is that on the device, except where it is marked end to end."


def _explain_ratios(compared: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about the ratios and the speed verdicts of the tables; none without a compared call."""
    states = Counter(state for state in compared["state"] if state)
    if not states:
        return
    yield (
        "A ratio is the median over the cycles that called both implementations; below 1 is faster. Faster, slower and "
        f"same are verdicts with the threshold of {EFFECT * 100:g} %."
    )
    total = format_count(states.total(), "comparison")
    yield f"Here, of {total}: {', '.join(f'{count} {state}' for state, count in states.most_common())}."


def _explain_intervals(timings: pd.DataFrame) -> str:
    """Return the sentence about the intervals in brackets."""
    if (timings["processes"] <= 1).all():
        return "Each time is from one process and has no interval."
    return f"Brackets are the confidence interval, which covers the true median with a probability {_tell(timings)}."


def explain_states(timings: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each of ``unknown`` and ``inconclusive`` that occurs: its causes, and what may decide it."""
    for state, causes in CAUSES.items():
        reasons = {str(reason) for reason in timings[timings["state"] == state]["reason"]}
        found = [cause for cause in causes if any(cause[0] in reason for reason in reasons)]
        if found:
            helps = dict.fromkeys(help_ for _, _, help_ in found)
            yield (
                f"{state.capitalize()}: {', or '.join(words for _, words, _ in found)}. To decide it, time again "
                f"{', or '.join(helps)}."
            )


def describe_methods(series: Sequence[Series], *, compact: bool = False) -> Iterator[str]:
    """Yield sentences that say how the numbers of a report were measured and computed.

    ``compact``: findings.csv leaves out what passed without a warning.
    """
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
            f"processes, and covers the true median with a probability {_tell(timings)}. Threads: "
            f"{_format_range(timings['threads'])}. All samples are stored."
        )
        yield _describe_trust(timings)
        if (timings["device"] != "cpu").any():
            yield _describe_device_times(timings[timings["device"] != "cpu"])
        reference = " or ".join(sorted({one.reference for one in series}))
        yield (
            f"Ratio: time divided by the time of {reference} on the same case; in each process the median over "
            f"cycles in which both calls were clean, then the median over processes. The speed verdict is faster or "
            f"slower where order statistics of the processes differ from 1 by more than {EFFECT * 100:g} %, and same "
            f"where they differ by less. It is inconclusive where too few processes were undisturbed, or where the A/A "
            f"control, {reference} against a second copy of itself, differed as much."
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
    some = "Because the runs are large, findings.csv leaves out the findings that passed without a warning. "
    yield (
        "Findings: each check compares with a float64 oracle of the written contract, within an error budget that "
        f"is derived for each case. {some if compact else ''}findings.csv has the measured error and the budget."
    )


def _describe_trust(timings: pd.DataFrame) -> str:
    """Return sentences on what keeps an implementation from answering otherwise while it is timed."""
    trust = "Implementations are trusted not to attack the harness itself, because they share a process with it."
    fresh = timings[timings["values"] == "fresh"]
    if fresh.empty:
        return f"All timed calls of an implementation had the same input values. {trust}"
    fixed = sorted(set(timings["implementation"][timings["values"] == "fixed"]))
    older = int((timings["values"] == "").sum())
    some = [f"those of {join_words(fixed)}, whose policies declare that values must stay"] if fixed else []
    some += [f"those of {older} timings of older runs"] if older else []
    exceptions = f", except {' and '.join(some)}" if some else ""
    return (
        f"Every timed call had input values of its own{exceptions}. Of each implementation and case, the results of "
        f"{_format_range(fresh['judged'])} timed calls, chosen at random, were compared with the oracle. {trust}"
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


def _tell(timings: pd.DataFrame) -> str:
    """Return the probabilities of the intervals, in words; one process has no interval."""
    several = timings[timings["processes"] > 1]
    if several.empty:
        return "that is not known: one process has no interval"
    low, high = (f"{level * 100:.1f}".removesuffix(".0") for level in (several["level"].min(), several["level"].max()))
    told = f"of {low} %" if low == high else f"of {low} to {high} %"
    return told if len(several) == len(timings) else f"{told}; one process has no interval"


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


def describe_suite(run: Run) -> str:
    """Return the suite of a run, and the hash of the case list if the run has the list or a part of it."""
    suite = run.suite or "none"
    if run.suite_digest:
        return f"{suite}, case list {run.suite_digest}"
    return f"{suite}, part of case list {run.list_digest}" if run.list_digest else suite


def describe_commit(commit: str | None) -> str:
    """Return the commit of a run in words."""
    if not commit:
        return "none: not run from a checkout"
    return f"{commit.removesuffix('+')} (with uncommitted changes)" if commit.endswith("+") else commit
