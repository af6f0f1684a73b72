"""Tables of findings and timings for a terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.analysis.root_causes import find_root_causes
from attnbench.api.printed import PLAIN_WIDTH, print_tables
from attnbench.api.timing_table import list_left_out, list_untimed, tabulate_times
from attnbench.cli.matrix import LEGEND, Cell, Matrix, build_matrix
from attnbench.records.types import CHANGED_MIND, FAILURES, Result
from attnbench.words.causes import describe_cause

__all__ = ["make_console", "print_findings", "print_timings"]

# Number of causes of failures that are printed. The run file has all failures.
PRINTED = 12
STYLES = {"✗": "bold red", "✓": "green", "~": "yellow", "–": "dim", "·": "dim"}


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
    """Print for each implementation how many findings or cases were left out; see ``list_left_out``."""
    for line in list_left_out(words, thing, named_reasons):
        click.echo(line, err=err)


def print_timings(results: Iterable[Result], *, err: bool = False) -> None:
    """Print time and memory of every implementation, pass and length, with the speed verdicts against the baseline."""
    stored = list(results)
    out = make_console(err=err)
    print_tables(tabulate_times(stored), out)
    for line in list_untimed(stored):
        click.echo(line, err=err)
