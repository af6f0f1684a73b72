"""The error for an argument that a command and the Python interface refuse in the same words."""

import re

import click

__all__ = ["UsageError", "name_arguments"]

# An option of the command line, such as --kv-heads.
_OPTION = re.compile(r"--([a-z][a-z-]*)")
# Arguments of Python that do not have the name of the option.
_RENAMED = {
    "case": "cases",
    "case-budget": "case_budget_s",
    "memory-limit": "memory_bytes",
    "timeout": "timeout_s",
    "work-limit": "work_limit_s",
}


class UsageError(click.UsageError, ValueError):
    """An argument that cannot be used; the message is one line, and names the argument and the remedy.

    For the command line it is click's usage error, for Python a ValueError.
    """


def name_arguments(message: str) -> str:
    """Return a message about options of the command line as one about arguments of Python: --head-dim is head_dim."""
    return _OPTION.sub(lambda found: _RENAMED.get(found[1], found[1].replace("-", "_")), message)
