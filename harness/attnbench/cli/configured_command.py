"""A command whose options may have values from a configuration file; an error about such a value names its key."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attnbench.jobs.errors import JobError
from attnbench.jobs.fields import name_option
from attnbench.sweep.configuration import Configuration

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
            if key := _find_key(ctx, error.param.name if error.param else None):
                error.param_hint = key
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises: click.UsageError that names the options, or the keys of the file.
        """
        try:
            return super().invoke(ctx)
        except JobError as error:
            raise click.UsageError(error.describe(partial(_name_field, ctx)), ctx) from error


def _name_field(ctx: click.Context, field: str) -> str:
    """Return the option of a field, or the key of the file if it has given the value."""
    return _find_key(ctx, field) or name_option(field)


def _find_key(ctx: click.Context, name: str | None) -> str:
    """Return the file and the key that gave a parameter its value; empty if the value is from elsewhere."""
    if not isinstance(ctx.obj, Configured) or not name:
        return ""
    is_given = ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return f"{ctx.obj.path}: {ctx.obj.configuration.name_key(name)}" if is_given else ""
