"""A command whose options may have values from a configuration file; an error about such a value names its key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import name_option
from attnsweep.configuration import Configuration

__all__ = ["Configured", "ConfiguredCommand"]


@dataclass(frozen=True, slots=True)
class Configured:
    """The object of the command's context: the configuration file, and what it has."""

    path: Path
    configuration: Configuration


class ConfiguredCommand(click.Command):
    """A command that has an object ``Configured`` in its context if a file was named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises: click.BadParameter that names the option, or the key of the file.
        """
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = error.param.name if error.param else None
            is_of_file = ctx.get_parameter_source(name or "") is ParameterSource.DEFAULT_MAP
            if isinstance(ctx.obj, Configured) and is_of_file:
                error.param_hint = f"{ctx.obj.path}: {ctx.obj.configuration.name_key(name or '')}"
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises: click.UsageError that names the options, or the keys of the file.
        """
        try:
            return super().invoke(ctx)
        except JobError as error:
            raise click.UsageError(_describe(error, ctx), ctx) from error


def _describe(error: JobError, ctx: click.Context) -> str:
    """Return an error with the file, if the file has given the value, and with its keys instead of options."""
    if not isinstance(ctx.obj, Configured):
        return error.describe(name_option)
    configured, find_source = ctx.obj, ctx.get_parameter_source
    is_of_file = find_source(error.field or "") is ParameterSource.DEFAULT_MAP

    def name(field: str) -> str:
        source = find_source(field)
        is_key = source is ParameterSource.DEFAULT_MAP or (is_of_file and source is not ParameterSource.COMMANDLINE)
        return configured.configuration.name_key(field) if is_key else name_option(field)

    told = error.describe(name)
    return f"{configured.path}: {told}" if is_of_file else told
