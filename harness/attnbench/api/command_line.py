"""Command lines as a run file stores them."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from attnbench.plugins.registry import display_name

__all__ = ["format_command", "name_folders", "strip_folder"]

# A word of a command line as shlex quotes it.
_WORD = r"""(?:'[^']*'|"[^"]*"|[^\s;'"])+"""


def format_command(words: Iterable[str]) -> str:
    """Return a command line of attnbench without the folders of paths: a folder could reveal a user name."""
    return shlex.join(["attnbench", *map(strip_folder, words)])


def strip_folder(word: str) -> str:
    """Return a word of a command line; a path outside the working directory loses its folders."""
    option, equals, value = word.partition("=")
    value = value or option
    if value.rpartition(":")[0].endswith(".py"):
        return display_name(value)
    if not Path(value).is_absolute() and ".." not in Path(value).parts:
        return word
    return f"{option}={Path(value).name}" if equals else Path(value).name


def name_folders(text: str, run_files: Iterable[Path], reports: Path) -> str:
    """Return a text with commands of stored runs in which ``--results`` and ``--reports`` have the present folders.

    Stored commands lack the folders of paths. ``run_files`` are the files of the runs, and ``reports`` is the folder of
    their report.
    """
    folders = {"--reports": reports}
    if len(results := {path.parent.parent for path in run_files}) == 1:
        folders["--results"] = results.pop()
    for option, folder in folders.items():
        text = re.sub(rf"(?<!\S){option} {_WORD}", shlex.join([option, str(folder)]).replace("\\", r"\\"), text)
    return text
