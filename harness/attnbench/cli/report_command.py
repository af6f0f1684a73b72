"""``attnbench report``: HTML pages, plots and tables from stored runs."""

from pathlib import Path

import click

from attnbench.cli.options import options


@click.command("report")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@options("results", "reports")
def command(runs: tuple[str, ...], results: Path, reports: Path) -> int:
    """Write an HTML page, plots, CSV and Markdown from stored runs.

    Each RUN is the id of a run or the path of its file. Without RUN the newest run is used.
    """
    from attnbench.records.run_file import find_runs, read_run
    from attnbench.report import write

    stored = [read_run(path) for path in find_runs(results, runs)]
    for run in stored:
        for problem in run.problems:
            click.echo(f"warning: {problem}", err=True)
    click.echo(write(stored, reports))
    return 0
