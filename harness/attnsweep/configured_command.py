"""A command whose options may have values from a configuration file; an error about such a value names its key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

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
            if key := _find_key(ctx, error.param):
                error.param_hint = key
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises: click.UsageError whose first word is an option, or the key of the file.
        """
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            option, colon, rest = error.message.partition(": ")
            if key := _find_key(ctx, next((one for one in self.params if option in one.opts), None)):
                raise click.UsageError(key + colon + rest, ctx) from error
            raise


def _find_key(ctx: click.Context, parameter: click.Parameter | None) -> str:
    """Return the file and the key that gave a parameter its value; empty if the value is from elsewhere."""
    given, name = ctx.obj, parameter.name if parameter else None
    if not isinstance(given, Configured) or not name:
        return ""
    is_given = ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return f"{given.path}: {given.configuration.name_key(name)}" if is_given else ""
