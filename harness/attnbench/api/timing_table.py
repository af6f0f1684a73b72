"""Time and memory of profiled calls as tables, for the terminal and for notebooks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.speed_verdict import SpeedVerdict, State, decide_speed
from attnbench.analysis.stats import CleanCalls, choose_measure, estimate_time
from attnbench.api.printed import TextTable, format_reasons
from attnbench.cases import CaseId
from attnbench.plugins.registry import find_baseline
from attnbench.records.types import Result, find_pass
from attnbench.report.forms import spell_length
from attnbench.report.numbers import format_bytes
from attnbench.words.speed import explain_no_verdict

__all__ = ["list_left_out", "list_untimed", "tabulate_times"]

# Sign after each ratio, by speed verdict: a ratio alone does not say whether the difference is significant.
SIGNS: dict[State, str] = {"faster": "−", "slower": "+", "same": "=", "unknown": "?", "inconclusive": "!"}
TIMING_LEGEND = (
    "− faster, + slower, = same; ? unknown: not enough samples to tell, try more processes (--processes 30); "
    "! inconclusive: measurement disturbed, try again while nothing else runs"
)
# Mark of a time whose calls all had the same input values.
FIXED = "*"
FIXED_LEGEND = (
    f"{FIXED} every timed call had the same input values (policy fixed_values), so results may have been kept from "
    "earlier calls"
)
# Results that have a timing; the key is (run, case, implementation).
Timed = Mapping[tuple[str, str, str], Result]


def tabulate_times(results: Iterable[Result]) -> list[TextTable]:
    """Return tables of time and memory, with a row for each implementation and a column for each length.

    Each shape, pass, dtype and device has a table of its own. A time is followed by the ratio to the baseline, with the
    sign of the speed verdict.
    """
    timed = _index_timed(results)
    parts: defaultdict[str, list[Result]] = defaultdict(list)
    several = len({CaseId.parse(result.case).form for result in timed.values()}) > 1
    for result in timed.values():
        case = CaseId.parse(result.case)
        form = f", {case.form}" if several else ""
        parts[f"{find_pass(result.case)}, {case.dtype}{_describe_clock(result, case.device)}{form}"].append(result)
    tables = []
    for name, part in parts.items():
        title = f"{name}: ms (ratio to the reference)"
        tables.append(_tabulate_by_length(title, part, lambda result: _format_timing(result, timed)))
        if any(r.memory for r in part):
            tables.append(_tabulate_by_length(f"{name}: peak memory above the inputs", part, _format_peak))
    fixed = any(_has_fixed_values(result) for result in timed.values())
    legend = f"{TIMING_LEGEND}\n{FIXED_LEGEND}" if fixed else TIMING_LEGEND
    return [*tables[:-1], replace(tables[-1], legend=legend)] if tables else []


def list_untimed(results: Iterable[Result]) -> list[str]:
    """Return lines about calls that were not timed, and comparisons without a verdict, with the reasons."""
    stored = list(results)
    untimed = ((r.implementation, r.untimed) for r in stored if r.untimed)
    inconclusive = _list_inconclusive(_index_timed(stored))
    return [
        *list_left_out("not timed", "call", untimed),
        *list_left_out("inconclusive", "comparison", inconclusive),
    ]


def list_left_out(words: str, thing: str, named_reasons: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each implementation: how many findings, cases, calls or comparisons were left out.

    ``thing`` is the word for what was left out. A line begins with ``words``, and ends with the
    reasons.
    """
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, reason in named_reasons:
        reasons[name][reason] += 1
    for name, found in reasons.items():
        left_out = f"{found.total()} {thing}{'s' * (found.total() != 1)}"
        yield f"{words}: {name}, {left_out}: {format_reasons(found)}"


def _index_timed(results: Iterable[Result]) -> Timed:
    return {(r.run, r.case, r.implementation): r for r in results if r.timing}


def _tabulate_by_length(title: str, part: Sequence[Result], cell: Callable[[Result | None], str]) -> TextTable:
    """Return a table with a row for each implementation and a column for each length.

    Where the numbers of queries and keys differ, the length is written as in ``--lengths``, such as "1:512".
    """
    lengths = sorted({CaseId.parse(r.case).lengths for r in part}, key=lambda both: (max(both), both))
    rows = []
    for implementation in dict.fromkeys(r.implementation for r in part):
        of = {CaseId.parse(r.case).lengths: r for r in part if r.implementation == implementation}
        rows.append((implementation, *(cell(of.get(both)) for both in lengths)))
    head = ("implementation", *(spell_length(*both) for both in lengths))
    return TextTable(title=title, head=head, rows=tuple(rows))


def _format_peak(result: Result | None) -> str:
    return format_bytes(result.memory.peak_bytes) if result and result.memory else "–"


def _describe_clock(result: Result, device: str) -> str:
    """Return the part of a table title that names the device and the measure of time.

    The measure is device time or end-to-end time. The text is empty on the CPU.
    """
    if device == "cpu" or result.timing is None:
        return ""
    return f", {device}, {'device time' if choose_measure(result.timing) == 'device' else 'end-to-end time'}"


def _format_timing(result: Result | None, timed: Timed) -> str:
    """Format the time in ms, the ratio to the baseline, and the sign of the speed verdict.

    The ratio is left out if the speed verdict is inconclusive.
    """
    if result is None or result.timing is None:
        return "–"
    found = _compare_with_baseline(result, timed)
    calls = CleanCalls(result.timing, found.measure if found else choose_measure(result.timing))
    milliseconds = f"{estimate_time(calls).value / 1e6:.3f}{FIXED * _has_fixed_values(result)}"
    if found is None:
        return milliseconds if calls.estimate() else f"{milliseconds} ({SIGNS['inconclusive']})"
    if found.state == "inconclusive" or found.ratio is None:
        return f"{milliseconds} ({SIGNS[found.state]})"
    return f"{milliseconds} ({found.ratio.value:.2f}{SIGNS[found.state]})"


def _has_fixed_values(result: Result) -> bool:
    """Whether all timed calls of a result had the same input values."""
    return result.timing is not None and result.timing.values == "fixed"


def _compare_with_baseline(result: Result, timed: Timed) -> SpeedVerdict | None:
    """Return the speed verdict of ``result`` against the baseline's result on the same case.

    Return None if the calls of the two implementations were not interleaved.
    """
    name = find_baseline(result.case)
    base = timed.get((result.run, result.case, name))
    if base is None or base.timing is None or result.timing is None or name not in result.timing.interleaved_with:
        return None
    return decide_speed(result.timing, base.timing)


def _list_inconclusive(timed: Timed) -> Iterator[tuple[str, str]]:
    for result in timed.values():
        found = _compare_with_baseline(result, timed)
        if found is not None and found.state == "inconclusive":
            yield result.implementation, explain_no_verdict(found.reason)
