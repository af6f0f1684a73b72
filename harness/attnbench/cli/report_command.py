"""``attnbench report``: pages, plots and tables from stored runs."""

from pathlib import Path

import click

from attnbench.cli.options import options


@click.command("report")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@options("results", "reports")
def command(runs: tuple[str, ...], results: Path, reports: Path) -> int:
    """HTML page, plots, CSV and Markdown from stored runs.

    Each RUN is the id of a run, or its file; the newest run if none is named.
    """
    from attnbench.records.run_file import find, read
    from attnbench.report import write

    stored = [read(path) for path in find(results, runs)]
    for run in stored:
        for problem in run.problems:
            click.echo(f"warning: {problem}", err=True)
    click.echo(write(stored, reports))
    return 0
