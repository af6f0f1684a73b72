"""Tables for a terminal."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnbench.checks.catalogue import CHAPTERS, checks
from attnbench.records import FAILURES, Finding, Result, reproduce_line

__all__ = ["console", "print_findings", "print_timings"]

# Checks whose first failure is printed in full; the run file has them all.
PRINTED = 12
# Width of a table where no terminal sets one.
PLAIN_WIDTH = 110


def console(*, err: bool = False) -> Console:
    """Console as wide as the terminal, or wide enough where there is none."""
    made = Console(stderr=err, highlight=False)
    return made if made.is_terminal else Console(stderr=err, highlight=False, width=PLAIN_WIDTH)


def print_findings(results: Iterable[Result], *, err: bool = False) -> None:
    """Matrix of implementations and chapters, then what failed."""
    by_cell: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    stored = list(results)
    for result in stored:
        for finding in result.findings:
            known = checks().get(finding.check)
            by_cell[result.implementation, known.chapter if known else "?"][finding.status] += 1
    chapters = [chapter for chapter in CHAPTERS if any(key[1] == chapter for key in by_cell)]
    table = Table("implementation", *chapters, title_justify="left", box=None, pad_edge=False)
    for name in dict.fromkeys(result.implementation for result in stored):
        table.add_row(name, *(_cell(by_cell[name, chapter]) for chapter in chapters))
    out = console(err=err)
    out.print(table)
    out.print(Text("✓ passed   ✗ failed   ~ expected to fail   – refused, with a reason   · not run", style="dim"))
    _print_failures(stored, err=err)


def _cell(counts: Counter[str]) -> Text:
    failed = sum(counts[status] for status in FAILURES)
    parts = [
        (f"✗ {failed} ", "bold red", failed),
        (f"✓ {counts['passed']} ", "green", counts["passed"]),
        (f"~ {counts['expected_failure']} ", "yellow", counts["expected_failure"]),
        (f"– {counts['unsupported']} ", "dim", counts["unsupported"]),
        (f"· {counts['not_run']} ", "dim", counts["not_run"]),
    ]
    return Text.assemble(*((text, style) for text, style, count in parts if count))


def _print_failures(results: Sequence[Result], *, err: bool) -> None:
    """One failure of each check in full, then why the rest was refused or not run, then a verdict."""
    failures: defaultdict[tuple[str, str], list[tuple[Result, Finding]]] = defaultdict(list)
    for result in results:
        for finding in result.findings:
            if finding.status in FAILURES:
                failures[result.implementation, finding.check].append((result, finding))
    for (name, check), found in list(failures.items())[:PRINTED]:
        result, finding = found[0]
        others = f", and on {len(found) - 1} more cases" if len(found) > 1 else ""
        click.echo(f"\n{name}  {check}: {finding.status}{others}", err=err)
        click.echo(f"  {finding.reason}", err=err)
        click.echo(f"  {reproduce_line(name, result.case, check)}", err=err)
    if len(failures) > PRINTED:
        click.echo(f"\n… and {len(failures) - PRINTED} more checks that failed, in the run file", err=err)
    for status, words in (("unsupported", "refused"), ("not_run", "not run")):
        told = ((r.implementation, f.reason) for r in results for f in r.findings if f.status == status)
        _print_left_out(words, "findings", told, err=err)
    counts = Counter(finding.status for result in results for finding in result.findings)
    failed = sum(counts[status] for status in FAILURES)
    asked = counts.total() - counts["unsupported"] - counts["not_run"]
    click.echo(f"{failed} of {asked} findings failed" if failed else f"all {asked} findings held", err=err)


def _print_left_out(words: str, things: str, told: Iterable[tuple[str, str]], *, err: bool) -> None:
    """A line for each implementation: how many were left out, and the commonest reason."""
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, reason in told:
        reasons[name][reason] += 1
    for name, found in reasons.items():
        (reason, _), *others = found.most_common()
        more = f" (and {len(others)} more)" if others else ""
        click.echo(f"{words}: {name}, {found.total()} {things}: {reason}{more}", err=err)


def print_timings(results: Iterable[Result], *, err: bool = False) -> None:
    """Time of every implementation and length, one table per pass, with the ratio to the reference's."""
    from attnbench.report.tables import timings

    stored = list(results)
    table = timings(stored)
    out = console(err=err)
    for name, part in table.groupby("pass", sort=False):
        lengths = sorted(part["length"].unique())
        shown = Table("implementation", *(f"{n}" for n in lengths), title=f"{name}: ms (ratio to the reference)")
        shown.box, shown.pad_edge, shown.title_justify = None, False, "left"
        for implementation, rows in part.groupby("implementation", sort=False):
            by_length = {row["length"]: row for _, row in rows.iterrows()}
            shown.add_row(str(implementation), *(_timing(by_length.get(n)) for n in lengths))
        out.print(shown)
    untimed = ((r.implementation, r.untimed) for r in stored if r.untimed)
    _print_left_out("not timed", "calls", untimed, err=err)


def _timing(row: Any) -> str:
    if row is None:
        return "–"
    ratio = f" ({row['ratio']:.2f}×)" if row["ratio"] == row["ratio"] else ""
    return f"{row['median_ns'] / 1e6:.3f}{ratio}"
