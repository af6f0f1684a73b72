"""Tests of the tests of the documents: blocks, commands, outputs and excerpts are read, and faults are found."""

import click
import pytest

from attnbench.plugins.registry import PluginError
from page_commands import parse_command
from pages import ROOT, Block, Command, is_excerpt, is_output


def make_block(text: str, language: str = "console") -> Block:
    """Return a block of a page."""
    return Block(page=ROOT / "README.md", line=1, language=language, mark="", text=text)


def test_commands_have_their_continuations_and_outputs() -> None:
    """A command has its continued lines without the comment, and the lines below it as its output."""
    first, second = make_block("$ attnbench list \\\n    --all  # all\n$ A=1 make x\none\ntwo\n").commands
    assert (first.words, first.shown) == (["attnbench", "list", "--all"], ())
    assert (second.words, second.shown) == (["make", "x"], ("one", "two"))
    with pytest.raises(ValueError, match=r"README\.md:1: a console block starts with"):
        _ = make_block("output\n").commands


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["3 passed in 1.5s"], "3 passed in 99.25s\n", True),
        (["3 passed in 1.5s"], "4 passed in 1.5s\n", False),
        (["allowed 2.0e-07, got 1.25"], "allowed 3.9e-07, got 1.26\n", True),
        (["allowed 2.0e-07"], "allowed 4.1e-07\n", False),
        (["got 1.25"], "got 1.27\n", False),
        (["first", "...", "last"], "first\nlast\n", True),
        (["first", "...", "last"], "first\nmore\n\nlast\n", True),
        (["first", "...", "last"], "first\nlast\nmore\n", False),
        (["first"], "", False),
    ],
)
def test_outputs_differ_only_in_times_and_rounding(shown: list[str], printed: str, same: bool) -> None:
    """Times are free; rounding errors agree within a factor of 2, other decimals within 1 %, and all else exactly."""
    assert is_output(shown, printed) is same


def test_excerpts_keep_the_order_of_their_file() -> None:
    """An excerpt may leave out lines and parts of lines, but has no other line and no other order."""
    source = "def f(x):\n    y = x\n    return y\n"
    assert is_excerpt("def f(x):\n    ...\n    return y\n", source)
    assert is_excerpt("def f(...):\n    y = x\n", source)
    assert is_excerpt("def f(x): ...\n", source)
    assert not is_excerpt("    return y\ndef f(x):\n", source)
    assert not is_excerpt("def g(x):\n", source)


@pytest.mark.parametrize(
    "line",
    [
        "attnbench conforms sdpa",
        "attnbench conform spda",
        "attnbench conform sdpa --suit quick",
        "attnbench conform sdpa --suite quickest",
        "attnbench conform no_such_file.py:attention",
        "attnbench study mapps",
        "make no-such-target",
        "pytest --attentoin sdpa",
        "python -m no_such_module",
        "attentionbench conform sdpa",
    ],
)
def test_wrong_commands_are_found(line: str, pytestconfig: pytest.Config) -> None:
    """A program, command, option, value, name, file, target or module that does not exist is an error."""
    with pytest.raises((click.UsageError, PluginError, LookupError, ValueError, ImportError)):
        parse_command(Command(line=line).words, placeholders=False, config=pytestconfig)
