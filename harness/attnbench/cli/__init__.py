"""The command line. A command's module is imported only when the command is used, so that ``--help`` is quick."""

import importlib
import logging
import sys
from typing import Any

import click

from attnbench.cli.errors import one_line
from attnbench.jobs.errors import JobError
from attnbench.plugins.commands import find_command, list_commands, load_command
from attnbench.plugins.registry import PluginError

__all__ = ["main"]

# One-line help by name of attnbench's own commands. The code of a command is the object ``command`` in the module
# attnbench.cli.<name>_command, with "-" in the name replaced by "_".
COMMANDS = {
    "list": "List implementations and their origin; with --support, also what each supports and refuses.",
    "conform": "Check implementations against the reference over a suite of cases.",
    "profile": "Measure speed and memory of conforming implementations across sequence lengths.",
    "report": "Write an HTML page, plots, CSV and Markdown from stored runs.",
    "merge": "Join the run files of shards and of tasks into one run set.",
    "compare": "Show what became slower, faster, bigger or wrong between two runs, implementations or source trees.",
    "reproduce": "Re-run one check of one case.",
    "wrap": "Print the declaration of a function or module that is called in another way.",
    "verify": "Judge an output that is stored in a file.",
    "cache": "Show the cache of expected values, or empty it.",
    "run": "Run conform and profile on the same implementations, then report.",
}


class _Echo(logging.Handler):
    """Prints what the harness logs to standard error, as it is."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_describe_commands())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            if name in list_commands():
                return load_command(name)
            if ctx.resilient_parsing:  # the shell completes a line
                return None
            ctx.fail(f"unknown command {name!r}; available: {', '.join(self.list_commands(ctx))}")
        command: click.Command = importlib.import_module(f"attnbench.cli.{name.replace('-', '_')}_command").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named.

        Raises: UsageError for a job that cannot be run, with the names of options.
        """
        logger = logging.getLogger("attnbench")
        if not any(isinstance(one, _Echo) for one in logger.handlers):
            logger.addHandler(_Echo())
        try:
            return super().invoke(ctx)
        except JobError as error:
            from attnbench.jobs.fields import name_option

            raise click.UsageError(error.describe(name_option)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_describe_commands().items()))


def _describe_commands() -> dict[str, str]:
    """Return the one-line help of every command: attnbench's own, then those of plug-ins by name."""
    return COMMANDS | {name: _describe_command(name) for name in list_commands() if name not in COMMANDS}


def _describe_command(name: str) -> str:
    """Return the one-line help of a plug-in's command, or why it cannot be used."""
    try:
        return find_command(name).summary
    except PluginError as error:
        return f"cannot be used: {error}"


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="attnbench")
def attnbench() -> None:
    """Check, measure and track implementations of multi-head attention in PyTorch."""


def main() -> None:
    """Run the command line, and exit with the exit code of the command.

    A usage error prints one line; its exit code is 2.
    """
    with one_line():
        sys.exit(attnbench.main(standalone_mode=False) or 0)
