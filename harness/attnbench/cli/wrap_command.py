"""``attnbench wrap``: print the declaration of a function or a class that is called in another way."""

from pathlib import Path
from typing import Any

import click

from attnbench.api.conventions import find_convention
from attnbench.api.execution import make_session
from attnbench.cli.options import complete_names, options
from attnbench.jobs.job import Job, build
from attnbench.plugins.file_objects import read_name
from attnbench.processes.candidate_requests import Outcome
from attnbench.processes.convention_requests import AsItIs, NoConvention
from attnbench.words.conventions import describe_trial
from attnbench.words.findings import describe_facts
from attnbench.words.wrappers import write_wrapper


@click.command("wrap")
@click.argument("name", shell_complete=complete_names)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.py",
    help="Write the file, which must stand beside the wrapped one, in place of printing it.",
)
@options("timeout", "threads")
def command(name: str, output: Path | None, **raw: Any) -> int:
    """Find out how the function or module class NAME is made and called, and print a file that declares it.

    NAME is path/to/file.py:attribute or package.module:attribute. Look at what is printed, save it, and check the saved
    file. Exit code 0: the object gives the right result by the printed declaration, or as it is; 1: no usual way gives
    the right result, and a draft is printed; 2: usage error.
    """
    name = read_name(name)
    if ":" not in name:
        raise click.UsageError(f"NAME must be path/to/file.py:attribute or package.module:attribute, got {name!r}")
    if output is not None and output.exists():
        raise click.UsageError(f"--output: {output} exists: name another file")
    with make_session(build(Job, raw)) as session:
        found = find_convention(session, name)
    if isinstance(found, Outcome):
        raise click.UsageError(f"{name}: {describe_facts(found.facts)}")
    if isinstance(found, AsItIs | NoConvention):
        for line in describe_trial(name, found):
            click.echo(line, err=True)
    if not isinstance(found, AsItIs):
        source = write_wrapper(name, found)
        if output is None:
            click.echo(source, nl=False)
        else:
            output.write_text(source, encoding="utf-8")
    return 1 if isinstance(found, NoConvention) else 0
