"""``attnbench history``: where stored counters and ratios moved from commit to commit."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import click
import msgspec

from attnbench.cli.options import JsonFile
from attnbench.cli.output_files import OutputFiles
from attnbench.report import markdown_text
from attnbench.report.console import Console
from attnbench.report.text_table import TextTable, print_tables
from attnhistory.points import Reading, Skipped
from attnhistory.series import History, make_history
from attnhistory.sources import HistoryError, find_default_paths, read_paths
from attnhistory.texts import TITLE, list_commands, list_notes, list_skipped, tabulate

__all__ = ["command"]


@click.command("history")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--implementation", "names", multiple=True, metavar="NAME", help="Only this implementation; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Also show the series without steps.")
@click.option("--json", "json_file", type=JsonFile(), help="File for all series as JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=JsonFile(), help="File for the tables as Markdown; - is stdout.")
@click.option("--html", "html_file", type=JsonFile(), help="File for a page with charts; - is stdout.")
def command(
    *,
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    everything: bool,
    json_file: IO[str] | None,
    markdown_file: IO[str] | None,
    html_file: IO[str] | None,
) -> int:
    """Show between which commits stored counters and ratios moved.

    A PATH is a folder of results, a result file of asv, a run file, or asv.conf.json. Without PATH, asv.conf.json and
    the folder results are read. An exact counter has a step wherever it differs, even by one byte. A ratio has one
    where its change is beyond 5 %.
    """
    files = OutputFiles(json_file=json_file, markdown_file=markdown_file, html_file=html_file)
    files.refuse_same()
    try:
        history = _read(paths, names)
    except HistoryError as error:
        raise click.UsageError(str(error)) from error
    tables = tabulate(history, everything=everything)
    if files.json_file:
        files.json_file.write(msgspec.json.format(msgspec.json.encode(history), indent=1).decode() + "\n")
    if files.markdown_file:
        files.markdown_file.write(_write_markdown(history, tables))
    if files.html_file:
        # Imported here, because only a page needs Jinja and the style sheets.
        from attnhistory.page import render

        files.html_file.write(render(history, everything=everything))
    for line in list_skipped(history):
        click.echo(f"warning: {line}", err=True)
    print_tables(tables, Console.of(err=files.to_stderr))
    for line in (*list_notes(history), *list_commands(history)):
        click.echo(line, err=files.to_stderr)
    return 0


def _read(paths: Sequence[Path], names: Sequence[str]) -> History:
    """Return the history of some implementations, by default of all.

    Raises: HistoryError where nothing can be read, or an implementation has no value.
    """
    readings, skipped = [], []
    for found in read_paths(paths or find_default_paths(Path.cwd())):
        if isinstance(found, Skipped):
            skipped.append(found)
        else:
            readings.append(found)
    _refuse_nothing(readings, skipped, names)
    return make_history((one for one in readings if not names or one.key.implementation in names), skipped)


def _refuse_nothing(readings: Sequence[Reading], skipped: Sequence[Skipped], names: Sequence[str]) -> None:
    """Refuse files without a value, and names without a value.

    Raises: HistoryError with the remedy.
    """
    if not readings:
        why = f" ({skipped[0].path}: {' '.join(skipped[0].reason.split())})" if skipped else ""
        raise HistoryError(
            f"no file has a counter or a ratio{why}: name a folder of asv's results of attnbench.asv, or of runs"
        )
    known = sorted({one.key.implementation for one in readings})
    if unknown := [name for name in names if name not in known]:
        raise HistoryError(f"--implementation: no file has {unknown[0]!r}; there are {', '.join(known)}")


def _write_markdown(history: History, tables: Sequence[TextTable]) -> str:
    """Return the tables and the lines below them as Markdown."""
    escape = markdown_text.escape
    parts = [f"## {TITLE}", *map(escape, list_notes(history))]
    for table in tables:
        rows = [[escape(str(cell)) for cell in row] for row in table.rows]
        parts += [f"### {escape(table.title)}", markdown_text.format_table(table.head, rows)]
    parts += map(escape, (*list_commands(history), *list_skipped(history)))
    return "\n\n".join(parts) + "\n"
