"""Output of ``attnbench compare``: the table of the terminal, and the files of --json, --html and --markdown."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

import click

from attnbench.analysis.run_diff import Change, Verdict
from attnbench.api.comparing import list_notes, tabulate_changes
from attnbench.cli.output_files import OutputFiles
from attnbench.records.types import SCHEMA
from attnbench.report.console import Console
from attnbench.report.text_table import print_tables
from attnbench.words.changes import describe_change

if TYPE_CHECKING:
    # Not imported when the command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import ComparisonContent

__all__ = ["print_comparison", "write_comparison"]


def write_comparison(found: Sequence[Change], content: "ComparisonContent", files: OutputFiles) -> None:
    """Write the files that were asked for."""
    if files.json_file:
        _write_json(found, files.json_file)
    if files.markdown_file:
        from attnbench.report.comparison import markdown

        files.markdown_file.write(markdown.render(content))
    if files.html_file:
        # Imported here, because matplotlib takes a second to import, and only a page needs its style sheets.
        from attnbench.report.comparison import page

        files.html_file.write(page.render(content))


def print_comparison(
    found: Sequence[Change], content: "ComparisonContent", files: OutputFiles, *, quiet: Collection[Verdict]
) -> None:
    """Print the warnings to stderr and, without --json, all changes as a table, what became worse first.

    The table leaves out changes whose verdict is in ``quiet``. It shows the verdict ``same`` only for times, not for
    bytes, flop or kernel calls. It goes to stderr if standard output has a file.
    """
    for line in content.warnings:
        click.echo(f"warning: {line}", err=True)
    if files.json_file:
        return
    if content.one_run:
        click.echo(
            f"{content.new} against {content.base}, timed with interleaved calls in the same processes",
            err=files.to_stderr,
        )
    print_tables(tabulate_changes(found, quiet=quiet), Console.of(err=files.to_stderr))
    for line in list_notes(content):
        click.echo(line, err=files.to_stderr)


def _write_json(found: Sequence[Change], file: IO[str]) -> None:
    json.dump({"schema": SCHEMA, "changes": [_to_json(change) for change in found]}, file, indent=1)
    file.write("\n")


def _to_json(change: Change) -> dict[str, Any]:
    numbers = {name: getattr(change, name) for name in ("base", "new", "factor")}
    return {
        "implementation": change.implementation,
        "case": change.case,
        "aspect": change.aspect,
        "verdict": change.verdict,
        "told": describe_change(change),
    } | {name: None if number is None else asdict(number) for name, number in numbers.items()}
