"""Tests of stored types: the command that reproduces a finding."""

import subprocess

import pytest

from attnbench.records.types import format_reproduce_line

CASE = "multihead/B2.L5.S7.E24.H3/bias/mask=none/regime=plain/seed=0/float32/cpu/eval"


def read_words(line: str) -> list[str]:
    """Return the arguments that ``attnbench`` gets if a user pastes this line into bash."""
    program = f"attnbench() {{ printf '%s\\0' \"$@\"; }}\n{line}"
    environment = {"LC_ALL": "C.UTF-8", "PATH": ""}
    run = subprocess.run(["/bin/bash", "-c", program], capture_output=True, check=True, env=environment)
    return run.stdout.decode().split("\0")[:-1]


def test_the_command_of_plain_names_is_plain() -> None:
    """Only the case is quoted if no name needs quotes."""
    assert format_reproduce_line("mine", CASE, "stays_finite") == (
        f"attnbench reproduce '{CASE}' --check stays_finite mine"
    )


@pytest.mark.parametrize(
    "text",
    ["it's", "'; touch owned; '", "$(touch owned)", "`touch owned`", "a\nb", "\x1b[201~\ntouch owned\r", "\x017",
     "\u202eback'\\", "\ud7ffé\u2028", r"\1", "", "a b"],
)  # fmt: skip
def test_a_command_is_safe_to_paste(text: str) -> None:
    """Bash passes every text on as one argument, and no character of the line acts on a terminal."""
    line = format_reproduce_line(text, text, text)
    assert line.isprintable()
    assert read_words(line) == ["reproduce", text, "--check", text, text]


def test_a_name_that_begins_with_a_hyphen_is_no_option() -> None:
    """A name or a case that begins with a hyphen follows ``--``."""
    assert read_words(format_reproduce_line("--output=x", CASE, "-y")) == [
        "reproduce", "--check", "-y", "--", CASE, "--output=x",
    ]  # fmt: skip
