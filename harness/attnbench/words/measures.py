"""Headings and notes of the tables of measures, and how their numbers were measured."""

from collections.abc import Iterator, Mapping, Sequence

from attnbench.analysis.speed_verdict import EFFECT
from attnbench.analysis.timing_rows import TimingRow
from attnbench.words.say import say
from attnbench.words.speed import explain_no_verdict

__all__ = ["COLUMNS", "describe_mark", "list_methods", "list_notes"]

# The heading of each column, and whether it is sorted by numbers; ``{baseline}`` is the name of the baseline.
COLUMNS: Mapping[str, tuple[str, bool]] = {
    "time": ("time, ms", True),
    "processes": ("processes", True),
    "ratio": ("time ÷ {baseline}", True),
    "verdict": ("verdict", False),
    "rate": ("Gflop/s", True),
    "share": ("share of ceiling", True),
    "peak": ("peak, MiB", True),
    "workspace": ("workspace, MiB", True),
    "saved": ("saved, MiB", True),
    "path": ("kernels", False),
    "end_to_end": ("end to end, ms", True),
    "graph": ("CUDA graph, ms", True),
    "build": ("building, ms", True),
    "first_call": ("first call, ms", True),
    "physical": ("physical peak, MiB", True),
    "outside": ("outside the allocator, MiB", True),
    "reserved": ("reserved, MiB", True),
}
_MARKS = {
    "faster": "faster", "slower": "slower", "same": "same", "not_slower": "not slower", "not_faster": "not faster",
    "undecided": "not decided",
}  # fmt: skip


def describe_mark(timing: TimingRow) -> str:
    """Return the speed verdict of a timed call, with the reason where there is none."""
    if timing.is_reference:
        return say("baseline")
    if timing.mark is None:
        return say("not compared")
    why = explain_no_verdict(timing.reason) if timing.mark == "undecided" else ""
    return say("{mark}: {why}" if why else "{mark}", mark=say(_MARKS[timing.mark]), why=why)


def list_notes(timings: Sequence[TimingRow], *, withheld: bool) -> Iterator[str]:
    """Yield what marks in a table mean; ``withheld``: without shares of the ceiling."""
    if any(timing.basis == "disturbed" for timing in timings):
        yield say("≈ disturbed: other work took the cores during too many of the calls. Do not compare the time.")
    if any(timing.reference_ns is not None for timing in timings):
        yield say(
            "* not the quotient of the two times: the baseline took another time in the cycles that called both, "
            "which is reference_ns in timings.csv."
        )
    if any(timing.values == "fixed" for timing in timings):
        names = sorted({timing.implementation for timing in timings if timing.values == "fixed"})
        yield say(
            "All timed calls had the same input values, so results may have been kept: {names}.", names=", ".join(names)
        )
    if withheld:
        yield say("No shares of the ceiling: a call was faster than the measured ceiling allows.")


def list_methods(timings: Sequence[TimingRow], *, memory: Sequence[str], compact: bool) -> Iterator[str]:
    """Yield how the numbers of a report were measured; ``memory`` are the methods of measuring it."""
    if timings:
        yield from _list_methods_of_time(timings)
    if memory:
        yield say(
            "Memory: bytes above the inputs at the peak of one call, by {methods}. Workspace is the part of the peak "
            "that is neither output nor gradient. Saved bytes are kept for the backward pass. The physical peak is "
            "the growth of the process's resident memory, to about 0.3 MB.",
            methods=", ".join(memory),
        )
    yield say(
        "Findings: each check compares with a float64 oracle, within an error budget that is derived for each case. "
        "findings.csv has the measured and the allowed error."
    )
    if compact:
        yield say("Because the runs are large, findings.csv leaves out what passed without a warning.")


def _list_methods_of_time(timings: Sequence[TimingRow]) -> Iterator[str]:
    processes = [timing.time.processes for timing in timings]
    yield say(
        "Time: the median over {processes} fresh processes of each process's median call, after a conformance check of "
        "the same case. In each cycle, every implementation is called once, in random order. A call counts if it had "
        "its cores all the time, unless too few calls did. Brackets are the confidence interval between two order "
        "statistics of the processes. All samples are stored.",
        processes=_format_range(processes),
    )
    yield say(
        "Ratio: the median over processes of each process's median over the cycles that called both. A verdict is "
        "faster or slower if the whole interval is more than {percent:g} % from 1, and same if it is within. The A/A "
        "control compares the baseline with a copy of itself; where they differ, nothing is decided.",
        percent=100 * EFFECT,
    )
    yield say(
        "What to use: of the implementations that conform, the one whose worst case against all others is smallest. "
        "The bound is the upper end of a simultaneous 95 % interval of its time over that of any other."
    )
    yield _describe_values(timings)
    if any(timing.measure == "device" for timing in timings):
        yield say(
            "CUDA: times are device time from a cold second-level cache. Cycles in which the clock moved by more than "
            "1 %, or was throttled, are left out: {throttled} of {samples} samples.",
            throttled=sum(timing.throttled for timing in timings),
            samples=sum(timing.samples for timing in timings),
        )
    yield say(
        "Gflop/s: operations that the case needs by a closed formula, without masked pairs, divided by the time. The "
        "ceiling is the rate of a matrix product or of a copy on the same machine, whichever bounds the call."
    )


def _describe_values(timings: Sequence[TimingRow]) -> str:
    """Say what keeps an implementation from answering otherwise while it is timed."""
    fresh = [timing.judged for timing in timings if timing.values == "fresh"]
    trust = say("Implementations share a process with the harness, and are trusted not to attack it.")
    if not fresh:
        return say("All timed calls had the same input values. {trust}", trust=trust)
    template = (
        "Timed calls have input values of their own, and the results of {judged} calls, chosen at random, are compared "
        "with the oracle. {trust}"
    )
    return say(template, judged=_format_range(fresh), trust=trust)


def _format_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
