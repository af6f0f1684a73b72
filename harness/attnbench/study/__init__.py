"""Studies: figures that show why attention is computed the way it is, each a plug-in of ``attnbench study``.

A study is an object ``Study``, registered by an entry point of the group ``attnbench.studies``; the name of the entry
point is the name of its command. Importing the module that describes it imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["Study", "StudyError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study computes, how it is drawn, and which options its command takes."""

    # The command's help text.
    summary: str
    # ``package.module:function`` that computes the study in a process of its own. It gets the values of the options as
    # keyword arguments, returns numbers, strings, lists and dictionaries, and may raise StudyError.
    compute: str
    # ``package.module:function`` that draws what was computed: it returns a ``StudyFigures`` and imports no torch.
    draw: str
    # Options and arguments of the command.
    parameters: Sequence["click.Parameter"] = ()


class StudyError(Exception):
    """Why a study cannot be made, in one line with the remedy."""
