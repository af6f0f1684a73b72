"""Commands that plug-ins bring to the command line, found by entry points."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.plugins.registry import PluginError, list_names, load

if TYPE_CHECKING:
    import click

__all__ = ["PluginCommand", "find_command", "list_commands", "load_command"]

# Entry-point group. Each entry names a ``PluginCommand``, in a module that imports quickly.
GROUP = "attnbench.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCommand:
    """A command of a plug-in. The name of its entry point is the name of the command."""

    # What ``attnbench --help`` says of it, in one line.
    summary: str
    # ``package.module:attribute`` of a ``click.Command``; the module is imported when the command is used.
    place: str


def list_commands() -> list[str]:
    """Return the names of the commands, sorted, without importing anything."""
    return list_names(GROUP)


def find_command(name: str) -> PluginCommand:
    """Return what a plug-in says of its command.

    Raises: PluginError if its module cannot be imported, or has something else at this place.
    """
    found = load(name, GROUP)
    if not isinstance(found, PluginCommand):
        raise PluginError(
            f"command {name!r} must be an attnbench.plugins.commands.PluginCommand, got a {type(found).__name__}"
        )
    return found


def load_command(name: str) -> "click.Command":
    """Import a command.

    Raises: PluginError if it cannot be imported, or is no ``click.Command``.
    """
    # Imported here, because worker processes import this package, and have no command line.
    import click

    place = find_command(name).place
    found = load(place)
    if not isinstance(found, click.Command):
        raise PluginError(f"command {name!r}: {place} must be a click.Command, got a {type(found).__name__}")
    return found
