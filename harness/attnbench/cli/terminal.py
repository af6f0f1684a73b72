"""Tables for a terminal."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.speed_verdict import SpeedVerdict, State, judge_speed
from attnbench.analysis.stats import measure_of, time_of, time_told
from attnbench.cli.matrix import LEGEND, Cell, Matrix, failures, matrix
from attnbench.plugins.registry import baseline
from attnbench.records.types import FAILURES, Result, pass_of
from attnbench.report.numbers import bytes_text

__all__ = ["console", "print_findings", "print_timings"]

# Checks whose first failure is printed in full; the run file has them all.
PRINTED = 12
STYLES = {"✗": "bold red", "✓": "green", "~": "yellow", "–": "dim", "·": "dim"}
# What stands behind a ratio: nobody reads it without its state.
SIGNS: dict[State, str] = {"faster": "−", "slower": "+", "same": "=", "unknown": "?", "inconclusive": "!"}
TIMING_LEGEND = (
    "− faster, + slower, = the same; ? not to be told from these samples; ! the machine was too busy to tell"
)
# Width of a table where no terminal sets one.
PLAIN_WIDTH = 110

# Results that have a timing, by run, case and implementation.
Timed = Mapping[tuple[str, str, str], Result]


def console(*, err: bool = False) -> Console:
    """Console as wide as the terminal, or wide enough where there is none."""
    made = Console(stderr=err, highlight=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, width=PLAIN_WIDTH)


def print_findings(results: Iterable[Result], *, err: bool = False) -> None:
    """Matrix of chapters and implementations, then what failed."""
    stored = list(results)
    cells = matrix(stored)
    names = list(dict.fromkeys(result.implementation for result in stored))
    out = console(err=err)
    for some in _columns(cells, names, out.width):
        table = Table("chapter", *some, box=None, pad_edge=False)
        for chapter, row in cells.items():
            table.add_row(chapter, *(_cell(row.get(name)) for name in some))
        out.print(table)
        out.print()
    out.print(Text(LEGEND, style="dim"))
    _print_failures(stored, err=err)


def _columns(cells: Matrix, names: Sequence[str], width: int) -> Iterator[list[str]]:
    """Implementations that stand side by side, as many as fit."""
    left = max(map(len, ("chapter", *cells)))
    some: list[str] = []
    used = left
    for name in names:
        needs = 2 + max(len(name), *(len(_cell(row.get(name))) for row in cells.values()), 0)
        if some and used + needs > width:
            yield some
            some, used = [], left
        some.append(name)
        used += needs
    if some or not names:
        yield some


def _cell(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    marks = [(f"{sign} {count}", STYLES[sign]) for sign, count in cell.marks()]
    ratio = [(cell.ratio, "dim")] if cell.ratio else []
    return Text(" ").join(Text(*part) for part in (*marks, *ratio))


def _print_failures(results: Sequence[Result], *, err: bool) -> None:
    """One failure of each check in full, then why the rest was refused or not run, then a verdict."""
    broken = failures(results)
    for failure in broken[:PRINTED]:
        click.echo(f"\n{failure.title}", err=err)
        click.echo(f"  {failure.finding.reason}", err=err)
        click.echo(f"  {failure.reproduce}", err=err)
    if len(broken) > PRINTED:
        left = len(broken) - PRINTED
        click.echo(f"\n… and {left} more checks that failed; --markdown FILE has them all", err=err)
    for status, words in (("unsupported", "refused"), ("not_run", "not run")):
        told = ((r.implementation, f.reason) for r in results for f in r.findings if f.status == status)
        _print_left_out(words, "finding", told, err=err)
    # What is refused and all the same tried may have something to say.
    warned = (
        (r.implementation, f"{f.reason}: {warning}")
        for r in results
        for f in r.findings
        if f.status == "unsupported"
        for warning in f.warnings
    )
    _print_left_out("warning", "refused case", warned, err=err)
    counts = Counter(finding.status for result in results for finding in result.findings)
    failed = sum(counts[status] for status in FAILURES)
    asked = counts.total() - counts["unsupported"] - counts["not_run"]
    click.echo(f"{failed} of {asked} findings failed" if failed else f"all {asked} findings held", err=err)


def _print_left_out(words: str, thing: str, told: Iterable[tuple[str, str]], *, err: bool) -> None:
    """A line for each implementation: how many were left out, and the commonest reason."""
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, reason in told:
        reasons[name][reason] += 1
    for name, found in reasons.items():
        (reason, _), *others = found.most_common()
        more = f" (and {len(others)} more reason{'s' * (len(others) > 1)})" if others else ""
        click.echo(f"{words}: {name}, {found.total()} {thing}{'s' * (found.total() != 1)}: {reason}{more}", err=err)


def print_timings(results: Iterable[Result], *, err: bool = False) -> None:
    """Time and memory of every implementation, pass and length, with what contests with the baseline came to."""
    from attnbench.report.tables import series_of

    stored = list(results)
    timed = {(r.run, r.case, r.implementation): r for r in stored if r.timing}
    out = console(err=err)
    parts: defaultdict[str, list[Result]] = defaultdict(list)
    # What cases have in common, whatever their length, pass, dtype and device.
    forms = {key: series_of(result.case).rsplit("/", 2)[0] for key, result in timed.items()}
    several = len(set(forms.values())) > 1
    for key, result in timed.items():
        *_, dtype, device, _ = result.case.split("/")
        form = f", {forms[key]}" if several else ""
        parts[f"{pass_of(result.case)}, {dtype}{_where(result, device)}{form}"].append(result)
    for name, part in parts.items():
        out.print(Text(f"{name}: ms (times the reference's)", style="italic"), soft_wrap=True)
        out.print(_by_length(part, lambda result: _timing(result, timed)))
        if any(r.memory for r in part):
            out.print(Text(f"{name}: peak memory above the inputs", style="italic"), soft_wrap=True)
            out.print(_by_length(part, _peak))
    if timed:
        out.print(Text(TIMING_LEGEND, style="dim"))
    untimed = ((r.implementation, r.untimed) for r in stored if r.untimed)
    _print_left_out("not timed", "call", untimed, err=err)
    _print_left_out("inconclusive", "contest", _inconclusive(timed), err=err)


def _by_length(part: Sequence[Result], cell: Callable[[Result | None], str]) -> Table:
    """A row for each implementation, a column for each length."""
    from attnbench.report.tables import length_of

    lengths = sorted({length_of(r.case) for r in part})
    table = Table("implementation", *map(str, lengths), box=None, pad_edge=False)
    for implementation in dict.fromkeys(r.implementation for r in part):
        of = {length_of(r.case): r for r in part if r.implementation == implementation}
        table.add_row(implementation, *(cell(of.get(n)) for n in lengths))
    return table


def _peak(result: Result | None) -> str:
    return bytes_text(result.memory.peak_bytes) if result and result.memory else "–"


def _where(result: Result, device: str) -> str:
    """Of a call on a device, which of its two times is told."""
    if device == "cpu" or result.timing is None:
        return ""
    return f", {device}, {'on the device' if measure_of(result.timing) == 'device' else 'from end to end'}"


def _timing(result: Result | None, timed: Timed) -> str:
    """Milliseconds, and the ratio with the sign of its state; no ratio where it says nothing."""
    if result is None or result.timing is None:
        return "–"
    found = _contest(result, timed)
    measure = found.measure if found else measure_of(result.timing)
    shown = f"{time_told(result.timing, measure).value / 1e6:.3f}"
    if found is None:
        return shown if time_of(result.timing, measure) else f"{shown} ({SIGNS['inconclusive']})"
    if found.state == "inconclusive" or found.ratio is None:
        return f"{shown} ({SIGNS[found.state]})"
    return f"{shown} ({found.ratio.value:.2f}{SIGNS[found.state]})"


def _contest(result: Result, timed: Timed) -> SpeedVerdict | None:
    """Contest with the baseline, where both took turns."""
    name = baseline(result.case)
    base = timed.get((result.run, result.case, name))
    if base is None or base.timing is None or result.timing is None or name not in result.timing.interleaved_with:
        return None
    return judge_speed(result.timing, base.timing)


def _inconclusive(timed: Timed) -> Iterator[tuple[str, str]]:
    for result in timed.values():
        found = _contest(result, timed)
        if found is not None and found.state == "inconclusive":
            yield result.implementation, found.reason
