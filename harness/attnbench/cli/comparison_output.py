"""Output of ``attnbench compare``: the table of the terminal, and the files of --json, --html and --markdown."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click
from rich.table import Column, Table
from rich.text import Text

from attnbench.analysis.run_diff import WORSE, Change, Verdict
from attnbench.cli.options import OUTPUT_FILES
from attnbench.cli.terminal import make_console
from attnbench.records.types import SCHEMA
from attnbench.report.comparison.rows import SECTIONS
from attnbench.report.spelled import spell_out

if TYPE_CHECKING:
    # Not imported when the command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import Comparison

__all__ = ["print_comparison", "refuse_same_file", "write_comparison"]

# Text style of a verdict in the table. Verdicts that are not listed are red for a change to the worse, and green for a
# change to the better.
STYLES = {"same": "dim", "unknown": "yellow", "inconclusive": "yellow", "other": "yellow"}
# Most lines about what only one side has.
MOST_ONLY = 12
# Place of each verdict in the table: in the order of the sections of the page, and ``same`` last.
PLACES = {verdict: place for place, (_, _, verdicts, _) in enumerate(SECTIONS) for verdict in verdicts}


def refuse_same_file(given: Mapping[str, Any]) -> None:
    """Refuse a command line that writes two outputs to one file.

    Raises: UsageError with the names of the options.
    """
    options: dict[str, str] = {}
    for parameter, option in OUTPUT_FILES.items():
        if given[parameter] is None:
            continue
        name = given[parameter].name
        if name in options:
            raise click.UsageError(f"{options[name]} and {option} name the same file {name!r}: give each its own")
        options[name] = option


def write_comparison(found: Sequence[Change], content: "Comparison", given: Mapping[str, Any]) -> None:
    """Write the files of the options that are given."""
    if given["json_file"]:
        _write_json(found, given["json_file"])
    if given["markdown_file"]:
        from attnbench.report.comparison import markdown

        given["markdown_file"].write(markdown.render(content))
    if given["html_file"]:
        # Imported here, because matplotlib takes a second to import, and only a page needs its style sheets.
        from attnbench.report.comparison import page

        given["html_file"].write(page.render(content))


def print_comparison(
    found: Sequence[Change], content: "Comparison", given: Mapping[str, Any], *, quiet: Collection[Verdict]
) -> None:
    """Print the warnings to stderr and, without --json, all changes as a table, what became worse first.

    The table leaves out changes whose verdict is in ``quiet``. It shows the verdict ``same`` only for times, not for
    bytes, flop or kernel calls. It goes to stderr if standard output has a file.
    """
    for line in content.warnings:
        click.echo(f"warning: {line}", err=True)
    if given["json_file"]:
        return
    err = any(given[parameter] is not None and given[parameter].name == "-" for parameter in OUTPUT_FILES)
    if content.one_run:
        click.echo(f"{content.new} against {content.base}, timed with interleaved calls in the same processes", err=err)
    # Fold long case ids instead of cropping them: the end of an id, which names the call mode, must stay visible.
    case = Column("case", overflow="fold")
    table = Table("verdict", "implementation", "aspect", "from → to", case, box=None, pad_edge=False)
    for change in sorted(found, key=lambda one: PLACES.get(one.verdict, len(PLACES))):
        if change.verdict in quiet or (change.verdict == "same" and change.aspect != "time"):
            continue
        style = "red" if change.verdict in WORSE else STYLES.get(change.verdict, "green")
        texts = (change.implementation, change.aspect, change.told, change.case)
        table.add_row(Text(change.verdict, style=style), *(Text(spell_out(text)) for text in texts))
    if table.row_count:
        make_console(err=err).print(table)
    for one in content.only[:MOST_ONLY]:
        note = f": {one.note}" if one.note else ""
        click.echo(f"only in {one.side}: {one.implementation}, {one.count} ({one.what}){note}", err=err)
    if (left := len(content.only) - MOST_ONLY) > 0:
        click.echo(f"… and {left} more that are only in one; --html FILE lists all of them", err=err)
    click.echo(content.counts or "BASE and NEW have nothing in common to compare", err=err)


def _write_json(found: Sequence[Change], file: IO[str]) -> None:
    json.dump({"schema": SCHEMA, "changes": [asdict(change) for change in found]}, file, indent=1)
    file.write("\n")
