"""Output of ``attnbench compare``: the table of the terminal, and the files of --json, --html and --markdown."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

import click

from attnbench.analysis.run_diff import Change, Verdict
from attnbench.api.comparing import list_notes, tabulate_changes
from attnbench.api.text_tables import print_tables
from attnbench.cli.options import OUTPUT_FILES
from attnbench.cli.terminal import make_console
from attnbench.records.types import SCHEMA
from attnbench.words.changes import describe_change

if TYPE_CHECKING:
    # Not imported when the command starts, because it imports pandas, which takes a second.
    from attnbench.report.comparison.content import Comparison

__all__ = ["Files", "print_comparison", "write_comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files that a comparison is written to; - is standard output."""

    json_file: IO[str] | None
    html_file: IO[str] | None
    markdown_file: IO[str] | None

    def refuse_same(self) -> None:
        """Refuse to write two outputs to one file.

        Raises: UsageError with the names of the options.
        """
        options: dict[str, str] = {}
        for parameter, option in OUTPUT_FILES.items():
            file = getattr(self, parameter)
            if file is not None and (other := options.setdefault(file.name, option)) != option:
                raise click.UsageError(f"{other} and {option} name the same file {file.name!r}: give each its own")

    @property
    def to_stderr(self) -> bool:
        """Whether standard output has a file, so that the table goes to standard error."""
        files = (self.json_file, self.html_file, self.markdown_file)
        return any(file is not None and file.name == "-" for file in files)


def write_comparison(found: Sequence[Change], content: "Comparison", files: Files) -> None:
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
    found: Sequence[Change], content: "Comparison", files: Files, *, quiet: Collection[Verdict]
) -> None:
    """Print the warnings to stderr and, without --json, all changes as a table, what became worse first.

    The table leaves out changes whose verdict is in ``quiet``. It shows the verdict ``same`` only for times, not for
    bytes, flop or kernel calls. It goes to stderr if standard output has a file.
    """
    for line in content.warnings:
        click.echo(f"warning: {line}", err=True)
    if files.json_file:
        return
    err = files.to_stderr
    if content.one_run:
        click.echo(f"{content.new} against {content.base}, timed with interleaved calls in the same processes", err=err)
    print_tables(tabulate_changes(found, quiet=quiet), make_console(err=err))
    for line in list_notes(content):
        click.echo(line, err=err)


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
