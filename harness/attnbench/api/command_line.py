"""Command lines as a run file stores them."""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from attnbench.plugins.registry import display_name

__all__ = ["format_command", "restore_folders", "strip_folder"]


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


def restore_folders(text: str, run_files: Iterable[Path], reports: Path) -> str:
    """Return a text with commands for these runs, with the folders of paths that ``strip_folder`` removed.

    ``reports`` is the folder of the report.
    """
    folders = {"--reports": reports}
    if len(results := {path.parent.parent for path in run_files}) == 1:
        folders["--results"] = results.pop()
    for option, folder in folders.items():
        shown, given = (shlex.join([option, one]) for one in (strip_folder(str(folder)), str(folder)))
        text = re.sub(rf"(?<!\S){re.escape(shown)}(?![^\s;])", given.replace("\\", r"\\"), text)
    return text
