"""Tables of findings and timings for a terminal."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.root_causes import find_root_causes
from attnbench.analysis.speed_verdict import SpeedVerdict, State, decide_speed
from attnbench.analysis.stats import CleanCalls, choose_measure, estimate_time
from attnbench.api.printed import describe_cause, format_reasons
from attnbench.cases import CaseId
from attnbench.cli.matrix import LEGEND, Cell, Matrix, build_matrix
from attnbench.plugins.registry import find_baseline
from attnbench.records.types import CHANGED_MIND, FAILURES, Result, find_pass
from attnbench.report.numbers import format_bytes

__all__ = ["make_console", "print_findings", "print_timings"]

# Number of causes of failures that are printed. The run file has all failures.
PRINTED = 12
STYLES = {"✗": "bold red", "✓": "green", "~": "yellow", "–": "dim", "·": "dim"}
# Sign after each ratio, by speed verdict: a ratio alone does not say whether the difference is significant.
SIGNS: dict[State, str] = {"faster": "−", "slower": "+", "same": "=", "unknown": "?", "inconclusive": "!"}
TIMING_LEGEND = (
    "− faster, + slower, = same; ? unknown: not enough samples to tell; ! inconclusive: measurement disturbed"
)
# Mark of a time whose calls all had the same input values.
FIXED = "*"
FIXED_LEGEND = (
    f"{FIXED} every timed call had the same input values (policy fixed_values), so results may have been kept from "
    "earlier calls"
)
# Width of a table in characters, if the output is not a terminal.
PLAIN_WIDTH = 110

# Results that have a timing; the key is (run, case, implementation).
Timed = Mapping[tuple[str, str, str], Result]


def make_console(*, err: bool = False) -> Console:
    """Return a console as wide as the terminal, or ``PLAIN_WIDTH`` wide if the output is not a terminal."""
    made = Console(stderr=err, highlight=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, width=PLAIN_WIDTH)


def print_findings(
    results: Iterable[Result],
    *,
    coverage: Sequence[str] = (),
    undecided: Mapping[str, str] | None = None,
    err: bool = False,
) -> None:
    """Print findings by chapter (group of checks) and implementation, then failures, what was checked, and a verdict.

    ``coverage`` are the lines about what was checked. ``undecided`` maps each implementation without a verdict to the
    reason.
    """
    stored = list(results)
    cells = build_matrix(stored)
    names = list(dict.fromkeys(result.implementation for result in stored))
    out = make_console(err=err)
    for some in _split_columns(cells, names, out.width):
        table = Table("chapter", *some, box=None, pad_edge=False)
        for chapter, row in cells.items():
            table.add_row(chapter, *(_format_cell(row.get(name)) for name in some))
        out.print(table)
        out.print()
    out.print(Text(LEGEND, style="dim"))
    _print_failures(stored, err=err)
    undecided = undecided or {}
    for line in (*coverage, *(f"no verdict on {name}: {reason}" for name, reason in undecided.items())):
        click.echo(line, err=err)
    _print_verdict(stored, undecided, err=err)


def _split_columns(cells: Matrix, names: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield groups of implementation names; the columns of two or more names fit in ``width`` characters."""
    left = max(map(len, ("chapter", *cells)))
    some: list[str] = []
    used = left
    for name in names:
        needs = 2 + max(len(name), *(len(_format_cell(row.get(name))) for row in cells.values()), 0)
        if some and used + needs > width:
            yield some
            some, used = [], left
        some.append(name)
        used += needs
    if some or not names:
        yield some


def _format_cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    marks = [(f"{sign} {count}", STYLES[sign]) for sign, count in cell.list_marks()]
    ratio = [(cell.ratio, "dim")] if cell.ratio else []
    return Text(" ").join(Text(*part) for part in (*marks, *ratio))


def _print_failures(results: Sequence[Result], *, err: bool) -> None:
    """Print the causes of failures, the reasons for findings that were refused or not run, and warnings."""
    causes = find_root_causes(results)
    for cause in causes[:PRINTED]:
        click.echo(f"\n{cause.implementation}  {cause.title}", err=err)
        for line in describe_cause(cause):
            click.echo(f"  {line}", err=err)
    if len(causes) > PRINTED:
        left = len(causes) - PRINTED
        click.echo(f"\n… and {left} more causes of failures; --markdown FILE lists all of them", err=err)
    for status, words in (("unsupported", "refused"), ("not_run", "not run")):
        reasons = ((r.implementation, f.reason) for r in results for f in r.findings if f.status == status)
        _print_left_out(words, "finding", reasons, err=err)
    # The harness also calls an implementation on cases that the implementation refuses. The
    # warnings say what these calls revealed.
    warned = (
        (r.implementation, f"{f.reason}: {warning}")
        for r in results
        for f in r.findings
        if f.status == "unsupported"
        for warning in f.warnings
        if not warning.startswith(CHANGED_MIND)
    )
    _print_left_out("warning", "refused case", warned, err=err)


def _print_verdict(results: Sequence[Result], undecided: Mapping[str, str], *, err: bool) -> None:
    """Print how many findings failed.

    If none failed, print how many findings held, without the findings of implementations in ``undecided``.
    """
    failed = sum(finding.status in FAILURES for result in results for finding in result.findings)
    decided = [result for result in results if failed or result.implementation not in undecided]
    if undecided and not decided:
        return
    counts = Counter(finding.status for result in decided for finding in result.findings)
    asked = counts.total() - counts["unsupported"] - counts["not_run"]
    others = " of the others" if undecided else ""
    click.echo(f"{failed} of {asked} findings failed" if failed else f"all {asked} findings{others} held", err=err)


def _print_left_out(words: str, thing: str, named_reasons: Iterable[tuple[str, str]], *, err: bool) -> None:
    """Print for each implementation how many findings, cases, calls or comparisons were left out.

    ``thing`` is the word for what was left out. A line begins with ``words``, and ends with the
    reasons.
    """
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, reason in named_reasons:
        reasons[name][reason] += 1
    for name, found in reasons.items():
        left_out = f"{found.total()} {thing}{'s' * (found.total() != 1)}"
        click.echo(f"{words}: {name}, {left_out}: {format_reasons(found)}", err=err)


def print_timings(results: Iterable[Result], *, err: bool = False) -> None:
    """Print time and memory of every implementation, pass and length, with the speed verdicts against the baseline."""
    stored = list(results)
    timed = {(r.run, r.case, r.implementation): r for r in stored if r.timing}
    out = make_console(err=err)
    parts: defaultdict[str, list[Result]] = defaultdict(list)
    several = len({CaseId.parse(result.case).form for result in timed.values()}) > 1
    for result in timed.values():
        case = CaseId.parse(result.case)
        form = f", {case.form}" if several else ""
        parts[f"{find_pass(result.case)}, {case.dtype}{_describe_clock(result, case.device)}{form}"].append(result)
    for name, part in parts.items():
        out.print(Text(f"{name}: ms (ratio to the reference)", style="italic"), soft_wrap=True)
        out.print(_tabulate_by_length(part, lambda result: _format_timing(result, timed)))
        if any(r.memory for r in part):
            out.print(Text(f"{name}: peak memory above the inputs", style="italic"), soft_wrap=True)
            out.print(_tabulate_by_length(part, _format_peak))
    if timed:
        out.print(Text(TIMING_LEGEND, style="dim"))
    if any(_has_fixed_values(result) for result in timed.values()):
        out.print(Text(FIXED_LEGEND, style="dim"), soft_wrap=True)
    untimed = ((r.implementation, r.untimed) for r in stored if r.untimed)
    _print_left_out("not timed", "call", untimed, err=err)
    _print_left_out("inconclusive", "comparison", _list_inconclusive(timed), err=err)


def _tabulate_by_length(part: Sequence[Result], cell: Callable[[Result | None], str]) -> Table:
    """Return a table with a row for each implementation and a column for each length."""
    lengths = sorted({CaseId.parse(r.case).length for r in part})
    table = Table("implementation", *map(str, lengths), box=None, pad_edge=False)
    for implementation in dict.fromkeys(r.implementation for r in part):
        of = {CaseId.parse(r.case).length: r for r in part if r.implementation == implementation}
        table.add_row(implementation, *(cell(of.get(n)) for n in lengths))
    return table


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
            yield result.implementation, found.reason
