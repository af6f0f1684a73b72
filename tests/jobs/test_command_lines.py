"""Command lines as a run file stores them, and as they are printed where the run was made."""

import shlex
from pathlib import Path

import pytest

from attnbench.jobs.command_lines import format_command, name_folders


@pytest.mark.parametrize("folder", ["/tmp/somebody/my runs", "/tmp/somebody/a;b", "../runs", "runs"])
def test_printed_commands_have_the_folders_that_stored_ones_lack(folder: str) -> None:
    """A stored command has no folder that could reveal a user name; the printed command has the folders in use."""
    first, second = ["conform", "--results", folder, "sdpa"], ["report", "--reports", "/tmp/somebody/page"]
    stored = f"{format_command(first)}; {format_command(second)}"
    assert "somebody" not in stored
    printed = name_folders(stored, {"--results": Path(folder), "--reports": Path("/tmp/somebody/page")})
    assert printed == f"{shlex.join(['attnbench', *first])}; {shlex.join(['attnbench', *second])}"


def test_a_quoted_word_that_looks_like_an_option_stays() -> None:
    """Only a whole word is an option."""
    text = "attnbench report 'a --results b' c; attnbench report '; --results'"
    assert name_folders(text, {"--results": Path("/tmp/runs")}) == text
