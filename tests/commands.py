"""Commands of attnbench that tests run: in the process of the tests, or in new processes.

A command in the process of the tests shares its fork servers, so that torch is not imported anew for each command.
"""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import click
import pytest
from click.testing import CliRunner

from attnbench.cli import main

__all__ = ["PROGRAM", "START", "refuse_command", "run_command", "run_new_process"]

# What the command attnbench runs, and the beginning of a command line that runs it in a new process.
PROGRAM = "from attnbench.cli import main; main()"
START = (sys.executable, "-c", PROGRAM)
# Longest time of a command in a new process, in seconds.
TIMEOUT_S = 900


def run_command(*words: str | Path, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """Run attnbench in this process and in a folder, with added environment variables, and capture what it prints."""
    arguments = ["attnbench", *map(str, words)]
    handler = signal.getsignal(signal.SIGTERM)
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", arguments),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            signal.signal(signal.SIGTERM, handler)
    return CompletedProcess(arguments, int(end.value.code or 0), output.getvalue(), errors.getvalue())


def refuse_command(
    command: click.Command, *words: str | Path, kind: type[click.ClickException] = click.ClickException
) -> str:
    """Run a command that is refused with an error of a kind, and return its message, which is one line."""
    with pytest.raises(kind) as raised:
        CliRunner().invoke(command, [*map(str, words)], standalone_mode=False, catch_exceptions=False)
    message = raised.value.format_message()
    assert "\n" not in message
    return message


def run_new_process(*words: str | Path, cwd: Path, search: Sequence[Path] = ()) -> CompletedProcess[str]:
    """Run attnbench in a new process and in a folder, and capture what it prints.

    The process finds modules and plug-ins also in the folders ``search``.
    """
    path = os.pathsep.join([*map(str, search), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*START, *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
