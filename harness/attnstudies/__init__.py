"""Studies, and ``attnbench study``: figures that show why attention is computed the way it is.

A study is an object of the class ``Study``, registered by an entry point of the group ``attnbench.studies``. The name
of the entry point is the name of the study's command. The module that defines the object must not import torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.plugins.commands import PluginCommand

if TYPE_CHECKING:
    import click

__all__ = ["COMMAND", "STUDIES", "Study", "StudyError"]

# Entry-point group of the studies.
STUDIES = "attnbench.studies"
COMMAND = PluginCommand(
    summary="Draw figures that explain attention: saturation, additive scores, attention maps, padding.",
    place="attnstudies.command:command",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study computes, how it is drawn, and which options its command takes."""

    # The command's help text.
    summary: str
    # ``package.module:function`` that computes the study in a separate process. The function gets the values of the
    # options as keyword arguments. It returns numbers, strings, lists and dictionaries, and may raise StudyError.
    compute: str
    # ``package.module:function`` that draws the computed result and returns a ``StudyFigures``. The module does not
    # import torch.
    draw: str
    # Options and arguments of the command.
    parameters: Sequence["click.Parameter"] = ()


class StudyError(Exception):
    """Raised if a study cannot be computed. The message is one line with the reason and the remedy."""
