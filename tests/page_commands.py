"""Parsers of the commands in the documents: programs, options and names are found to exist without running anything."""

from collections.abc import Callable
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from attnbench.cli import attnbench
from attnbench.jobs.job import COMMANDS, parse
from attnbench.plugins.registry import check_name
from pages import ROOT

# Programs whose arguments are not parsed.
OTHER_PROGRAMS = ("apt-get", "asv", "git", "pip", "printf", "sinfo", "source", "touch")


def parse_command(words: list[str], *, placeholders: bool, config: pytest.Config) -> None:
    """Parse a command; with ``placeholders``, names and values of attnbench's options stand for the reader's own.

    Raises: click.UsageError, PluginError, LookupError, ValueError, ImportError that says what does not exist.
    """
    parsers: dict[str, Callable[[list[str]], object]] = {
        "attnbench": parse_options if placeholders else parse_arguments,
        "make": _find_target,
        "python": _find_module,
        "pytest": lambda options: [
            config.getoption(name.partition("=")[0]) for name in options if name.startswith("-")
        ],
        **dict.fromkeys(OTHER_PROGRAMS, len),
    }
    parsers[Path(words[0]).name](words[1:])


def parse_options(words: list[str]) -> None:
    """Parse only the name of a command of attnbench and the names of its options.

    Raises: LookupError, ValueError where they do not exist.
    """
    found, rest = _find_command(words)
    known = {option for parameter in found.params for option in parameter.opts} | {"--help"}
    if unknown := [word for word in rest if word.startswith("--") and word not in known]:
        raise ValueError(f"{found.name} has no option {unknown[0]}")


def parse_arguments(words: list[str]) -> None:
    """Parse a command of attnbench, its options, their values, and the names of implementations.

    Raises: click.UsageError, PluginError, LookupError where they do not exist.
    """
    found, rest = _find_command(words)
    given = found.make_context(found.name, rest).params
    for implementation in given.get("implementations", ()):
        check_name(implementation)
    # Several numbers of threads are several jobs.
    if kind := COMMANDS.get(found.name or ""):
        known = {one.name for one in fields(kind)} - {"threads"}
        parse(kind, {name: value for name, value in given.items() if name in known and value is not False})


def _find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command, or the command of a group, that the first words name, and the other words."""
    found: click.Command = attnbench
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        context, (name, *words) = click.Context(found), words
        if name not in found.list_commands(context):
            raise LookupError(f"no command {name}")
        found = found.get_command(context, name) or found
    return found, words


def _find_target(words: list[str]) -> None:
    targets = [line.partition(":")[0] for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()]
    if words[0] not in targets:
        raise LookupError(f"no target {words[0]}")


def _find_module(words: list[str]) -> None:
    if words[0] == "-m" and find_spec(words[1]) is None:
        raise ModuleNotFoundError(words[1])
