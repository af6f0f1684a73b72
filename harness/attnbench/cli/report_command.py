"""``attnbench report``: HTML pages, plots and tables from stored runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import click

from attnbench.cli.options import options
from attnbench.cli.recording import INCONCLUSIVE
from attnbench.jobs.job import RunJob, build


@click.command("report")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--since", metavar="RUN", help="Use also this run and every newer run in the folder of run files.")
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="TEXT=ADDRESS",
    callback=lambda _context, _option, given: tuple(map(_read_link, given)),
    help="Link at the end of the page, such as to the history by asv; an https address or a path from the page.",
)
@options("results", "reports")
def command(runs: tuple[str, ...], since: str | None, links: tuple[tuple[str, str], ...], **folders: str | None) -> int:
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
    page = write_content(content, reports, links)
    print_outcome(content.summary, content.runs, reports=reports)
    click.echo(page)
    return INCONCLUSIVE if content.summary.incomplete else 0


def _read_link(given: str) -> tuple[str, str]:
    text, separator, address = given.partition("=")
    if not (text and separator and address) or urlsplit(address).scheme not in {"", "http", "https"}:
        raise click.BadParameter(f"{given!r} is not TEXT=ADDRESS, with an https address or a path")
    return text, address


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
