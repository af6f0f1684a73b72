"""``attnbench verify``: judge the output of attention that another program stored in a file."""

from pathlib import Path
from typing import Any

import click

from attnbench.api.execution import make_session
from attnbench.cli.options import options
from attnbench.jobs.job import Job, build
from attnbench.processes.oracle_requests import VerifyFile
from attnbench.processes.request import Fault
from attnbench.words.findings import describe_facts
from attnbench.words.say import say
from attnbench.words.verification import RIGHT, WRONG


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@options("threads")
def command(file: Path, **raw: Any) -> int:
    """Judge the output of attention that FILE (.npz or .safetensors) has beside the arguments of the call.

    Exit code 0: the output is right within the rounding error of its dtype; 1: it is wrong; 2: the file cannot be
    judged.
    """
    with make_session(build(Job, raw)) as session:
        found = session.ask_oracle(VerifyFile(path=str(file)))
    if isinstance(found, Fault):
        raise click.UsageError(found.reason)
    click.echo(say(WRONG, file=file, facts=describe_facts(found.facts)) if found.facts else say(RIGHT, file=file))
    return 1 if found.facts else 0
