"""Tests of commands that plug-ins bring: they are used like attnbench's own; a bad one is said in one line."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attnbench.cli import attnbench
from attnbench.plugins.commands import GROUP
from attnbench.plugins.registry import PluginError
from commands import run_command
from installed_plugins import Installer

# A plug-in with one command, and the line of --help about it.
MODULE = """
from attnbench.plugins.commands import PluginCommand

COMMAND = PluginCommand(summary="Says what it is given.", place="{module}_command:command")
"""
CODE = """
import click

@click.command("say")
@click.argument("word")
def command(word):
    "Say a word."
    click.echo(word)
    return 1
"""


def write_command(install: Installer, name: str, module: str = MODULE, code: str = CODE) -> None:
    """Install a plug-in with one command; its modules have the command's name."""
    place = f"plugin_{name}"
    install(name, f"{name} = {place}:COMMAND", group=GROUP)
    (install.folder / f"{place}.py").write_text(module.format(module=place))
    (install.folder / f"{place}_command.py").write_text(code)


def invoke(*words: str) -> Result:
    """Run attnbench in this process; an error is raised as an exception."""
    return CliRunner().invoke(attnbench, words, standalone_mode=False, catch_exceptions=False)


def describe(name: str) -> str:
    """Return what ``attnbench --help`` says of a command, as one line; every other command must be there too."""
    shown = invoke("--help").stdout
    assert re.search(r"^  sweep +Run conform", shown, re.MULTILINE)
    (found,) = re.findall(rf"^  {name} +(.*(?:\n {{5,}}.*)*)", shown, re.MULTILINE)
    return " ".join(found.split())


def test_a_command_is_listed_and_used(install: Installer) -> None:
    """A plug-in's command is in --help, gets its arguments, and returns its exit code; --help does not import it."""
    write_command(install, "say")
    assert describe("say") == "Says what it is given."
    assert "plugin_say_command" not in sys.modules
    done = invoke("say", "hello")
    assert (done.stdout, done.return_value) == ("hello\n", 1)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        (
            "missing",
            "import a_missing_library",
            "cannot import 'missing': ModuleNotFoundError: No module named 'a_miss",
        ),
        ("lines", "raise ValueError('one\\ntwo')", "cannot import 'lines': ValueError: one two"),
        ("exits", "raise SystemExit(3)", "cannot import 'exits': SystemExit: 3"),
        ("other", "COMMAND = 1", "command 'other' must be an attnbench.plugins.commands.PluginCommand, got a int"),
    ],
)
def test_a_command_that_cannot_be_imported_is_said_in_one_line(
    install: Installer, name: str, module: str, message: str
) -> None:
    """--help shows all other commands, and why this one cannot be used; using it is an error with the same reason."""
    write_command(install, name, module)
    assert describe(name).startswith(f"cannot be used: {message}")
    with pytest.raises(PluginError, match=re.escape(message)):
        invoke(name)


def test_a_command_that_fails_when_it_is_used_is_an_error_of_one_line(install: Installer) -> None:
    """The module of the command itself is imported late: --help has its line, and using it names the module."""
    write_command(install, "late", code="import a_missing_library")
    assert describe("late") == "Says what it is given."
    with pytest.raises(PluginError, match=r"^cannot import 'plugin_late_command:command': ModuleNotFoundError: No"):
        invoke("late")
    write_command(install, "number", code="command = 1")
    with pytest.raises(PluginError, match=r"plugin_number_command:command must be a click\.Command, got a int"):
        invoke("number")


def test_two_commands_of_one_name_are_told(install: Installer) -> None:
    """Neither of two plug-ins wins; attnbench's own command of a name is always used."""
    install("first", "twice = first:COMMAND", group=GROUP)
    install("second", "twice = second:COMMAND", "list = second:COMMAND", group=GROUP)
    assert describe("twice").startswith(
        "cannot be used: 'twice' is registered more than once: first:COMMAND from first"
    )
    assert describe("list").startswith("List implementations")


def test_an_unknown_command_names_those_of_plug_ins(install: Installer, tmp_path: Path) -> None:
    """The message has all commands, those of plug-ins too; the exit code is 2."""
    write_command(install, "say")
    done = run_command("sweeep", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown command 'sweeep'; available: list, conform, " in done.stderr
    assert ", say, study, sweep" in done.stderr
