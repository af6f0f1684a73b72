"""Command lines as a run file stores them."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnbench.plugins.registry import display_name

__all__ = ["format_command", "name_folders", "strip_folder"]


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


def name_folders(command: str, folders: Mapping[str, Path]) -> str:
    """Return commands, separated by ";", with the folders that ``strip_folder`` removed from the values of options.

    ``folders`` maps options, such as ``--results``, to the folders in use.
    """
    words = shlex.shlex(command, posix=True, punctuation_chars=";")
    words.whitespace_split, words.commenters = True, ""
    named, option = [], ""
    for word in words:
        named.append(";" if word == ";" else shlex.quote(str(folders.get(option, word))))
        option = word
    return " ".join(named).replace(" ;", ";")
