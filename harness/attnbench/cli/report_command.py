"""``attnbench report``: HTML pages, plots and tables from stored runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import click

from attnbench.cli.options import options
from attnbench.cli.recording import INCONCLUSIVE
from attnbench.jobs.job import RunJob, build


@click.command("report")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--since", metavar="RUN", help="Use also this run and every newer run in the folder of run files.")
@options("results", "reports")
def command(runs: tuple[str, ...], since: str | None, **folders: str | None) -> int:
    """Write an HTML page, plots, CSV and Markdown from stored runs.

    Each RUN is the id of a run or the path of its file. Without RUN the newest run is used. The table of the
    implementations and what to use are printed, and as the last line the path of the page. Exit code 3: a run is
    incomplete, or a part of it cannot be read.
    """
    from attnbench.analysis.completeness import list_damage
    from attnbench.cli.terminal import print_outcome
    from attnbench.records.compact_reading import read_runs
    from attnbench.records.run_file import find_empty_runs, find_runs, find_runs_since
    from attnbench.report import collect, write_content

    job = build(RunJob, folders)
    results, reports = job.results, job.reports
    named = find_runs(results, runs) if runs or since is None else []
    later = [] if since is None else find_runs_since(results, since)
    with _pause_collection():
        stored = read_runs([*dict.fromkeys([*named, *later])])
    if later or not runs:
        for name in find_empty_runs(results, (later or named)[0]):
            click.echo(
                f"warning: the newer run {name} has no results: it was interrupted, or is still running", err=True
            )
    for run in stored:
        for problem in list_damage(run):
            click.echo(f"warning: {problem}", err=True)
    with _pause_collection():
        content = collect(stored)
    page = write_content(content, reports)
    print_outcome(content.summary, content.runs, reports=reports)
    click.echo(page)
    return INCONCLUSIVE if content.summary.incomplete else 0


@contextmanager
def _pause_collection() -> Iterator[None]:
    """Pause Python's search for unused cycles of objects.

    A report reads and makes millions of objects without cycles, and the searches would look at all of them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
