"""``attnbench study``: figures and tables of the registered studies, with one command per study."""

import tempfile
from pathlib import Path
from typing import Any

import click

from attnbench.cli.options import options
from attnbench.plugins.registry import PluginError, list_names, load
from attnbench.processes.errors import ChildDied
from attnbench.words.findings import describe_fact
from attnstudies import STUDIES, Study

__all__ = ["command"]


class _Studies(click.Group):
    """The commands of the registered studies; a study is loaded only when its command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list_names(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in list_names(STUDIES):
            return None
        return _command(cmd_name, load_study(cmd_name))


@click.command("study", cls=_Studies)
def command() -> None:
    """Draw figures and tables that explain attention, and add them to the report."""


def load_study(name: str) -> Study:
    """Return the study that is registered under a name.

    Raises: PluginError if the study cannot be loaded, or if the loaded object is not a Study.
    """
    found = load(name, STUDIES)
    if not isinstance(found, Study):
        raise PluginError(f"study {name!r} must be an attnstudies.Study, got a {type(found).__name__}")
    return found


def _command(name: str, study: Study) -> click.Command:
    @options("reports")
    def run(reports: str | None, **asked: Any) -> int:
        return _run(name, study, Path(reports or "reports"), **asked)

    made = click.command(name, help=study.summary)(run)
    made.params = [*study.parameters, *made.params]
    return made


def _run(name: str, study: Study, reports: Path, **asked: Any) -> int:
    """Compute a study, draw its figures, add it to the report, and return exit code 0.

    A child process computes the study, so that only the child process imports torch.
    """
    from attnbench.processes.request import Fault
    from attnbench.processes.rpc import Child
    from attnstudies.figures import write
    from attnstudies.request import ComputeStudy

    try:
        with (
            tempfile.TemporaryDirectory(prefix="attnbench-") as folder,
            Child("attnstudies.process", log=Path(folder) / "study.log") as child,
        ):
            answer = child.ask(ComputeStudy(name=name, options=asked))
    except ChildDied as error:
        remedy = "run the study with fewer --head-dims or --keys, or a shorter --text"
        raise click.UsageError(f"the study's process ended: {describe_fact(error.fact)}; {remedy}") from None
    if isinstance(answer, Fault):
        raise click.UsageError(answer.reason)
    click.echo(write(name, load(study.draw)(answer.found), reports))
    return 0
